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
GROUP = 16  # items of which a CPU first looks at the best
CROWD = 256  # candidates beyond 8 for each place: so many of them that users are ranked apart
EXACT_BYTES = 16 << 20  # what the exact scores of some pairs are computed from
LOWEST = {4: float(np.finfo(np.float32).min), 8: float(np.finfo(np.float64).min)}  # by bytes; excluded scores are lower


class Ranked(NamedTuple):
    """Items in descending order of score; NO_ITEM with score -inf where nothing is left. Of the library that ranks."""

    items_BK: Any  # int64
    scores_BK: Any  # float64

    def filled(self) -> Lists:
        """The lists without the places that no item fills."""
        items, scores = (each.cpu().numpy() if isinstance(each, Tensor) else each for each in self)
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


def top_k(users: Users, items: Tensor | Scorer, k: int, seen: Seen = None, allowed_I: Tensor | None = None) -> Ranked:
    """The k best items of each user, without those that each has `seen` and those that are not allowed.

    Users and items are factors, or histories and the weights that score them.
    """
    if not 0 < k < 2**63:
        raise ConfigError(f"k = {k} is not the length of a list", f"use {option('k', 20)}, say")
    scorer = factor_scorer(items) if isinstance(items, Tensor) else items
    k = min(k, scorer.n_items)
    if not len(users) or not k:
        empty = np.empty((len(users), k))
        return Ranked(empty.astype(np.int64), empty)
    if not scorer.on_host:
        with torch.no_grad():
            return _best_by_torch(users, scorer, *scorer.rough(users), k, seen, allowed_I)
    if isinstance(users, Tensor):
        users = users.detach().numpy()
    scores_BI, error_B = scorer.rough(users)
    at_once = max(1, CACHED // (4 * scorer.n_items))
    if len(users) <= at_once:
        return _best(users, scorer, scores_BI, error_B, k, seen, allowed_I)
    parts = []
    for start in range(0, len(users), at_once):
        rows = slice(start, start + at_once)
        own = None if seen is None else seen[rows]
        parts.append(_best(users[rows], scorer, scores_BI[rows], error_B[rows], k, own, allowed_I))
    return Ranked(*map(np.concatenate, zip(*parts, strict=True)))


def _best(
    users: Users, scorer: Scorer, scores_BI: Any, error_B: Any, k: int, seen: Seen, allowed_I: Tensor | None
) -> Ranked:
    """The k best items of each user on a CPU. Rough scores come from either library, and are overwritten."""
    brief = isinstance(scores_BI, Tensor) and scores_BI.dtype == torch.bfloat16
    if isinstance(scores_BI, Tensor):
        scores_BI = (scores_BI.float() if brief else scores_BI).numpy()
    (rows, n_items), error_B = scores_BI.shape, np.asarray(error_B)
    if not error_B.max() < OVERFLOW:  # not a number is not below either
        scores_BI[~(error_B < OVERFLOW)] = 0.0
        error_B = np.where(error_B < OVERFLOW, error_B, np.inf)
    if seen is not None:
        for scores_I, own in zip(scores_BI, seen, strict=True):
            scores_I[own] = -np.inf
    if allowed_I is not None:  # a minimum is much faster than a mask
        highest_I = (allowed_I.numpy().astype(scores_BI.dtype) - 0.5) * np.inf
        np.minimum(scores_BI, highest_I, out=scores_BI)
    # No selection walks a long row as fast as a maximum does, and the k-th largest of the best of each group of items
    # bounds that of all items from below.
    size = max(1, min(GROUP, n_items // (4 * k)))
    groups = n_items // size
    best_BG = np.maximum.reduce(scores_BI[:, : groups * size].reshape(rows, size, groups), axis=1)
    best_BG.partition(groups - k, axis=1)
    least_B = np.maximum(best_BG[:, groups - k] - 2 * error_B, LOWEST[scores_BI.itemsize]).astype(scores_BI.dtype)
    row_P, item_P = np.divmod((scores_BI >= least_B[:, None]).ravel().nonzero()[0], n_items)
    counts_B = np.bincount(row_P, minlength=rows)
    if brief and counts_B.max() > CROWD + 8 * k:
        return top_k(users, scorer.finer or scorer, k, seen, allowed_I)
    exact_P = np.asarray(_exact(users, scorer, scores_BI, row_P, item_P))
    order_P = np.lexsort((np.fmax(-exact_P, -np.inf), row_P))  # what is not a number comes first
    place_BK = (counts_B.cumsum() - counts_B)[:, None] + np.arange(k)
    if counts_B.min() < k:
        item_P, exact_P, order_P = np.append(item_P, NO_ITEM), np.append(exact_P, -np.inf), np.append(order_P, -1)
        place_BK[np.arange(k) >= counts_B[:, None]] = -1
    place_BK = order_P[place_BK]
    return Ranked(item_P[place_BK], exact_P[place_BK])


def _best_by_torch(
    users: Users, scorer: Scorer, scores_BI: Tensor, error_B: Tensor, k: int, seen: Seen, allowed_I: Tensor | None
) -> Ranked:
    """The same on a GPU, whose selection is fast, and whose operations are dear and work on rectangles."""
    scores_BI[~(error_B < OVERFLOW)] = 0.0
    error_B = error_B.where(error_B < OVERFLOW, torch.inf)
    if seen is not None:
        row = np.arange(len(seen)).repeat([len(own) for own in seen])
        item = np.concatenate([np.empty(0, np.int64), *seen])
        scores_BI[torch.from_numpy(row).to(scores_BI.device), torch.from_numpy(item).to(scores_BI.device)] = -torch.inf
    if allowed_I is not None:
        scores_BI.masked_fill_(~allowed_I, -torch.inf)
    kth_B = scores_BI.topk(k, dim=1, sorted=False).values.amin(dim=1)
    least_B = (kth_B - 2 * error_B).clamp_min(LOWEST[scores_BI.element_size()]).to(scores_BI.dtype)
    row_P, item_P = (scores_BI >= least_B[:, None]).nonzero(as_tuple=True)
    counts_B = torch.bincount(row_P, minlength=len(scores_BI))
    most = int(counts_B.max())
    if len(users) > 1 and most > CROWD + 8 * k:  # their memory does not grow with the users
        halves = slice(len(users) // 2), slice(len(users) // 2, None)
        parts = [top_k(users[rows], scorer, k, None if seen is None else seen[rows], allowed_I) for rows in halves]
        return Ranked(*map(torch.cat, zip(*parts, strict=True)))
    exact_P = _exact(users, scorer, scores_BI, row_P, item_P)
    place_P = torch.arange(len(row_P), device=row_P.device) - (counts_B.cumsum(0) - counts_B)[row_P]
    scores_BC = exact_P.new_full((len(scores_BI), max(k, most)), -torch.inf)
    items_BC = item_P.new_full(scores_BC.shape, NO_ITEM)
    scores_BC[row_P, place_P], items_BC[row_P, place_P] = exact_P, item_P
    scores_BC, order_BC = scores_BC.sort(dim=1, descending=True, stable=True)
    return Ranked(items_BC.gather(1, order_BC[:, :k]), scores_BC[:, :k].contiguous())


def _exact(users: Users, scorer: Scorer, scores_BI: Any, row_P: Any, item_P: Any) -> Any:
    """The exact scores of pairs, in pieces that bound the memory."""
    if scores_BI.itemsize == 8:
        return scores_BI[row_P, item_P]
    together = max(1, EXACT_BYTES // (20 * scorer.depth))
    if len(row_P) <= together:
        return scorer.exact(users, row_P, item_P)
    pieces = [slice(start, start + together) for start in range(0, len(row_P), together)]
    return torch.cat([torch.as_tensor(scorer.exact(users, row_P[each], item_P[each])) for each in pieces])


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
