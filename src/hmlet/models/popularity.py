"""Popularity: an item's score is the number of its training interactions, the same for everyone."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from hmlet.data import Csr
from hmlet.graph import Graph
from hmlet.models.base import FoldInRule, Joined, Layers, Model, ModelConfig, Pass, Product, Side, Solved


class PopularityConfig(ModelConfig):
    """Popularity: the items with the most interactions, for everyone."""

    family: ClassVar[str] = "popularity"
    solved: ClassVar[bool] = True
    name: Literal["popularity"] = "popularity"


class Popularity(Model, Solved):
    """Factors of one number: 1 for a user, the number of interactions for an item."""

    Config = PopularityConfig
    propagated = None
    joined = Joined("last")

    def __init__(self, config: PopularityConfig, graph: Graph, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self.config, self.n_users, self.n_items = config, graph.n_users, graph.n_items
        self.embedding = nn.Parameter(torch.zeros(graph.n_nodes, 1), requires_grad=False)

    def propagate(self, product: Product, how: Pass) -> Layers:
        return self.readout([self.embedding], how)

    def solve(self, train: Csr) -> float:
        """Count."""
        self.embedding[: self.n_users] = 1.0
        counts_I = torch.bincount(torch.from_numpy(train.items).long(), minlength=self.n_items)
        self.embedding[self.n_users :, 0] = counts_I.to(self.embedding)
        return 0.0

    def fold_in(self, side: Side, others_ND: Tensor) -> FoldInRule:
        """1 for a user, with items or without; the number of users for an item."""
        if side == "user":
            return FoldInRule(lambda own_SD: own_SD.new_ones(1), nobody=1.0)
        return FoldInRule(lambda own_SD: own_SD.sum(dim=0))
