"""Scores to top-k: the one ranking function of evaluation, export and serving.

Scores are exact: float64 sums over stored float32 numbers (ranking/scoring.py), ties going to the smaller item. The
order therefore does not depend on how many users are ranked together, on the device or on its matrix library.

Legend: B users ranked together, I items, F factor size, K results, C candidates, G groups of items, P items in a pool.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.errors import ConfigError
from hmlet.ranking.scoring import Histories, Scorer, Users, scorer_of
from hmlet.system.spelling import option

Indices = npt.NDArray[np.int64]
NO_ITEM = -1  # fills a row that has fewer than K items left
MORE = 3  # times as many candidates where as many as usual leave a list in doubt, for as many times fewer users at once
GROUP = 16  # items that compete in the first of two rounds on CPU


class Ranked(NamedTuple):
    """Items in descending order of score; NO_ITEM with score -inf where nothing is left."""

    items_BK: Tensor  # int64
    scores_BK: Tensor  # float64


@torch.no_grad()  # here, because each thread has a mode of its own
def top_k(
    users: Users,
    items: Tensor | Scorer[Users],
    k: int,
    seen: tuple[Tensor, Tensor] | None = None,
    allowed_I: Tensor | None = None,
    room: Tensor | None = None,
) -> Ranked:
    """The k best items of each user, without the `seen` (row, item) pairs and the items that are not allowed.

    Users and items are factors, or histories and the weights that score them. Rough scores propose candidates and
    float64 decides among them. Where the bound on float32's error leaves open whether a candidate was missed, the row
    is ranked in float64 altogether. `room` is the scorer's, for at least B rows; it only saves time.
    """
    if not 0 < k < 2**63:
        raise ConfigError(f"k = {k} is not the length of a list", f"use {option('k', 20)}, say")
    scorer = scorer_of(items)
    scores_BI = scorer.rough(users, room)
    _exclude(scores_BI, seen, allowed_I)
    k = min(k, scorer.n_items)
    return _ranked(users, scorer, scores_BI, k, scorer.candidates(k))


def _ranked(users: Users, scorer: Scorer[Users], scores_BI: Tensor, k: int, candidates: int) -> Ranked:
    """The k best items of each user by their exact scores. The rough ones are -inf where an item is excluded."""
    candidates = min(scorer.n_items, candidates)
    items_BC = _largest(scores_BI, candidates)
    rough_BC = scores_BI.gather(1, items_BC)
    are_exact = scores_BI.dtype == torch.float64
    ranked = _decide(rough_BC if are_exact else scorer.exact(users, items_BC), rough_BC, items_BC, k)
    if candidates == scorer.n_items:
        return ranked
    least_B = rough_BC.amin(dim=1).double()
    error_B = scorer.rounding(users) + least_B.abs() * torch.finfo(scores_BI.dtype).eps  # the sum, and its last digit
    certain_B = (least_B + error_B < ranked.scores_BK[:, -1]) | (least_B == -torch.inf)
    if not certain_B.all():  # NaN, where a number is too large for the type, is not certain either
        missed_M = (~certain_B).nonzero().flatten()
        first = candidates == scorer.candidates(k)
        for part_P in torch.split(missed_M, max(1, len(users) // MORE) if first else len(missed_M)):
            doubtful, rough_PI = users[part_P], scores_BI[part_P]
            ranked.items_BK[part_P], ranked.scores_BK[part_P] = (
                _ranked(doubtful, scorer, rough_PI, k, MORE * candidates)
                if first
                else _ranked_closely(doubtful, scorer, rough_PI == -torch.inf, k)
            )
    return ranked


def _ranked_closely(users: Users, scorer: Scorer[Users], excluded_MI: Tensor, k: int) -> Ranked:
    """The k best items of users whom the rough scores leave in doubt: by finer ones, or by exact scores of all."""
    if (finer := scorer.finer) is not None:
        scores_MI = finer.rough(users, None).masked_fill_(excluded_MI, -torch.inf)
        return _ranked(users, finer, scores_MI, k, finer.candidates(k))
    every_1I = torch.arange(scorer.n_items, device=scorer.device)[None]
    rows = []
    for row, excluded_I in enumerate(excluded_MI):
        exact_1I = scorer.exact(users[row : row + 1], None)
        rough_1I = exact_1I.masked_fill(excluded_I, -torch.inf)
        rows.append(_decide(exact_1I, rough_1I, every_1I, k))
    return Ranked(*(torch.cat(each) for each in zip(*rows, strict=True)))


def candidate_bytes(n_items: int, depth: int, k: int, kind: type[Scorer[Any]] = Scorer) -> int:
    """What top_k holds at once for each user beside the scores: what each candidate's score is the sum of, such as its
    factor, in float32 and float64. A kind of scorer says how many candidates there are."""
    return 12 * min(n_items, kind.candidates(k)) * depth


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


def similar_histories(users: Histories, rows_B: Tensor, k: int) -> Ranked:
    """The k users whose items have the largest cosine with those of each given user, who is left out."""
    length_U = users.counts_B.double().sqrt()
    cosines = []
    for own, row in zip((users[row : row + 1] for row in rows_B.tolist()), rows_B.tolist(), strict=True):
        shared_U = torch.zeros_like(length_U).index_add_(
            0, users.owner_E, torch.isin(users.items_E, own.items_E).double()
        )
        cosine_U = shared_U / (length_U * length_U[row]).clamp_min(1.0)
        cosine_U[row] = -torch.inf
        cosines.append(cosine_U)
    scores_BU, order_BU = torch.stack(cosines).sort(dim=1, descending=True, stable=True)
    scores_BK = scores_BU[:, :k]
    return Ranked(order_BU[:, :k].masked_fill(scores_BK == -torch.inf, NO_ITEM), scores_BK)


def _exclude(scores_BI: Tensor, seen: tuple[Tensor, Tensor] | None, allowed_I: Tensor | None) -> None:
    if seen is not None:
        scores_BI[seen] = -torch.inf
    if allowed_I is not None:
        scores_BI.masked_fill_(~allowed_I, -torch.inf)


def _largest(scores_BI: Tensor, count: int) -> Tensor:
    """The items of the `count` largest scores of each row, ascending.

    On CPU in two rounds, because no selection walks a long row as fast as a maximum does: the best of each group of
    items, then all items of the `count` best groups. Each of these groups has an item at least as good as any that was
    left out.
    """
    groups = scores_BI.shape[1] // GROUP
    if scores_BI.device.type != "cpu" or groups <= 4 * count:
        return _places(scores_BI, count).sort(dim=1).values
    grouped = groups * GROUP
    best_BG = scores_BI[:, :grouped].view(-1, GROUP, groups).amax(dim=1)
    items_BP = (_places(best_BG, count)[:, :, None] + torch.arange(0, grouped, groups)).flatten(1)
    rest = torch.arange(grouped, scores_BI.shape[1]).expand(len(scores_BI), -1)
    items_BP = torch.cat([items_BP, rest], dim=1)
    return items_BP.gather(1, _places(scores_BI.gather(1, items_BP), count)).sort(dim=1).values


def _places(values_BN: Tensor, count: int) -> Tensor:
    """The positions of the `count` largest values of each row, unordered."""
    length = values_BN.shape[1]
    if count == length:
        return torch.arange(length, device=values_BN.device).expand(values_BN.shape)
    return values_BN.topk(count, dim=1, sorted=False).indices


def _decide(exact_BC: Tensor, rough_BC: Tensor, items_BC: Tensor, k: int) -> Ranked:
    """The k best of the candidates, which ascend, by float64 score, then by item; rough scores say who is excluded."""
    exact_BC = exact_BC.masked_fill(rough_BC == -torch.inf, -torch.inf)
    scores_BC, order_BC = exact_BC.sort(dim=1, descending=True, stable=True)
    scores_BK, items_BK = scores_BC[:, :k].contiguous(), items_BC.gather(1, order_BC[:, :k])
    return Ranked(items_BK.masked_fill(scores_BK == -torch.inf, NO_ITEM), scores_BK)
