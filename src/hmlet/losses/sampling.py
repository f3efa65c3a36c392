"""BPR triplets, vectorised and exact: a negative is never one of the user's training items.

Shapes: B triplets, U users, I items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.data import Csr
from hmlet.errors import DataError
from hmlet.graph.kernels import draw_key, launching, part


class Triplets(NamedTuple):
    """Users, an item of each in training, and an item that is not: B each."""

    user: Tensor
    positive: Tensor
    negative: Tensor


def eligible_users(train: Csr, n_items: int) -> npt.NDArray[np.int64]:
    """The users whom a triplet can have: a user with no training item has no positive, one with all has no negative."""
    eligible = np.flatnonzero((train.counts > 0) & (train.counts < n_items))
    if len(eligible) == 0:
        raise DataError(
            "no user has both a training item and an item left to compare it with",
            "training needs users who interacted with some, but not all, of the items",
        )
    return eligible


class TripletSampler:
    """LightGCN's sampler: a user uniformly, then one of their items, then an item they do not have, each uniformly.

    The negative needs no rejection. In a user's sorted items a_0 < a_1 < …, exactly a_j - j items below a_j are
    missing, so the r-th missing item is r + #{j : a_j - j ≤ r}. A binary search finds the count: in Triton among the
    user's own items, elsewhere for a whole batch in the keys u (I + 1) + a_j - j, which ascend over all users.
    """

    def __init__(self, train: Csr, n_items: int, device: torch.device | str = "cpu") -> None:
        eligible = eligible_users(train, n_items)
        self.n_items = n_items
        self.device = torch.device(device)
        self.eligible = torch.from_numpy(eligible).to(device)
        self.indptr = torch.from_numpy(train.indptr).to(device)
        self.items = torch.from_numpy(train.items).to(device)
        self.n_eligible = torch.tensor(len(eligible), device=device)
        self.largest = int(train.counts.max())
        self.keys = None if launching.triton_runs(self.items) else torch.from_numpy(_keys(train, n_items)).to(device)

    @staticmethod
    def planned_bytes(n_users: int, n_edges: int, device: str) -> int:
        """What a sampler holds: two numbers of 8 bytes a user, an item an interaction, and on CPU a key beside it."""
        return 16 * n_users + (4 if device == "cuda" else 12) * n_edges

    def sample(self, size: int, generator: torch.Generator) -> Triplets:
        """`size` independent triplets."""
        with part("sampling"):
            if self.keys is None:
                from hmlet.graph.kernels.triton_sampling import triplets

                key = draw_key(generator, self.device)
                return Triplets(
                    *triplets(self.eligible, self.indptr, self.items, self.n_items, self.largest, size, key)
                )
            draw_3B = torch.rand(3, size, generator=generator, device=self.device, dtype=torch.float64)
            user = self.eligible[_uniform(draw_3B[0], self.n_eligible)]
            start = self.indptr[user]
            count = self.indptr[user + 1] - start
            positive = self.items[start + _uniform(draw_3B[1], count)]
            missing = _uniform(draw_3B[2], self.n_items - count)
            below = torch.searchsorted(self.keys, user * (self.n_items + 1) + missing, right=True) - start
            return Triplets(user, positive.long(), missing + below)


def _keys(train: Csr, n_items: int) -> npt.NDArray[np.int64]:
    owner = np.repeat(np.arange(len(train.counts), dtype=np.int64), train.counts)
    rank = np.arange(len(train.items), dtype=np.int64) - train.indptr[owner]
    keys: npt.NDArray[np.int64] = owner * (n_items + 1) + train.items - rank
    return keys


def _uniform(draw: Tensor, below: Tensor) -> Tensor:
    """Integers 0 ≤ x < below from draws in [0, 1); float64 keeps the bias under 2^-20 for a billion items."""
    return torch.minimum((draw * below).long(), below - 1)
