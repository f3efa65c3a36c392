"""BPR-MF (Rendle et al., UAI '09): the embeddings are the factors."""

from __future__ import annotations

import torch

from hmlet.config import BPRConfig
from hmlet.models.base import Layers, Model, Pass, Product


class BPRMF(Model):
    """Matrix factorisation trained on pairs: no propagation."""

    def __init__(self, config: BPRConfig, n_users: int, n_items: int, generator: torch.Generator) -> None:
        super().__init__(config, n_users, n_items, generator)

    def propagate(self, product: Product, how: Pass) -> Layers:
        return Layers([self.embedding], {})
