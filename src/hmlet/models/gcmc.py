"""GC-MC (van den Berg et al., KDD '18 workshop) for implicit feedback: one rating level, dot product as decoder.

H = ReLU(Â E W),  factor = H V
"""

from __future__ import annotations

import torch

from hmlet.config import GCMCConfig
from hmlet.models.base import Layers, Model, Pass, Product, dropout, glorot


class GCMC(Model):
    """One graph convolution, symmetrically normalised as its paper allows, then one dense layer for both sides."""

    joined_by = "last"

    def __init__(self, config: GCMCConfig, n_users: int, n_items: int, generator: torch.Generator) -> None:
        super().__init__(config, n_users, n_items, generator)
        self.config = config
        size = config.embedding_size
        self.convolution = glorot(size, size, generator)
        self.dense = glorot(size, size, generator)

    def propagate(self, product: Product, how: Pass) -> Layers:
        n_nodes = len(self.embedding)
        messages_MD = dropout(how.ranks.rows(product(self.embedding)), self.config.hidden_dropout, how, n_nodes)
        hidden_MD = torch.relu(messages_MD @ self.convolution.to(messages_MD.dtype))
        return Layers([self.embedding, how.ranks.columns(hidden_MD @ self.dense.to(hidden_MD.dtype), n_nodes)], {})
