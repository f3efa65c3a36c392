"""BPR triplets, vectorised and exact: a negative is never one of the user's training items.

Shapes: B triplets, U users, I items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from hmlet.data import Csr
from hmlet.errors import DataError


class Triplets(NamedTuple):
    """Users, an item of each in training, and an item that is not: B each."""

    user: Tensor
    positive: Tensor
    negative: Tensor


class TripletSampler:
    """LightGCN's sampler: a user uniformly, then one of their items, then an item they do not have, each uniformly.

    The negative needs no rejection. In a user's sorted items a_0 < a_1 < …, exactly a_j - j items below a_j are
    missing, so the r-th missing item is r + #{j : a_j - j ≤ r}. Keys u (I + 1) + a_j - j ascend over all users,
    and one binary search in them finds the count for a whole batch.

    A user with no training item has no positive and one with every item has no negative: neither is drawn.
    """

    def __init__(self, train: Csr, n_items: int, device: torch.device | str = "cpu") -> None:
        counts = train.counts
        eligible = np.flatnonzero((counts > 0) & (counts < n_items))
        if len(eligible) == 0:
            raise DataError(
                "no user has both a training item and an item left to compare it with",
                "training needs users who interacted with some, but not all, of the items",
            )
        owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        rank = np.arange(len(train.items), dtype=np.int64) - train.indptr[owner]
        self.n_items = n_items
        self.device = torch.device(device)
        self.eligible = torch.from_numpy(eligible).to(device)
        self.n_eligible = torch.tensor(len(eligible), device=device)
        self.indptr = torch.from_numpy(train.indptr).to(device)
        self.items = torch.from_numpy(train.items).to(device)
        self.keys = torch.from_numpy(owner * (n_items + 1) + train.items - rank).to(device)

    @record_function("hmlet::sampling")
    def sample(self, size: int, generator: torch.Generator) -> Triplets:
        """`size` independent triplets."""
        draw_3B = torch.rand(3, size, generator=generator, device=self.device, dtype=torch.float64)
        user = self.eligible[_uniform(draw_3B[0], self.n_eligible)]
        start = self.indptr[user]
        count = self.indptr[user + 1] - start
        positive = self.items[start + _uniform(draw_3B[1], count)]
        missing = _uniform(draw_3B[2], self.n_items - count)
        below = torch.searchsorted(self.keys, user * (self.n_items + 1) + missing, right=True) - start
        return Triplets(user, positive.long(), missing + below)


def _uniform(draw: Tensor, below: Tensor) -> Tensor:
    """Integers 0 ≤ x < below from draws in [0, 1); float64 keeps the bias under 2^-20 for a billion items."""
    return torch.minimum((draw * below).long(), below - 1)
