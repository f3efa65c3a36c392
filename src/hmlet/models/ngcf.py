"""NGCF (Wang et al., SIGIR '19): messages from neighbours and from their product with the node itself.

E_{l+1} = LeakyReLU((Â + I) E_l W_1 + (Â E_l ⊙ E_l) W_2),  factor = E_0 ‖ normalised E_1 ‖ … ‖ normalised E_L
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hmlet.graph import Graph
from hmlet.graph.kernels import times
from hmlet.models.base import GraphModelConfig, Joined, Layers, Model, Pass, Product, dropout, glorot
from hmlet.system.section import Depth, Rate


class NGCFConfig(GraphModelConfig):
    """NGCF: two transformations, the product of neighbours and LeakyReLU; normalised layers concatenated."""

    family: ClassVar[str] = "ngcf"
    name: Literal["ngcf"] = "ngcf"
    layers: Depth = 3
    """K, how many times embeddings are propagated."""
    message_dropout: Rate = 0.1
    """Dropout on each layer's output while training."""
    leaky_slope: Rate = 0.2
    """Slope of LeakyReLU below zero."""


class NGCF(Model):
    """Each layer's output is dropped out and, for the factor, scaled to length one, as in its program."""

    Config = NGCFConfig
    config: NGCFConfig
    propagated = "hidden"  # what is not normalised yet
    joined = Joined("concatenation")

    def __init__(self, config: NGCFConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        size = config.embedding_size
        self.sums = nn.ParameterList(glorot(size, size, generator) for _ in range(config.layers))
        self.products = nn.ParameterList(glorot(size, size, generator) for _ in range(config.layers))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(2, size)) for _ in range(config.layers))

    def propagate(self, product: Product, how: Pass) -> Layers:
        rows, columns, n_nodes = how.ranks.rows, how.ranks.columns, len(self.embedding)
        hidden_MD: Tensor = rows(self.embedding)
        layers: list[Tensor] = [self.embedding]
        for by_sum, by_product, bias in zip(self.sums, self.products, self.biases, strict=True):
            near_MD = rows(product(columns(hidden_MD, n_nodes)))
            own_MD, bias_2D = hidden_MD.to(near_MD.dtype), bias.to(near_MD.dtype)
            message_MD = times(near_MD + own_MD, by_sum) + bias_2D[0]
            message_MD = message_MD + times(near_MD * own_MD, by_product) + bias_2D[1]
            hidden_MD = F.leaky_relu(message_MD, self.config.leaky_slope)
            hidden_MD = dropout(hidden_MD, self.config.message_dropout, how, n_nodes)
            layers.append(columns(F.normalize(hidden_MD, dim=1), n_nodes))
        return self.readout(layers, how)
