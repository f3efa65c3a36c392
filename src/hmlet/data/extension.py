"""A data set that grows: more interactions, and the users and items that come with them.

Old users and items keep their indices, so that what a model learned of them stays in its rows. New ones follow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from hmlet.data.columns import Columns
from hmlet.data.dataset import Dataset
from hmlet.data.dialect import Dialect
from hmlet.data.interactions import Interactions, Ints, Vocabulary
from hmlet.data.preparation import readers
from hmlet.data.record import Provenance
from hmlet.data.splits import TRAIN
from hmlet.errors import DataError


class Added(NamedTuple):
    """What an extension added to a data set."""

    interactions: int
    users: int
    items: int
    known: int  # new rows that were already in the data set, in any part


def new_interactions(
    source: Any,
    data: Dataset,
    *,
    columns: Columns = Columns(),  # noqa: B008 - frozen
    dialect: Dialect = Dialect(),  # noqa: B008 - frozen
    min_rating: float | None = None,
) -> Interactions:
    """The interactions of a file or a frame that are to be added to a data set.

    Ratings below `min_rating` are left out. Without it the data set's own threshold counts, if there are ratings.
    """
    needed = () if min_rating is None else ("rating",)
    min_rating = data.provenance.min_rating if min_rating is None else min_rating
    welcome = {"rating": min_rating is not None, "timestamp": data.timestamp is not None}
    columns = columns.guessing(*needed, welcome=tuple(role for role, useful in welcome.items() if useful))
    if isinstance(source, str | Path):
        source = Path(source)
    found, _ = readers().read([source], columns, dialect, min_rating)
    return cast("Interactions", found)


def extended(data: Dataset, new: Interactions) -> tuple[Dataset, Added]:
    """The data set with the new interactions in its training part, and what they added.

    A pair that the data set has already stays in its part, so the validation and test parts are what they were.
    """
    users, user = _extended(data.users, new.users)
    items, item = _extended(data.items, new.items)
    new_user, new_item = user[new.user], item[new.item]
    unknown = ~np.isin(_keys(new_user, new_item, len(items)), _keys(data.user, data.item, len(items)))
    added = Added(int(unknown.sum()), len(users) - data.n_users, len(items) - data.n_items, int((~unknown).sum()))
    if not added.interactions:
        raise DataError(f"all {added.known:,} new interactions are already in {data.name}", "provide new ones")
    timestamp = None
    if data.timestamp is not None and new.timestamp is not None:
        timestamp = np.concatenate([data.timestamp, new.timestamp[unknown]])
    interactions = Interactions(
        np.concatenate([data.user, new_user[unknown]]),
        np.concatenate([data.item, new_item[unknown]]),
        users,
        items,
        timestamp,
        new.provenance.model_copy(update=_provenance(data)),
        _weight(data, new, unknown),
    )
    part = np.concatenate([data.parts, np.full(added.interactions, TRAIN)])
    return Dataset(data.name, interactions, part), added


def everything_trains(data: Dataset) -> Dataset:
    """The same interactions, all of them in the training part: nothing is left to evaluate on."""
    provenance = Provenance(derived_from=f"{data.name} {data.fingerprint}", rows=len(data), split="none")
    interactions = Interactions(data.user, data.item, data.users, data.items, data.timestamp, provenance, data.weight)
    return Dataset(data.name, interactions, np.full(len(data), TRAIN))


def _weight(
    data: Dataset, new: Interactions, unknown: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.float32]] | None:
    """The weights of an extended data set, if the old one has any; a new interaction without one counts once."""
    if data.weight is None:
        return None
    added = np.ones(len(unknown), dtype=np.float32) if new.weight is None else new.weight
    return np.concatenate([data.weight, added[unknown]])


def _provenance(data: Dataset) -> dict[str, object]:
    """What an extended data set says of the old one; it is not a named set any more."""
    before = data.provenance
    return {"extends": f"{data.name} {data.fingerprint}", "min_rating": before.min_rating, "split": before.split}


def _keys(user: Ints, item: Ints, n_items: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A number for each pair."""
    return user.astype(np.int64) * n_items + item


def _extended(old: Vocabulary, new: Vocabulary) -> tuple[Vocabulary, Ints]:
    """The old ids with the unknown new ones behind them, and the index of each new id among all.

    Integers stay integers if both sides have them. Otherwise all ids become text.
    """
    text = old.ids.type != new.ids.type
    before, after = (each.ids.cast(pa.string()) if text else each.ids for each in (old, new))
    unknown = np.array([str(value) not in old for value in new.ids.to_pylist()], dtype=np.bool_)
    index = np.empty(len(new), dtype=np.int32)
    index[unknown] = len(old) + np.arange(unknown.sum(), dtype=np.int32)
    index[~unknown] = old.indices(str(value) for value in new.ids.filter(pa.array(~unknown)).to_pylist())
    ids = pa.concat_arrays([before, after.filter(pa.array(unknown))])
    return Vocabulary(old.kind, ids, _names(old, new, unknown)), index


def _names(old: Vocabulary, new: Vocabulary, unknown: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array | None:
    """The names of the extended vocabulary; None where neither side has any."""
    if old.names is None and new.names is None:
        return None
    before, after = (
        pa.nulls(len(each), pa.string()) if each.names is None else each.names.cast(pa.string()) for each in (old, new)
    )
    return pa.concat_arrays([before, after.filter(pa.array(unknown))])
