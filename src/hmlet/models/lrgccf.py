"""LR-GCCF (Chen et al., AAAI '20): linear propagation with a transformation, and residual prediction.

E_{k+1} = S E_k W_k,  S = D̃^-1/2 (A + I) D̃^-1/2,  factor = E_0 ‖ E_1 ‖ … ‖ E_K
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from hmlet.graph import Graph
from hmlet.graph.kernels import times
from hmlet.models.base import GraphModelConfig, Joined, Layers, Model, Pass, Product, by_rows, glorot
from hmlet.system.section import Depth


class LRGCCFConfig(GraphModelConfig):
    """LR-GCCF: linear propagation with a transformation, layers concatenated."""

    family: ClassVar[str] = "lr-gccf"
    name: Literal["lr-gccf"] = "lr-gccf"
    layers: Depth = 3
    """K, how many times embeddings are propagated."""
    transform: bool = True
    """Multiply by a trained matrix at each layer, as its paper says; its program leaves the matrix out."""


class LRGCCF(Model):
    """No activation; the concatenation makes each layer predict what the ones before it left over."""

    Config = LRGCCFConfig
    self_loops = True
    config: LRGCCFConfig
    joined = Joined("concatenation")

    def __init__(self, config: LRGCCFConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        size = config.embedding_size
        self.transforms = nn.ParameterList(
            glorot(size, size, generator) for _ in range(config.layers if config.transform else 0)
        )

    def propagate(self, product: Product, how: Pass) -> Layers:
        layers: list[Tensor] = [self.embedding]
        for layer in range(self.config.layers):
            layers.append(product(layers[-1]))
            if self.config.transform:
                layers[-1] = by_rows(partial(times, weight_DH=self.transforms[layer]), layers[-1], how)
        return self.readout(layers, how)
