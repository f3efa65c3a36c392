"""GC-MC (van den Berg et al., KDD '18 workshop) for implicit feedback: one rating level, dot product as decoder.

H = ReLU(Â E W),  factor = H V
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from hmlet.graph import Graph
from hmlet.graph.kernels import part
from hmlet.graph.layers import Layers
from hmlet.models.base import GraphModelConfig, Model, Pass, Product, dropout, glorot
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
    joined_by = "last"

    def __init__(self, config: GCMCConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.config = config
        size = config.embedding_size
        self.convolution = glorot(size, size, generator)
        self.dense = glorot(size, size, generator)

    def propagate(self, product: Product, how: Pass) -> Layers:
        n_nodes = len(self.embedding)
        messages_MD = dropout(how.ranks.rows(product(self.embedding)), self.config.hidden_dropout, how, n_nodes)
        with part("matrix products"):
            hidden_MD = torch.relu(messages_MD @ self.convolution.to(messages_MD.dtype))
            factor_MD = hidden_MD @ self.dense.to(hidden_MD.dtype)
        return self.layers([self.embedding, how.ranks.columns(factor_MD, n_nodes)])
