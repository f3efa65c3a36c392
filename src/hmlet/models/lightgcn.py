"""LightGCN (He et al., SIGIR '20): e_{i+1} = Â e_i, and the layers' mean as the factor."""

from __future__ import annotations

import torch
from torch import Tensor

from hmlet.config import LightGCNConfig
from hmlet.graph.kernels import fork
from hmlet.models.base import Layers, Model, Pass, Product


class LightGCN(Model):
    """Linear propagation alone."""

    def __init__(self, config: LightGCNConfig, n_users: int, n_items: int, generator: torch.Generator) -> None:
        super().__init__(config, n_users, n_items, generator)
        self.config = config

    def propagate(self, product: Product, how: Pass) -> Layers:
        layers: list[Tensor] = [self.embedding]
        for _ in range(self.config.layers):
            next_ND, layers[-1] = fork(product, layers[-1])
            layers.append(next_ND)
        return Layers(layers, {})
