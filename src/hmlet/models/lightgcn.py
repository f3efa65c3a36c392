"""LightGCN (He et al., SIGIR '20): e_{i+1} = Â e_i, and the layers' mean as the factor."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from hmlet.graph import Graph
from hmlet.graph.kernels import fork
from hmlet.graph.layers import Layers
from hmlet.models.base import GraphModelConfig, Model, Pass, Product


class LightGCNConfig(GraphModelConfig):
    """LightGCN: linear propagation, layers averaged."""

    family: ClassVar[str] = "lightgcn"
    compared_losses: ClassVar[tuple[str, ...]] = ("bpr", "multinomial")
    step_share: ClassVar[float] = 1.0
    name: Literal["lightgcn"] = "lightgcn"


class LightGCN(Model):
    """Linear propagation alone."""

    Config = LightGCNConfig

    def __init__(self, config: LightGCNConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.config = config

    def propagate(self, product: Product, how: Pass) -> Layers:
        layers: list[Tensor] = [self.embedding]
        for _ in range(self.config.layers):
            next_ND, layers[-1] = fork(product, layers[-1])
            layers.append(next_ND)
        return self.layers(layers)
