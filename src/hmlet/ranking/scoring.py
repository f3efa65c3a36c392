"""What `top_k` ranks by: every item's score for a block of users, roughly for all items and exactly for a few.

A factor model scores by the dot product of a user's and an item's factor. An item-item model scores by the user's
history: each of its items adds its row of the weights W. Both are exact in float64 from the float32 numbers that a run
stores.

Legend: U users, B users ranked together, I items, F factor size, C candidates, E entries of all
histories.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from hmlet.data import Csr
from hmlet.graph.kernels import multiplies_bfloat16
from hmlet.models import ItemWeights


@dataclass(frozen=True, eq=False)
class Histories:
    """Each user's items, ascending: items_E[offsets[b]:offsets[b + 1]]."""

    items_E: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, users: Csr) -> Histories:
        return cls(torch.from_numpy(users.items.astype(np.int64)), torch.from_numpy(users.indptr))

    def to(self, device: torch.device) -> Histories:
        return Histories(self.items_E.to(device), self.offsets.to(device))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: Tensor | slice, /) -> Histories:
        first_B, count_B = self.offsets[:-1][rows], self.counts_B[rows]
        offsets = torch.cat([count_B.new_zeros(1), count_B.cumsum(0)])
        within_E = torch.arange(int(offsets[-1]), device=offsets.device)
        return Histories(self.items_E[within_E + (first_B - offsets[:-1]).repeat_interleave(count_B)], offsets)

    @property
    def counts_B(self) -> Tensor:
        return self.offsets.diff()

    @property
    def owner_E(self) -> Tensor:
        """The row of each entry."""
        return torch.arange(len(self), device=self.offsets.device).repeat_interleave(self.counts_B)


SUMMED = 256  # rows of the weights that are added in float64 together
Users = TypeVar("Users", Tensor, Histories)
"""One row for each user: its factor, or its history."""


