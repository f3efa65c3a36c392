"""LR-GCCF (Chen et al., AAAI '20): linear propagation with a transformation, and residual prediction.

E_{k+1} = S E_k W_k,  S = D̃^-1/2 (A + I) D̃^-1/2,  factor = E_0 ‖ E_1 ‖ … ‖ E_K
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hmlet.config import LRGCCFConfig
from hmlet.models.base import Layers, Model, Pass, Product, glorot


class LRGCCF(Model):
    """No activation; the concatenation makes each layer predict what the ones before it left over."""

    self_loops = True
    joined_by = "concatenation"

    def __init__(self, config: LRGCCFConfig, n_users: int, n_items: int, generator: torch.Generator) -> None:
        super().__init__(config, n_users, n_items, generator)
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
                transformed_MD = how.ranks.rows(propagated_ND) @ self.transforms[layer].to(propagated_ND.dtype)
                propagated_ND = how.ranks.columns(transformed_MD, len(propagated_ND))
            layers.append(propagated_ND)
        return Layers(layers, {})
