"""What batches are drawn from: pairs of a user and items of theirs, and triplets with an item that they do not have.

Vectorised and exact: the negative of a triplet is never one of the user's training items.

Shapes: B entries, U users, I items, P items of one user, J items that all entries share.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.data import Csr
from hmlet.errors import DataError
from hmlet.graph.kernels import draw_key, launching, part
from hmlet.system.spelling import option

Draw = Literal["user", "root", "interaction", "weight"]
"""A user and then their items uniformly, users alike or by the root of how many items they have; or a training
interaction, uniformly or by its weight."""
FUSED = ("user", "interaction")  # what the kernel for CUDA knows


class Triplets(NamedTuple):
    """Users, an item of each in training, and an item that is not: B each."""

    user: Tensor
    positive: Tensor
    negative: Tensor

    def nodes(self, n_users: int) -> Tensor:
        return torch.cat([self.user, n_users + self.positive, n_users + self.negative])


class Pairs(NamedTuple):
    """Users (B), some training items of each (B × P), and the items that all of them are compared with, if drawn."""

    user: Tensor
    positive: Tensor
    others: Tensor | None = None  # J; None: all items

    def nodes(self, n_users: int) -> Tensor:
        return torch.cat([self.user, n_users + self.positive.flatten()])


def eligible_users(train: Csr, n_items: int) -> npt.NDArray[np.int64]:
    """The users whom an entry can have: one with no training item has no positive, one with all has no negative."""
    eligible = np.flatnonzero((train.counts > 0) & (train.counts < n_items))
    if len(eligible) == 0:
        raise DataError(
            "no user has both a training item and a negative item",
            "training needs users who interacted with some, but not all, of the items",
        )
    return eligible


def shares(counts: npt.NDArray[np.int64], draw: Draw) -> npt.NDArray[np.float64]:
    """How much users with so many items count each, all of them together 1."""
    power = {"user": 0.0, "root": 0.5}.get(draw, 1.0)
    each = counts.astype(np.float64) ** power
    of_all: npt.NDArray[np.float64] = each / each.sum()
    return of_all


class _Rows:
    """The training items of eligible users, and the ways to draw from them."""

    def __init__(self, train: Csr, n_items: int, device: torch.device | str = "cpu", draw: Draw = "user") -> None:
        eligible = eligible_users(train, n_items)
        self.n_items = n_items
        self.device = torch.device(device)
        self.eligible = torch.from_numpy(eligible).to(device)
        self.indptr = torch.from_numpy(train.indptr).to(device)
        self.items = torch.from_numpy(train.items).to(device)
        self.n_eligible = torch.tensor(len(eligible), device=device)
        self.weighed = _Weighed(train, eligible, self.device) if draw == "weight" else None
        rising = np.cumsum(shares(train.counts[eligible], draw)) if draw == "root" else None
        self.rising = None if rising is None else torch.from_numpy(rising).to(device)
        # Where each eligible user's interactions begin among those of all of them, and where the last one's end.
        bounds = np.concatenate([[0], np.cumsum(train.counts[eligible])]) if draw == "interaction" else None
        self.bounds = None if bounds is None else torch.from_numpy(bounds).to(device)

    def _user(self, draw_B: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Users, where their items begin, how many they are, and which of these was drawn if interactions are."""
        if self.weighed is not None:
            user_B, at_B = self.weighed.draw(draw_B)
            within_B = at_B - self.indptr[user_B]
        elif self.rising is not None:
            user_B, within_B = self.eligible[_by_share(draw_B, self.rising)], None
        elif self.bounds is None:
            user_B, within_B = self.eligible[_uniform(draw_B, self.n_eligible)], None
        else:
            drawn_B = _uniform(draw_B, self.bounds[-1])
            at_B = torch.searchsorted(self.bounds, drawn_B, right=True) - 1
            user_B, within_B = self.eligible[at_B], drawn_B - self.bounds[at_B]
        start_B = self.indptr[user_B]
        return user_B, start_B, self.indptr[user_B + 1] - start_B, within_B


class _Weighed:
    """Interactions of eligible users, each drawn as often as its weight says."""

    def __init__(self, train: Csr, eligible: npt.NDArray[np.int64], device: torch.device) -> None:
        if train.weights is None:
            raise DataError(
                "draw = weight needs weights, and this data has none", f"name their column with {option('weight')}"
            )
        owner = np.repeat(np.arange(len(train.counts)), train.counts)
        counts = np.isin(owner, eligible)
        total = np.cumsum(np.where(counts, train.weights, 0.0).astype(np.float64))
        self.owner = torch.from_numpy(owner).to(device)
        self.share = torch.from_numpy(total / total[-1]).to(device)  # of all interactions up to each

    def draw(self, draw_B: Tensor) -> tuple[Tensor, Tensor]:
        """Users, and the places of their interactions."""
        at_B = _by_share(draw_B, self.share)
        return self.owner[at_B], at_B


