"""Factors to top-k: the one ranking function of evaluation, export and serving.

Scores are exact: float64 dot products of the stored float32 factors, ties going to the smaller item. The order
therefore does not depend on how many users are ranked together, on the device or on its matrix library.

Legend: B users ranked together, I items, F factor size, K results, C candidates, G groups of items, P items in a pool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Indices = npt.NDArray[np.int64]
NO_ITEM = -1  # fills a row that has fewer than K items left
GROUP = 16  # items that compete in the first of two rounds on CPU


class Prepared(NamedTuple):
    """What every ranking of the same items needs of them: for those who rank again and again."""

    items_FI: Tensor  # the factors as a CPU's matrix product reads them soonest
    longest: Tensor  # the largest norm of an item's factor

    @classmethod
    def of(cls, items_IF: Tensor) -> Prepared:
        items_FI = items_IF.T.contiguous() if items_IF.device.type == "cpu" else items_IF.T
        return cls(items_FI, _longest(items_IF))


class Ranked(NamedTuple):
    """Items in descending order of score; NO_ITEM with score -inf where nothing is left."""

    items_BK: Tensor  # int64
    scores_BK: Tensor  # float64


def top_k(
    users_BF: Tensor,
    items_IF: Tensor,
    k: int,
    seen: tuple[Tensor, Tensor] | None = None,
    allowed_I: Tensor | None = None,
    prepared: Prepared | None = None,
) -> Ranked:
    """The k best items of each user, without the `seen` (row, item) pairs and the items that are not allowed.

    A float32 matrix product proposes candidates and float64 decides among them. Where the bound on float32's error
    leaves open whether a candidate was missed, the row is ranked in float64 altogether. `prepared` is
    Prepared.of(items_IF), and only saves time.
    """
    n_items = len(items_IF)
    k = min(k, n_items)
    scores_BI = users_BF @ (items_IF.T if prepared is None else prepared.items_FI)
    _exclude(scores_BI, seen, allowed_I)
    candidates = _candidates(n_items, k)
    rough_BC, items_BC = _largest(scores_BI, candidates)
    ranked = _decide(users_BF, items_IF, rough_BC, items_BC, k)
    if candidates == n_items:
        return ranked
    longest = _longest(items_IF) if prepared is None else prepared.longest
    missed_B = rough_BC[:, -1].double() + _rounding(users_BF, longest) >= ranked.scores_BK[:, -1]
    missed_B &= rough_BC[:, -1] > -torch.inf
    for row in missed_B.nonzero().flatten().tolist():
        exact = _decide(users_BF[row : row + 1], items_IF, scores_BI[row : row + 1], None, k)
        ranked.items_BK[row], ranked.scores_BK[row] = exact.items_BK[0], exact.scores_BK[0]
    return ranked


def candidate_bytes(n_items: int, factor_size: int, k: int) -> int:
    """What top_k holds at once for each user beside the scores: the candidates' factors, in float32 and float64."""
    return 20 * _candidates(n_items, min(k, n_items)) * factor_size


def _candidates(n_items: int, k: int) -> int:
    return min(n_items, k + max(12, k // 4))


def allowed_items(n_items: int, allow: Indices | None = None, deny: Indices | None = None) -> Tensor | None:
    """Which items may be recommended: those of `allow` (all without it) that are not of `deny`. None is all."""
    if allow is None and deny is None:
        return None
    allowed_I = torch.full((n_items,), allow is None)
    if allow is not None:
        allowed_I[torch.as_tensor(allow)] = True
    if deny is not None:
        allowed_I[torch.as_tensor(deny)] = False
    return allowed_I


def similar(factors_NF: Tensor, rows_B: Tensor, k: int) -> Ranked:
    """The k rows whose factors have the largest cosine with each of the given rows, which are left out themselves."""
    unit_NF = torch.nn.functional.normalize(factors_NF.float(), dim=1)
    itself = (torch.arange(len(rows_B), device=rows_B.device), rows_B)
    return top_k(unit_NF[rows_B], unit_NF, k, itself)


def _longest(items_IF: Tensor) -> Tensor:
    return items_IF.norm(dim=1).max() if len(items_IF) else items_IF.new_zeros(())


def _rounding(users_BF: Tensor, longest: Tensor) -> Tensor:
    """A bound on the error of each user's rough scores: of rounding, and of products too small for the type."""
    size, kind = users_BF.shape[1], torch.finfo(users_BF.dtype)
    lost = (size * kind.tiny) ** 0.5  # a norm is short by at most this much where its squares vanish
    length_B = users_BF.norm(dim=1).double() + lost
    error_B: Tensor = size * (4 * kind.eps * length_B * (longest.double() + lost) + kind.tiny)
    return error_B


def _exclude(scores_BI: Tensor, seen: tuple[Tensor, Tensor] | None, allowed_I: Tensor | None) -> None:
    if seen is not None:
        scores_BI[seen] = -torch.inf
    if allowed_I is not None:
        scores_BI.masked_fill_(~allowed_I, -torch.inf)


def _largest(scores_BI: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest scores of each row, descending, and their items.

    On CPU in two rounds, because torch.topk walks a long row slowly: the best of each group of items, then all items of
    the `count` best groups. Each of these groups has an item at least as good as any that was left out.
    """
    groups = scores_BI.shape[1] // GROUP
    if scores_BI.device.type != "cpu" or groups < 4 * count:
        values, indices = torch.topk(scores_BI, count, dim=1)
        return values, indices
    grouped = groups * GROUP
    best_BG = scores_BI[:, :grouped].view(-1, GROUP, groups).amax(dim=1)
    group_BC = best_BG.topk(count, dim=1, sorted=False).indices
    items_BP = (group_BC[:, :, None] + torch.arange(0, grouped, groups)).flatten(1)
    rest = torch.arange(grouped, scores_BI.shape[1]).expand(len(scores_BI), -1)
    items_BP = torch.cat([items_BP, rest], dim=1)
    values, place = scores_BI.gather(1, items_BP).topk(count, dim=1)
    return values, items_BP.gather(1, place)


def _decide(users_BF: Tensor, items_IF: Tensor, rough_BC: Tensor, items_BC: Tensor | None, k: int) -> Ranked:
    """The k best of the candidates (all items when None) by float64 score, then by item."""
    if items_BC is None:
        exact_BC = (items_IF.double() * users_BF.double()).sum(dim=1)[None]
        items_BC = torch.arange(len(items_IF), device=items_IF.device)[None]
    else:
        items_BC, order_BC = items_BC.sort(dim=1)
        rough_BC = rough_BC.gather(1, order_BC)
        items_BCF = items_IF.index_select(0, items_BC.flatten()).view(*items_BC.shape, items_IF.shape[1])
        exact_BC = (items_BCF.double() * users_BF.double()[:, None, :]).sum(dim=2)
    exact_BC = exact_BC.masked_fill(rough_BC == -torch.inf, -torch.inf)
    scores_BC, order_BC = exact_BC.sort(dim=1, descending=True, stable=True)
    scores_BK, items_BK = scores_BC[:, :k].contiguous(), items_BC.gather(1, order_BC[:, :k])
    return Ranked(items_BK.masked_fill(scores_BK == -torch.inf, NO_ITEM), scores_BK)
