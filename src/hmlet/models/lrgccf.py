"""LR-GCCF (Chen et al., AAAI '20): linear propagation with a transformation, and residual prediction.

E_{k+1} = S E_k W_k,  S = D̃^-1/2 (A + I) D̃^-1/2,  factor = E_0 ‖ E_1 ‖ … ‖ E_K
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from hmlet.graph import Graph
from hmlet.graph.kernels import part
from hmlet.graph.layers import Layers
from hmlet.models.base import GraphModelConfig, Model, Pass, Product, glorot
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
    joined_by = "concatenation"

    def __init__(self, config: LRGCCFConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.config = config
        size = config.embedding_size
        self.transforms = nn.ParameterList(
            glorot(size, size, generator) for _ in range(config.layers if config.transform else 0)
        )

    def propagate(self, product: Product, how: Pass) -> Layers:
        layers: list[Tensor] = [self.embedding]
        for layer in range(self.config.layers):
            propagated_ND = product(layers[-1])
            if self.config.transform:
                own_MD = how.ranks.rows(propagated_ND)
                with part("matrix products"):
                    transformed_MD = own_MD @ self.transforms[layer].to(propagated_ND.dtype)
                propagated_ND = how.ranks.columns(transformed_MD, len(propagated_ND))
            layers.append(propagated_ND)
        return self.layers(layers)