class Scorer(ABC, Generic[Users]):
    """The items, as far as scoring them for users needs them."""

    n_items: int
    device: torch.device
    depth: int  # numbers that a score is the sum of, typically: a user's ranking holds this many for each candidate

    @abstractmethod
    def rough(self, users: Users, room: Tensor | None) -> Tensor:
        """Every item's score, in `room` where that saves time: B × I. Those in float64 are exact already."""

    @abstractmethod
    def exact(self, users: Users, items_BC: Tensor | None) -> Tensor:
        """The scores of some items (all of them without any) in float64: B × C."""

    @abstractmethod
    def rounding(self, users: Users) -> Tensor:
        """A bound on the error of each user's rough scores, in float64: B."""

    score_bytes: ClassVar[int] = 4  # of a rough score

    @staticmethod
    def candidates(k: int) -> int:
        """How many of the best rough scores to compute exactly for a list of k, so that few lists are in doubt."""
        return k + max(4, k // 4)

    @property
    def finer(self) -> Scorer[Users] | None:
        """A scorer with smaller errors, which ranks the lists that this one leaves in doubt; None if there is none."""
        return None

    def room(self, rows: int) -> Tensor | None:
        """Memory for `rows` users' rough scores, for a CPU to use again and again."""
        return None


class FactorScorer(Scorer[Tensor]):
    """Scores are dot products of a user's and an item's factor."""

    def __init__(self, items_IF: Tensor, *, repeatedly: bool = False) -> None:
        """Items by their factors. Who ranks them `repeatedly` has a CPU read them in the order that it prefers."""
        self.items_IF = items_IF
        self.n_items, self.depth = items_IF.shape
        self.device = items_IF.device
        room = scores_room(self.depth, items_IF) if repeatedly else None
        self.items_FI = items_IF.T if room is None else room.copy_(items_IF.T)

    @property
    def lost(self) -> float:
        """A norm in float32 is short by at most this much where its squares vanish."""
        return float((self.depth * torch.finfo(torch.float32).tiny) ** 0.5)

    @cached_property
    def longest(self) -> float:
        """The largest norm of an item's factor, and what it may lack."""
        return (float(self.items_IF.norm(dim=1).max()) if self.n_items else 0.0) + self.lost

    @cached_property
    def steepness(self) -> float:
        """The bound on a score's error, for each unit of the user's length."""
        return self.depth * 4 * torch.finfo(torch.float32).eps * self.longest

    def rough(self, users: Tensor, room: Tensor | None) -> Tensor:
        return torch.mm(users, self.items_FI, out=None if room is None else room[: len(users)])

    def exact(self, users: Tensor, items_BC: Tensor | None) -> Tensor:
        if items_BC is None:
            return torch.stack([(self.items_IF.double() * user_F).sum(dim=1) for user_F in users.double()])
        items_BCF = self.items_IF.index_select(0, items_BC.flatten()).view(*items_BC.shape, self.depth)
        exact_BC: Tensor = items_BCF.double().mul_(users.double()[:, None, :]).sum(dim=2)
        return exact_BC

    def rounding(self, users: Tensor) -> Tensor:
        """Of rounding, and of products too small for the type."""
        length_B = users.norm(dim=1).double() + self.lost
        error_B: Tensor = length_B * self.steepness + self.depth * torch.finfo(torch.float32).tiny
        return error_B

    def room(self, rows: int) -> Tensor | None:
        return scores_room(rows, self.items_IF)


class BriefScorer(FactorScorer):
    """The same with rough scores in bfloat16, for processors that multiply it: a quarter of the time of float32.

    Rounding adds a short vector to a factor, and the Cauchy-Schwarz inequality bounds what that does to a score.
    """

    score_bytes = 2

    def __init__(self, items_IF: Tensor) -> None:
        super().__init__(items_IF)
        self.brief_IF = items_IF.bfloat16()

    @cached_property
    def steepness(self) -> float:
        """For each unit of a user's length: what float32's sums lose, and the rounding of the user and of the items."""
        half_digit = torch.finfo(torch.bfloat16).eps / 2
        lost_by_items = (self.items_IF - self.brief_IF).norm(dim=1).max() if self.n_items else torch.zeros(())
        return super().steepness + half_digit * self.longest + (1 + half_digit) * (float(lost_by_items) + self.lost)

    @cached_property
    def finer(self) -> FactorScorer:
        return FactorScorer(self.items_IF)

    @staticmethod
    def candidates(k: int) -> int:
        return k + max(16, k // 2)

    def rough(self, users: Tensor, room: Tensor | None) -> Tensor:
        return torch.mm(users.bfloat16(), self.brief_IF.T, out=None if room is None else room[: len(users)])

    def room(self, rows: int) -> Tensor | None:
        return scores_room(rows, self.brief_IF)


def repeated_scorer(items_IF: Tensor) -> FactorScorer:
    """The fastest scorer for factors that are ranked again and again."""
    kind = repeated_kind(items_IF.device)
    return kind(items_IF) if kind is BriefScorer else kind(items_IF, repeatedly=True)


def repeated_kind(device: torch.device) -> type[FactorScorer]:
    """What `repeated_scorer` makes of factors on a device."""
    return BriefScorer if multiplies_bfloat16(device) else FactorScorer


def completed(users_BF: Tensor, depth: int) -> Tensor:
    """Users' factors with the column for what popularity adds, 1 for everyone, where they lack it: B × `depth`."""
    return torch.nn.functional.pad(users_BF, (0, depth - users_BF.shape[1]), value=1.0)


class HistoryScorer(Scorer[Histories]):
    """Scores are sums of weights: item j scores Σ W_ij over the user's items i. A user without items gets its mean
    score, as if every user were asked."""

    def __init__(self, n_items: int, histories: Histories) -> None:
        self.n_items = n_items
        self.depth = len(histories.items_E) // max(1, len(histories)) + 1
        self.users_I = torch.bincount(histories.items_E, minlength=n_items).double()
        self.n_users = max(1, len(histories))

    @cached_property
    @abstractmethod
    def mean_I(self) -> Tensor:
        """Every item's mean score, in float64."""

    def _completed(self, scores_BC: Tensor, users: Histories, items_BC: Tensor | None = None) -> Tensor:
        """Scores with those for users without items."""
        nobody_B = users.counts_B == 0
        if nobody_B.any():
            mean_BC = self.mean_I if items_BC is None else self.mean_I[items_BC[nobody_B]]
            scores_BC[nobody_B] = mean_BC.to(scores_BC.dtype)
        return scores_BC


class WeightScorer(HistoryScorer):
    """W is whole."""

    def __init__(self, weights_II: Tensor, histories: Histories) -> None:
        super().__init__(len(weights_II), histories)
        self.weights_II, self.device = weights_II, weights_II.device

    @cached_property
    def mean_I(self) -> Tensor:
        blocks = zip(torch.split(self.users_I, SUMMED), torch.split(self.weights_II, SUMMED), strict=True)
        sums_I = self.users_I.new_zeros(self.n_items)
        for users_S, weights_SI in blocks:
            sums_I += users_S @ weights_SI.double()
        return sums_I / self.n_users

    @cached_property
    def largest_I(self) -> Tensor:
        """The largest weight of each item, whatever its sign."""
        return self.weights_II.abs().amax(dim=1).double() if self.n_items else self.weights_II.new_zeros(0).double()

    def rough(self, users: Histories, room: Tensor | None) -> Tensor:
        sums_BI = embedding_bag(users.items_E, self.weights_II, users.offsets, mode="sum", include_last_offset=True)
        return self._completed(sums_BI, users)

    def exact(self, users: Histories, items_BC: Tensor | None) -> Tensor:
        if items_BC is None:
            return self._completed(_sums(self.weights_II[users.items_E].double(), users), users)
        sums_BC = _sums(self.weights_II[users.items_E[:, None], items_BC[users.owner_E]].double(), users)
        return self._completed(sums_BC, users, items_BC)

    def rounding(self, users: Histories) -> Tensor:
        """n numbers are added with an error of at most n ε times the sum of their magnitudes."""
        magnitude_B = _sums(self.largest_I[users.items_E][:, None], users)[:, 0]
        bound_B = 2 * torch.finfo(self.weights_II.dtype).eps * users.counts_B * magnitude_B
        nobody_B = users.counts_B == 0
        if nobody_B.any():
            bound_B[nobody_B] = torch.finfo(self.weights_II.dtype).eps * self.mean_I.abs().max()
        return bound_B


class SparseWeightScorer(HistoryScorer):
    """W is sparse, on the CPU: SciPy adds the weights in float64, in the order of the history."""

    device = torch.device("cpu")

    def __init__(self, weights: ItemWeights, histories: Histories) -> None:
        from scipy.sparse import csr_matrix

        super().__init__(len(weights.offsets) - 1, histories)
        values = weights.values.cpu().numpy().astype(np.float64)
        entries = values, weights.items.cpu().numpy(), weights.offsets.cpu().numpy()
        self.weights = csr_matrix(entries, shape=(self.n_items, self.n_items))

    @cached_property
    def mean_I(self) -> Tensor:
        return torch.from_numpy(self.weights.T @ self.users_I.numpy()) / self.n_users

    def rough(self, users: Histories, room: Tensor | None) -> Tensor:
        from scipy.sparse import csr_matrix

        entries = np.ones(len(users.items_E)), users.items_E.numpy(), users.offsets.numpy()
        sums_BI = csr_matrix(entries, shape=(len(users), self.n_items)) @ self.weights
        return self._completed(torch.from_numpy(sums_BI.toarray()), users)

    def exact(self, users: Histories, items_BC: Tensor | None) -> Tensor:
        scores_BI = self.rough(users, None)
        return scores_BI if items_BC is None else scores_BI.gather(1, items_BC)

    def rounding(self, users: Histories) -> Tensor:
        return torch.zeros(len(users), dtype=torch.float64)


Scored = tuple[Any, Scorer[Any]]
"""Users and what scores items for them: factors, or histories and weights."""


def weight_scorer(weights: ItemWeights, histories: Histories) -> Scorer[Histories]:
    """The scorer of an item-item model, whose weights are whole or sparse."""
    if weights.sparse:
        return SparseWeightScorer(weights, histories)
    return WeightScorer(weights.values, histories.to(weights.values.device))


def scored_by_weights(weights: ItemWeights, train: Csr) -> tuple[Histories, Scorer[Histories]]:
    """Users' histories and the scorer of an item-item model: where whole weights are, or on the CPU for sparse ones."""
    histories = Histories.of(train)
    scorer = weight_scorer(weights, histories)
    return histories.to(scorer.device), scorer


def _sums(values_EC: Tensor, users: Histories) -> Tensor:
    """Each user's sum over its entries, one after the other, so that equal sums are equal to the last bit: B × C."""
    if not len(values_EC):
        return values_EC.new_zeros(len(users), values_EC.shape[1])
    return torch.segment_reduce(values_EC, "sum", lengths=users.counts_B, axis=0, unsafe=True)


def scorer_of(items: Tensor | Scorer[Users], *, repeatedly: bool = False) -> Scorer[Users]:
    """Items as a scorer: a tensor is their factors, and its users are factors too."""
    if not isinstance(items, Tensor):
        return items
    return repeated_scorer(items) if repeatedly else FactorScorer(items)  # type: ignore[return-value]


def scores_room(rows: int, items_IF: Tensor) -> Tensor | None:
    """Memory for `rows` rows of I, for a CPU to use again and again; None on a GPU, whose allocator keeps its own.

    Rows begin on cache lines: a matrix product is the faster for it.
    """
    if items_IF.device.type != "cpu":
        return None
    line = 64 // items_IF.element_size()
    return items_IF.new_empty(rows, -(-len(items_IF) // line) * line)[:, : len(items_IF)]
