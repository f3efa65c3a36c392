"""Newcomers of an item-item model: a score depends only on the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Never

import numpy as np

from hmlet.errors import ConfigError
from hmlet.graph import Graph
from hmlet.ranking.scoring import Histories, Scorer
from hmlet.recommend.foldin import Indices, neighbour_lists, own_items


@dataclass(frozen=True, eq=False)
class HistoryFold:
    """What FoldIn is for factor models. An existing user is ranked as a newcomer with the same items is."""

    graph: Graph
    scorer: Scorer

    def users(self, lists: Sequence[Indices], may_be_empty: bool = False) -> Histories:
        """New users, each given by the items it has."""
        found = neighbour_lists(self.graph, "user", lists, may_be_empty)
        return Histories(found.nodes - self.graph.n_users, found.offsets)

    def items(self, lists: Sequence[Indices]) -> Never:
        """New items are refused: the weights of an item follow from all of the training part."""
        raise ConfigError("an item-item model cannot add an item to a finished run", "train again with the new item")

    def user_with(self, user: int, extra_items: Indices) -> Histories:
        """A trained user who has more items by now."""
        return self.users([np.union1d(self.own_items(user), extra_items)])

    def edited_user(self, user: int, lists: Sequence[Indices]) -> Histories:
        """A trained user with each of these lists instead of its own items; nothing else is known of it."""
        return self.users(lists, may_be_empty=True)

    def own_items(self, user: int) -> Indices:
        """A trained user's training items."""
        return own_items(self.graph, user)

    def score(self, user: int, item: int) -> float:
        """The score of an item for a trained user."""
        return float(self.scorer.exact(self.users([self.own_items(user)], True), np.array([0]), np.array([item])))

    def by_item(self, user: int, item: int) -> list[tuple[int, float]]:
        """What each of the user's items adds to the score, which is their sum; the largest first, whatever its sign."""
        own = np.asarray(self.own_items(user))
        alone = self.users([[each] for each in own])
        weights = self.scorer.exact(alone, np.arange(len(own)), np.full(len(own), item)).numpy()
        return [(int(own[at]), float(weights[at])) for at in np.argsort(-np.abs(weights), kind="stable")]