class PairSampler(_Rows):
    """Users with `positives` of their items each; the first of an interaction is its own, all others are uniform.

    With `others`, as many items beside them, each drawn uniformly from all items.
    """

    def __init__(
        self,
        train: Csr,
        n_items: int,
        device: torch.device | str = "cpu",
        draw: Draw = "user",
        *,
        positives: int,
        others: int,
    ) -> None:
        super().__init__(train, n_items, device, draw)
        self.positives, self.others = positives, others

    @staticmethod
    def users_of(size: int, positives: int) -> int:
        """How many users a batch of `size` pairs has."""
        return max(1, size // positives)

    def sample(self, size: int, generator: torch.Generator) -> Pairs:
        """`size` pairs, `positives` of each user."""
        shape = 1 + self.positives, self.users_of(size, self.positives)
        with part("sampling"):
            draw_RB = torch.rand(shape, generator=generator, device=self.device, dtype=torch.float64)
            user_B, start_B, count_B, within_B = self._user(draw_RB[0])
            places = [_uniform(draw_B, count_B) for draw_B in draw_RB[1:]]
            if within_B is not None:
                places[0] = within_B
            positive_BP = self.items[start_B[:, None] + torch.stack(places, dim=1)].long()
            others_J = None
            if self.others:
                others_J = torch.randint(self.n_items, (self.others,), generator=generator, device=self.device)
            return Pairs(user_B, positive_BP, others_J)


class TripletSampler(_Rows):
    """LightGCN's sampler: a user uniformly, then one of their items, then an item they do not have, each uniformly.

    The negative needs no rejection. In a user's sorted items a_0 < a_1 < …, exactly a_j - j items below a_j are
    missing, so the r-th missing item is r + #{j : a_j - j ≤ r}. A binary search finds the count: in Triton among the
    user's own items, elsewhere for a whole batch in the keys u (I + 1) + a_j - j, which ascend over all users.
    """

    def __init__(self, train: Csr, n_items: int, device: torch.device | str = "cpu", draw: Draw = "user") -> None:
        super().__init__(train, n_items, device, draw)
        self.largest = int(train.counts.max())
        fused = launching.triton_runs(self.items) and draw in FUSED
        self.keys = None if fused else torch.from_numpy(_keys(train, n_items)).to(device)

    def sample(self, size: int, generator: torch.Generator) -> Triplets:
        """`size` independent triplets."""
        with part("sampling"):
            if self.keys is None:
                from hmlet.graph.kernels.triton_sampling import triplets

                key = draw_key(generator, self.device)
                return Triplets(
                    *triplets(
                        self.eligible, self.bounds, self.indptr, self.items, self.n_items, self.largest, size, key
                    )
                )
            draw_3B = torch.rand(3, size, generator=generator, device=self.device, dtype=torch.float64)
            user, start, count, within = self._user(draw_3B[0])
            positive = self.items[start + (_uniform(draw_3B[1], count) if within is None else within)]
            missing = _uniform(draw_3B[2], self.n_items - count)
            below = torch.searchsorted(self.keys, user * (self.n_items + 1) + missing, right=True) - start
            return Triplets(user, positive.long(), missing + below)


def _keys(train: Csr, n_items: int) -> npt.NDArray[np.int64]:
    owner = np.repeat(np.arange(len(train.counts), dtype=np.int64), train.counts)
    rank = np.arange(len(train.items), dtype=np.int64) - train.indptr[owner]
    keys: npt.NDArray[np.int64] = owner * (n_items + 1) + train.items - rank
    return keys


def _by_share(draw_B: Tensor, rising: Tensor) -> Tensor:
    """Places from draws in [0, 1), each as often as the share by which `rising` grows there."""
    return torch.searchsorted(rising, draw_B, right=True).clamp_max(len(rising) - 1)


def _uniform(draw: Tensor, below: Tensor) -> Tensor:
    """Integers 0 ≤ x < below from draws in [0, 1); float64 keeps the bias under 2^-20 for a billion items."""
    return torch.minimum((draw * below).long(), below - 1)
