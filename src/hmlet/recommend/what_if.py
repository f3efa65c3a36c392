"""What a user or a newcomer would be recommended with other items, beside what they are recommended now."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hmlet.data.interactions import Id
from hmlet.ranking.evaluation import KNOWN, seen_items
from hmlet.ranking.top_k import top_k
from hmlet.recommend.recommender import Recommender

Indices = npt.NDArray[np.int64]


class Listed(NamedTuple):
    """Items by index, best first, and their scores."""

    items: list[int]
    scores: list[float]


def what_if(run: Recommender, who: Id | list[Id], add: list[Id], without: list[Id], k: int) -> tuple[Listed, Listed]:
    """The top-k now, and the top-k after the change. `who` is a user, or the items of a newcomer.

    An item that is taken away may be recommended again; one that is added no longer is.
    """
    added, taken = (run.data.items.indices(ids).astype(np.int64) for ids in (add, without))
    fold = run.fold_in
    if isinstance(who, list):
        own = np.unique(run.data.items.indices(who).astype(np.int64))
        changed = np.setdiff1d(np.union1d(own, added), taken)
        return _listed(run, fold.users([own]), own, k), _listed(run, fold.users([changed]), changed, k)
    user = int(run.data.users.indices([who])[0])
    known = seen_items(run.data, KNOWN).row(user).astype(np.int64)
    now = _listed(run, run.scored[0][torch.tensor([user])], known, k)
    if not len(added) and not len(taken):
        return now, now
    trained = np.setdiff1d(np.union1d(fold.own_items(user), added), taken)
    left_out = np.setdiff1d(np.union1d(known, added), taken)
    return now, _listed(run, fold.edited_user(user, [trained]), left_out, k)


def _listed(run: Recommender, one: Any, left_out: Indices, k: int) -> Listed:
    """The top-k of one user, given by its factor or history, without some items."""
    (found,) = top_k(one, run.scored[1], k, [left_out]).filled().each()
    return Listed(*found)
