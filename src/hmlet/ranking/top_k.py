"""Scores to top-k: the one ranking function of evaluation, export and serving.

Scores are exact: float64 sums over stored float32 numbers (ranking/scoring.py), ties going to the smaller item. The
order therefore does not depend on how many users are ranked together, on the device or on its matrix library.

Rough scores propose, with a bound on their error. The k-th best item scores at least the k-th largest rough score less
the bound, so an item whose rough score is lower by twice the bound is not among the k best. Exact scores decide among
the others, and nothing is left to check.

A CPU ranks with NumPy: its steps cost less than PyTorch's, which matters for few users. A GPU takes the same steps with
PyTorch.

Legend: B users ranked together, I items, F factor size, K results, P pairs of a row and an item, G groups of items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.errors import ConfigError
from hmlet.ranking.scoring import OVERFLOW, Histories, Scorer, Users, factor_scorer
from hmlet.system.spelling import option

Indices = npt.NDArray[np.int64]
Seen = Sequence[npt.NDArray[Any]] | None
"""The indices of the items that each user already has."""
NO_ITEM = -1  # fills a row that has fewer than K items left
CACHED = 5 << 18  # bytes of rough scores that a CPU's cache keeps while it walks them a few times
GROUP = 16  # items that compete in the first of two rounds on CPU
EXACT_BYTES = 16 << 20  # what the exact scores of some pairs are computed from
LOWEST = {4: float(np.finfo(np.float32).min), 8: float(np.finfo(np.float64).min)}  # by bytes; what is excluded is lower


class Ranked(NamedTuple):
    """Items in descending order of score; NO_ITEM with score -inf where nothing is left."""

    items_BK: Tensor  # int64
    scores_BK: Tensor  # float64

    def filled(self) -> Lists:
        """The lists without the places that no item fills."""
        items, scores = self.items_BK.cpu().numpy(), self.scores_BK.cpu().numpy()
        filled = items != NO_ITEM
        if filled.all():
            return Lists(np.full(len(items), items.shape[1]), items.ravel(), scores.ravel())
        return Lists(filled.sum(axis=1), items[filled], scores[filled])


class Lists(NamedTuple):
    """Lists of several users, one after the other."""

    lengths: Indices  # of each user's list
    items: Indices  # best first
    scores: npt.NDArray[np.float64]

    @classmethod
    def joined(cls, parts: Sequence[Lists]) -> Lists:
        """The lists of several blocks of users."""
        if len(parts) == 1:
            return parts[0]
        nothing = cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
        return cls(*map(np.concatenate, zip(nothing, *parts, strict=True)))

    def each(self) -> Iterator[tuple[list[int], list[float]]]:
        """The items and scores of one user after the other."""
        items, scores = iter(self.items.tolist()), iter(self.scores.tolist())
        return ((list(islice(items, length)), list(islice(scores, length))) for length in self.lengths.tolist())


def top_k(
    users: Users,
    items: Tensor | Scorer,
    k: int,
    seen: Seen = None,
    allowed_I: Tensor | None = None,
) -> Ranked:
    """The k best items of each user, without those that each has `seen` and those that are not allowed.

    Users and items are factors, or histories and the weights that score them.
    """
    if not 0 < k < 2**63:
        raise ConfigError(f"k = {k} is not the length of a list", f"use {option('k', 20)}, say")
    scorer = factor_scorer(items) if isinstance(items, Tensor) else items
    k = min(k, scorer.n_items)
    if not len(users) or not k:
        empty = torch.empty(len(users), k, device=scorer.device)
        return Ranked(empty.long(), empty.double())
    if not scorer.on_host:
        with torch.no_grad():
            return _best_by_torch(users, scorer, *scorer.rough(users), k, seen, allowed_I)
    if isinstance(users, Tensor):
        users = users.detach().numpy()
    scores, error = scorer.rough(users)
    at_once = max(1, CACHED // (4 * scorer.n_items))
    if len(users) <= at_once:
        return Ranked(*map(torch.from_numpy, _best(users, scorer, scores, error, k, seen, allowed_I)))
    parts = []
    for start in range(0, len(users), at_once):
        rows = slice(start, start + at_once)
        own = None if seen is None else seen[rows]
        parts.append(_best(users[rows], scorer, scores[rows], error[rows], k, own, allowed_I))
    return Ranked(*(torch.from_numpy(np.concatenate(each)) for each in zip(*parts, strict=True)))


def _best(users: Any, scorer: Scorer, scores: Any, error: Any, k: int, seen: Seen, allowed_I: Any) -> tuple[Any, Any]:
    """The items and scores of each user's list.

    The k-th largest score comes from the best of each group of items, because no selection walks a long row as fast as
    a maximum does. It may be smaller than that of all items, and bounds it from below, which is what is needed.
    """
    scores, error = _array(scores), _array(error)
    rows, n_items = scores.shape
    strange = not error.max() < OVERFLOW
    if strange:
        unknown = ~(error < OVERFLOW)
        scores[unknown], error[unknown] = 0.0, np.inf
    if seen is not None:
        for own, scores_I in zip(seen, scores, strict=True):
            scores_I[own] = -np.inf
    if allowed_I is not None:
        scores[:, ~allowed_I.numpy()] = -np.inf
    size = max(1, min(GROUP, n_items // (4 * k)))
    groups = n_items // size
    best = np.maximum.reduce(scores[:, : groups * size].reshape(rows, size, groups), axis=1)
    best.partition(groups - k, axis=1)
    least = np.maximum(best[:, groups - k] - 2 * error, LOWEST[scores.itemsize]).astype(scores.dtype)
    row, item = np.divmod(np.flatnonzero(scores >= least[:, None]), n_items)
    counts = np.bincount(row, minlength=rows)
    crowded: list[int] = []
    if rows > 1 and counts.max() > _crowd(k):
        few = counts <= _crowd(k)
        crowded, kept = np.flatnonzero(~few).tolist(), few[row]
        row, item, counts = row[kept], item[kept], counts * few
    exact = scores[row, item] if scores.itemsize == 8 else _array(_exact(users, scorer, row, item))
    key = np.fmax(-exact, -np.inf) if strange else -exact  # what is not a number comes first
    order = np.lexsort((key, row))
    place = (counts.cumsum() - counts)[:, None] + np.arange(k)
    if counts.min() < k:
        item, exact, order = np.append(item, NO_ITEM), np.append(exact, -np.inf), np.append(order, len(order))
        place = np.where(np.arange(k) < counts[:, None], place, len(order) - 1)
    order = order.take(place)
    items, exact = item.take(order), exact.take(order)
    for at in crowded:
        one = slice(at, at + 1)
        items[one], exact[one] = top_k(users[one], scorer, k, None if seen is None else seen[one], allowed_I)
    return items, exact


def _best_by_torch(
    users: Users, scorer: Scorer, scores_BI: Tensor, error_B: Tensor, k: int, seen: Seen, allowed_I: Tensor | None
) -> Ranked:
    """The same in PyTorch, for a GPU."""
    unknown_B = ~(error_B < OVERFLOW)
    scores_BI.masked_fill_(unknown_B[:, None], 0.0)
    if seen is not None:
        row = np.arange(len(seen)).repeat([len(own) for own in seen])
        item = np.concatenate([np.asarray(own, dtype=np.int64) for own in seen])
        scores_BI[torch.from_numpy(row).to(scores_BI.device), torch.from_numpy(item).to(scores_BI.device)] = -torch.inf
    if allowed_I is not None:
        scores_BI.masked_fill_(~allowed_I, -torch.inf)
    kth_B = scores_BI.topk(k, dim=1, sorted=False).values.amin(dim=1)
    least_B = kth_B - 2 * error_B.masked_fill(unknown_B, torch.inf)
    least_B = least_B.clamp_min(LOWEST[scores_BI.element_size()]).to(scores_BI.dtype)
    row_P, item_P = (scores_BI >= least_B[:, None]).nonzero(as_tuple=True)
    counts_B = torch.bincount(row_P, minlength=len(scores_BI))
    few_B = (counts_B <= _crowd(k)) | (len(scores_BI) == 1)
    row_P, item_P, counts_B = row_P[few_B[row_P]], item_P[few_B[row_P]], counts_B * few_B
    exact_P = _exact(users, scorer, row_P, item_P)
    place_P = torch.arange(len(row_P), device=row_P.device) - (counts_B.cumsum(0) - counts_B)[row_P]
    shape = len(scores_BI), max(k, int(counts_B.max()))
    scores_BC, items_BC = exact_P.new_full(shape, -torch.inf), item_P.new_full(shape, NO_ITEM)
    scores_BC[row_P, place_P], items_BC[row_P, place_P] = exact_P, item_P
    scores_BC, order_BC = scores_BC.sort(dim=1, descending=True, stable=True)
    ranked = Ranked(items_BC.gather(1, order_BC[:, :k]), scores_BC[:, :k].contiguous())
    for at in (~few_B).nonzero().flatten().tolist():
        one = slice(at, at + 1)
        alone = top_k(users[one], scorer, k, None if seen is None else seen[one], allowed_I)
        ranked.items_BK[one], ranked.scores_BK[one] = alone
    return ranked


def _crowd(k: int) -> int:
    """A user with more candidates than this is ranked alone: by better rough scores where the scorer has them for one
    user, and in memory that does not grow with the number of such users."""
    return 8 * k + 256


def _exact(users: Any, scorer: Scorer, row_P: Any, item_P: Any) -> Any:
    """The exact scores of pairs, in pieces that bound the memory."""
    together = max(1, EXACT_BYTES // (20 * scorer.depth))
    if len(row_P) <= together:
        return scorer.exact(users, row_P, item_P)
    pieces = [slice(start, start + together) for start in range(0, len(row_P), together)]
    return torch.cat([torch.as_tensor(scorer.exact(users, row_P[each], item_P[each])) for each in pieces])


def _array(values: Any) -> npt.NDArray[Any]:
    """Numbers of either library as NumPy's, which has no bfloat16."""
    if isinstance(values, np.ndarray):
        return values
    found: npt.NDArray[Any] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return found


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
    return top_k(unit_NF[rows_B], unit_NF, k, list(rows_B.numpy()[:, None]))


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
