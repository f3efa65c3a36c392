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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from hmlet.data import Csr
from hmlet.graph.kernels import multiplies_bfloat16
from hmlet.models import ItemWeights

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


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
    def device(self) -> torch.device:
        return self.offsets.device

    @property
    def counts_B(self) -> Tensor:
        return self.offsets.diff()

    @property
    def owner_E(self) -> Tensor:
        """The row of each entry."""
        return torch.arange(len(self), device=self.offsets.device).repeat_interleave(self.counts_B)


SUMMED = 256  # rows of the weights that are added in float64 together
TINY = 2.0**-126  # the smallest normal number of float32 and bfloat16
OVERFLOW = 1e30  # the bound of scores that a float32 may not hold
FEW = 4  # users for whom one product costs a CPU less than one each
PIECE = 1 << 18  # numbers that a BLAS multiplies on the calling thread; waking others would cost more than it saves
Users = Any
"""One row for each user: its factor, of either library, or its history."""


class Scorer(ABC):
    """The items, as far as scoring them for users needs them.

    Users are one row each: factors or histories. On a CPU, factors, scores and bounds may be arrays of NumPy, whose
    steps cost less than PyTorch's where users are few.
    """

    n_items: int
    device: torch.device
    depth: int  # numbers that a score is the sum of, typically
    on_host: bool = False  # whether NumPy ranks
    finer: Scorer | None = None  # ranks users for whom bfloat16 leaves very many candidates

    @abstractmethod
    def rough(self, users: Any) -> tuple[Any, Any]:
        """Every item's score (B × I), and a bound on the error of each user's in float64 (B).

        The bound allows for one more rounding of a score, of the user's length times the longest item at most. It is
        OVERFLOW at least, or not a number, if one of the scores may be infinite or not a number.
        """

    @abstractmethod
    def exact(self, users: Any, row_P: Any, item_P: Any) -> Any:
        """The scores of some pairs of a user's row and an item in float64: P."""


class FactorScorer(Scorer):
    """Scores are dot products of a user's and an item's factor, in PyTorch on any device."""

    def __init__(self, items_IF: Tensor) -> None:
        self.items_IF = items_IF.detach()
        self.n_items, self.depth = items_IF.shape
        self.device = items_IF.device

    def rough(self, users: Users) -> tuple[Any, Any]:
        return torch.mm(users, self.items_IF.T), self.bound(users.double().norm(dim=1), self.steepness)

    def exact(self, users: Users, row_P: Any, item_P: Any) -> Any:
        users_PF = users.double().index_select(0, row_P)
        return self.items_IF.index_select(0, item_P).double().mul_(users_PF).sum(dim=1)

    def bound(self, length_B: Any, steepness: float) -> Any:
        """Of rounding, and of numbers too small for the type, which may count as 0."""
        return length_B * steepness + (self.lost * steepness + self.depth * TINY)

    @cached_property
    def lost(self) -> float:
        """A norm in float32 is short by at most this much where its squares vanish."""
        return float((self.depth * TINY) ** 0.5)

    @cached_property
    def longest(self) -> float:
        """The largest norm of an item's factor, and what it may lack."""
        return (float(self.items_IF.norm(dim=1).max()) if self.n_items else 0.0) + self.lost

    @cached_property
    def steepness(self) -> float:
        """The bound on a score's error, for each unit of the user's length: eight times what sums of F may lose."""
        return self.depth * 4 * torch.finfo(torch.float32).eps * self.longest


class HostFactorScorer(FactorScorer):
    """The same in NumPy on a CPU."""

    on_host = True

    def __init__(self, items_IF: Tensor) -> None:
        super().__init__(items_IF)
        self.items = self.items_IF.numpy()

    def rough(self, users: Users) -> tuple[Any, Any]:
        if len(users) < FEW:
            scores_BI = np.empty((len(users), self.n_items), dtype=np.float32)
            for user_F, scores_I in zip(users, scores_BI, strict=True):
                _multiply(self.items, user_F, scores_I)
        else:
            scores_BI = torch.mm(torch.from_numpy(users), self.items_IF.T).numpy()
        return scores_BI, self.bound(_lengths(users), self.steepness)

    def exact(self, users: Users, row_P: Any, item_P: Any) -> Any:
        users_PF = users.astype(np.float64).take(row_P, axis=0)
        return np.add.reduce(self.items.take(item_P, axis=0) * users_PF, axis=1)


