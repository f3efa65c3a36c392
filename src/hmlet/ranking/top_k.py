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

from hmlet.errors import ConfigError

Indices = npt.NDArray[np.int64]
NO_ITEM = -1  # fills a row that has fewer than K items left
GROUP = 16  # items that compete in the first of two rounds on CPU


class Prepared(NamedTuple):
    """What every ranking of the same items needs of them: for those who rank again and again."""

    items_FI: Tensor  # the factors as a CPU's matrix product reads them soonest
    longest: Tensor  # the largest norm of an item's factor

    @classmethod
    def of(cls, items_IF: Tensor) -> Prepared:
        room = scores_room(items_IF.shape[1], items_IF)
        return cls(items_IF.T if room is None else room.copy_(items_IF.T), _longest(items_IF))


class Ranked(NamedTuple):
    """Items in descending order of score; NO_ITEM with score -inf where nothing is left."""

    items_BK: Tensor  # int64
    scores_BK: Tensor  # float64


@torch.no_grad()  # here, because each thread has a mode of its own
def top_k(
    users_BF: Tensor,
    items_IF: Tensor,
    k: int,
    seen: tuple[Tensor, Tensor] | None = None,
    allowed_I: Tensor | None = None,
    prepared: Prepared | None = None,
    room: Tensor | None = None,
) -> Ranked:
    """The k best items of each user, without the `seen` (row, item) pairs and the items that are not allowed.

    A float32 matrix product proposes candidates and float64 decides among them. Where the bound on float32's error
    leaves open whether a candidate was missed, the row is ranked in float64 altogether. `prepared` is
    Prepared.of(items_IF), `room` has at least B rows of I for the scores; both only save time.
    """
    if not 0 < k < 2**63:
        raise ConfigError(f"k = {k} is not the length of a list", "use -k 20, say")
    n_items = len(items_IF)
    k = min(k, n_items)
    items_FI = items_IF.T if prepared is None else prepared.items_FI
    scores_BI = torch.mm(users_BF, items_FI, out=None if room is None else room[: len(users_BF)])
    _exclude(scores_BI, seen, allowed_I)
    candidates = _candidates(n_items, k)
    items_BC = _largest(scores_BI, candidates)
    rough_BC = scores_BI.gather(1, items_BC)
    ranked = _decide(users_BF, items_IF, rough_BC, items_BC, k)
    if candidates == n_items:
        return ranked
    longest = _longest(items_IF) if prepared is None else prepared.longest
    least_B = rough_BC.amin(dim=1)
    missed_B = least_B.double() + _rounding(users_BF, longest) >= ranked.scores_BK[:, -1]
    missed_B &= least_B > -torch.inf
    for row in missed_B.nonzero().flatten().tolist():
        exact = _decide(users_BF[row : row + 1], items_IF, scores_BI[row : row + 1], None, k)
        ranked.items_BK[row], ranked.scores_BK[row] = exact.items_BK[0], exact.scores_BK[0]
    return ranked


def scores_room(rows: int, items_IF: Tensor) -> Tensor | None:
    """Memory for `rows` rows of I, for a CPU to use again and again; None on a GPU, whose allocator keeps its own.

    Rows begin on cache lines: a matrix product is the faster for it.
    """
    if items_IF.device.type != "cpu":
        return None
    line = 64 // items_IF.element_size()
    return items_IF.new_empty(rows, -(-len(items_IF) // line) * line)[:, : len(items_IF)]


def candidate_bytes(n_items: int, factor_size: int, k: int) -> int:
    """What top_k holds at once for each user beside the scores: the candidates' factors, in float32 and float64."""
    return 12 * _candidates(n_items, min(k, n_items)) * factor_size


def _candidates(n_items: int, k: int) -> int:
    return min(n_items, k + max(4, k // 4))


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
    """Where the `count` largest values of each row stand, in no order."""
    length = values_BN.shape[1]
    if count == length:
        return torch.arange(length, device=values_BN.device).expand(values_BN.shape)
    if values_BN.device.type == "cpu":  # NumPy selects with vector instructions, and needs a third of torch.topk's time
        return torch.from_numpy(np.argpartition(values_BN.numpy(), length - count, axis=1)[:, length - count :])
    return values_BN.topk(count, dim=1, sorted=False).indices


def _decide(users_BF: Tensor, items_IF: Tensor, rough_BC: Tensor, items_BC: Tensor | None, k: int) -> Ranked:
    """The k best of the candidates, which ascend (all items when None), by float64 score, then by item."""
    if items_BC is None:
        exact_BC = (items_IF.double() * users_BF.double()).sum(dim=1)[None]
        items_BC = torch.arange(len(items_IF), device=items_IF.device)[None]
    else:
        items_BCF = items_IF.index_select(0, items_BC.flatten()).view(*items_BC.shape, items_IF.shape[1])
        exact_BC = items_BCF.double().mul_(users_BF.double()[:, None, :]).sum(dim=2)
    exact_BC = exact_BC.masked_fill(rough_BC == -torch.inf, -torch.inf)
    scores_BC, order_BC = exact_BC.sort(dim=1, descending=True, stable=True)
    scores_BK, items_BK = scores_BC[:, :k].contiguous(), items_BC.gather(1, order_BC[:, :k])
    return Ranked(items_BK.masked_fill(scores_BK == -torch.inf, NO_ITEM), scores_BK)
