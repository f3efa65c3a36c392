"""GC-MC (van den Berg et al., KDD '18 workshop) for implicit feedback: one rating level, dot product as decoder.

H = ReLU(Â E W),  factor = H V
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from hmlet.graph import Graph
from hmlet.graph.kernels import times
from hmlet.models.base import GraphModelConfig, Joined, Layers, Model, Pass, Product, by_rows, dropout, glorot
from hmlet.system.section import Rate


class GCMCConfig(GraphModelConfig):
    """GC-MC: one graph convolution, then a dense layer."""

    family: ClassVar[str] = "gc-mc"
    name: Literal["gc-mc"] = "gc-mc"
    layers: Literal[1] = 1
    """K, how many times embeddings are propagated: one convolution, as in its paper."""
    hidden_dropout: Rate = 0.1
    """Dropout on the messages while training."""


class GCMC(Model):
    """One graph convolution, symmetrically normalised as its paper allows, then one dense layer for both sides."""

    Config = GCMCConfig
    config: GCMCConfig
    joined = Joined("last")

    def __init__(self, config: GCMCConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        size = config.embedding_size
        self.convolution = glorot(size, size, generator)
        self.dense = glorot(size, size, generator)

    def propagate(self, product: Product, how: Pass) -> Layers:
        def factors(near_MD: Tensor) -> Tensor:
            messages_MD = dropout(near_MD, self.config.hidden_dropout, how, len(self.embedding))
            return times(torch.relu(times(messages_MD, self.convolution)), self.dense)

        return self.readout([self.embedding, by_rows(factors, product(self.embedding), how)], how)
