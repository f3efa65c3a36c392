"""Users worth a look: whom a run serves best, and whose lists are most and least like everybody's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmlet.data import Dataset
from hmlet.ranking.evaluation import rank_blocks, seen_items
from hmlet.ranking.scoring import Scored
from hmlet.ranking.top_k import NO_ITEM

LIST = 20  # items of the lists that are compared
LOOKED_AT = 2000  # users, evenly over all of them: ranking everybody would keep the first visitor waiting
ALIKE = 0.25  # two users are alike if they share more than this part of their lists or of the smaller history


@dataclass(frozen=True, eq=False)
class Notable:
    """Some users with the hits of their lists, and how usual the lists are."""

    users: npt.NDArray[np.int64]
    hits: npt.NDArray[np.int64]  # items of the list that the user has, but not in the training part
    held_out: npt.NDArray[np.int64]  # items that could have been hits
    usual: npt.NDArray[np.float64]  # the share of users who get an item, averaged over the items of the list
    lists_UK: npt.NDArray[np.int64]
    histories: list[npt.NDArray[np.integer]]  # the training items of each user

    def most_hits(self, count: int) -> list[int]:
        """The positions of users with the most hits; among equals, those with fewer items to hit come first."""
        order = np.lexsort((self.users, self.held_out, -self.hits))
        return [int(at) for at in order[:count] if self.hits[at]]

    def most_typical(self, count: int) -> list[int]:
        """The positions of users who get what everybody gets."""
        return [int(at) for at in np.lexsort((self.users, -self.usual))[:count]]

    def most_surprising(self, count: int) -> list[int]:
        """The positions of users who get what hardly anybody else gets, no two of them alike while others are left.

        A small family gets a list of its own, and its members would otherwise take all the places.
        """
        order = np.lexsort((self.users, self.usual))
        alike = np.zeros(len(order), dtype=bool)  # to one that is chosen
        chosen: list[int] = []
        for at in order.tolist():
            if len(chosen) == count:
                break
            if not alike[at]:
                chosen.append(at)
                alike |= self._alike(at)
        taken = set(chosen)
        return chosen + [at for at in order.tolist() if at not in taken][: count - len(chosen)]

    def _alike(self, at: int) -> npt.NDArray[np.bool_]:
        """Which users are much like the one at a position."""
        listed = self.lists_UK[at][self.lists_UK[at] != NO_ITEM]
        own = self.histories[at]
        shared = np.array([np.isin(each, own).sum() / max(1, min(len(each), len(own))) for each in self.histories])
        found: npt.NDArray[np.bool_] = np.isin(self.lists_UK, listed).sum(axis=1) > ALIKE * len(listed)
        return found | (shared > ALIKE)


def notable(scored: Scored, data: Dataset) -> Notable:
    """Users of the training part with the hits and the usualness of their lists, without their training items."""
    train, everything = seen_items(data, "train"), seen_items(data, "all")
    trained = np.flatnonzero(train.counts)
    users = trained[np.unique(np.linspace(0, len(trained) - 1, min(LOOKED_AT, len(trained))).astype(np.int64))]
    lists_UK = [ranked.items_BK.cpu().numpy() for _, ranked in rank_blocks(*scored, users, LIST, train)]
    items_UK = np.concatenate([*lists_UK, np.empty((0, 0), np.int64)]) if not lists_UK else np.concatenate(lists_UK)
    share_I = np.bincount(items_UK[items_UK != NO_ITEM], minlength=data.n_items + 1) / max(1, len(users))
    share_I[NO_ITEM] = 0.0  # the place behind the last item
    hits = [int(np.isin(own, everything.row(user)).sum()) for own, user in zip(items_UK, users.tolist(), strict=True)]
    held_out = everything.counts[users] - train.counts[users]
    usual = share_I[items_UK].mean(axis=1) if items_UK.size else np.zeros(len(users))
    return Notable(
        users, np.array(hits, dtype=np.int64), held_out, usual, items_UK, [train.row(user) for user in users.tolist()]
    )