class BriefScorer(HostFactorScorer):
    """The same with rough scores in bfloat16 for several users, for processors that multiply it: a quarter of the time
    of float32."""

    def __init__(self, items_IF: Tensor) -> None:
        super().__init__(items_IF)
        self.finer = HostFactorScorer(items_IF)

    def rough(self, users: Users) -> tuple[Any, Any]:
        if len(users) == 1:
            return super().rough(users)
        scores_BI = torch.mm(torch.from_numpy(users).bfloat16(), self.brief_IF.T)
        return scores_BI, self.bound(_lengths(users), self.brief_steepness)

    @cached_property
    def brief_IF(self) -> Tensor:
        return self.items_IF.bfloat16()

    @cached_property
    def brief_steepness(self) -> float:
        """Rounding adds at most half a digit to a user's factor, to an item's, and to the score, which the
        Cauchy-Schwarz inequality bounds by the product of their lengths."""
        half_digit = torch.finfo(torch.bfloat16).eps / 2
        steepness = self.steepness + 3 * half_digit * (1 + 2 * half_digit) * self.longest
        return max(steepness, OVERFLOW / 1e38)  # of float32, whose largest numbers bfloat16 cannot hold


def _lengths(users_BF: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide_BF = users_BF.astype(np.float64)
    lengths_B: npt.NDArray[np.float64] = np.sqrt(np.vecdot(wide_BF, wide_BF))
    return lengths_B


def _multiply(
    items_IF: npt.NDArray[np.float32], user_F: npt.NDArray[np.float32], scores_I: npt.NDArray[np.float32]
) -> None:
    """Write the scores of all items for one user."""
    n_items, size = items_IF.shape
    rows = max(1, PIECE // size)
    pieces = n_items // rows
    whole = pieces * rows
    np.matmul(items_IF[:whole].reshape(pieces, rows, size), user_F, out=scores_I[:whole].reshape(pieces, rows))
    np.matmul(items_IF[whole:], user_F, out=scores_I[whole:])


def completed(users_BF: Tensor, depth: int) -> Tensor:
    """Users' factors with the column for what popularity adds, 1 for everyone, where they lack it: B × `depth`."""
    return torch.nn.functional.pad(users_BF, (0, depth - users_BF.shape[1]), value=1.0)


class HistoryScorer(Scorer):
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

    def _completed(self, scores: Tensor, users: Histories, items_B: Tensor | None = None) -> Tensor:
        """Scores, of all items or of one for each user, with those for users without items."""
        nobody_B = users.counts_B == 0
        if nobody_B.any():
            scores[nobody_B] = (self.mean_I if items_B is None else self.mean_I[items_B[nobody_B]]).to(scores.dtype)
        return scores


class WeightScorer(HistoryScorer):
    """W is whole."""

    def __init__(self, weights_II: Tensor, histories: Histories) -> None:
        super().__init__(len(weights_II), histories)
        self.weights_II, self.device = weights_II, weights_II.device
        self.on_host = self.device.type == "cpu"

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

    def rough(self, users: Users) -> tuple[Any, Any]:
        sums_BI = embedding_bag(users.items_E, self.weights_II, users.offsets, mode="sum", include_last_offset=True)
        return self._completed(sums_BI, users), self._error(users)

    def exact(self, users: Users, row_P: Any, item_P: Any) -> Any:
        asked, item_P = users[torch.as_tensor(row_P)], torch.as_tensor(item_P)
        sums_P = _sums(self.weights_II[asked.items_E, item_P[asked.owner_E]].double(), asked)
        return self._completed(sums_P, asked, item_P)

    def _error(self, users: Histories) -> Tensor:
        """n numbers are added with an error of at most n ε / 2 times the sum of their magnitudes."""
        magnitude_B = _sums(self.largest_I[users.items_E], users)
        bound_B = 2 * torch.finfo(self.weights_II.dtype).eps * users.counts_B * magnitude_B
        nobody_B = users.counts_B == 0
        if nobody_B.any():
            bound_B[nobody_B] = torch.finfo(self.weights_II.dtype).eps * self.mean_I.abs().max()
        return bound_B


class SparseWeightScorer(HistoryScorer):
    """W is sparse, on the CPU: SciPy adds the weights in float64, in the order of the history."""

    device, on_host = torch.device("cpu"), True

    def __init__(self, weights: ItemWeights, histories: Histories) -> None:
        from scipy.sparse import csr_matrix

        super().__init__(len(weights.offsets) - 1, histories)
        values = weights.values.cpu().numpy().astype(np.float64)
        entries = values, weights.items.cpu().numpy(), weights.offsets.cpu().numpy()
        self.weights = csr_matrix(entries, shape=(self.n_items, self.n_items))

    @cached_property
    def mean_I(self) -> Tensor:
        return torch.from_numpy(self.weights.T @ self.users_I.numpy()) / self.n_users

    def rough(self, users: Users) -> tuple[Any, Any]:
        """Exact already."""
        sums_BI = torch.from_numpy((_chosen(users, self.n_items) @ self.weights).toarray())
        return self._completed(sums_BI, users), np.zeros(len(users))

    def exact(self, users: Users, row_P: Any, item_P: Any) -> Any:
        asked = users[torch.from_numpy(row_P)]
        sums_PI = _chosen(asked, self.n_items) @ self.weights
        sums_P = torch.from_numpy(np.asarray(sums_PI[np.arange(len(asked)), item_P]).ravel())
        return self._completed(sums_P, asked, torch.from_numpy(item_P))


def _chosen(users: Histories, n_items: int) -> csr_matrix:
    """1 for each item of each user: B × I."""
    from scipy.sparse import csr_matrix

    entries = np.ones(len(users.items_E)), users.items_E.numpy(), users.offsets.numpy()
    return csr_matrix(entries, shape=(len(users), n_items))


Scored = tuple[Any, Scorer]
"""Users and what scores items for them: factors, or histories and weights."""


def weight_scorer(weights: ItemWeights, histories: Histories) -> Scorer:
    """The scorer of an item-item model, whose weights are whole or sparse."""
    if weights.sparse:
        return SparseWeightScorer(weights, histories)
    return WeightScorer(weights.values, histories.to(weights.values.device))


def scored_by_weights(weights: ItemWeights, train: Csr) -> tuple[Histories, Scorer]:
    """Users' histories and the scorer of an item-item model: where whole weights are, or on the CPU for sparse ones."""
    histories = Histories.of(train)
    scorer = weight_scorer(weights, histories)
    return histories.to(scorer.device), scorer


def _sums(values_E: Tensor, users: Histories) -> Tensor:
    """Each user's sum over its entries, one after the other, so that equal sums are equal to the last bit: B."""
    if not len(values_E):
        return values_E.new_zeros(len(users))
    return torch.segment_reduce(values_E, "sum", lengths=users.counts_B, unsafe=True)


def factor_scorer(items_IF: Tensor, *, repeatedly: bool = False) -> FactorScorer:
    """The scorer of items' factors, on their device. Who ranks them once needs no copy in another type."""
    if items_IF.device.type != "cpu":
        return FactorScorer(items_IF)
    return (BriefScorer if repeatedly and multiplies_bfloat16(items_IF.device) else HostFactorScorer)(items_IF)


def rows_of(everyone: Users, users: npt.NDArray[np.int64]) -> Users:
    """Some users of all."""
    if isinstance(everyone, Tensor) and everyone.device.type == "cpu":
        return everyone.detach().numpy().take(users, axis=0)  # less than half the time that PyTorch takes for a few
    return everyone[torch.from_numpy(users).to(everyone.device)]
