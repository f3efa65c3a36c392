"""A data set that grows: more interactions, and the users and items that come with them.

Old users and items keep their indices, so that what a model learned of them stays in its rows. New ones follow.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hmlet.data.columns import GUESSES, ROLES, Columns
from hmlet.data.dataset import Dataset
from hmlet.data.dialect import Dialect, Skipping
from hmlet.data.interactions import Interactions, Ints, Vocabulary
from hmlet.data.preparation import readers
from hmlet.data.record import Provenance
from hmlet.data.splits import TRAIN
from hmlet.errors import DataError
from hmlet.system.spelling import option

log = logging.getLogger(__name__)
# Roles that a data set may do without, and what follows if the data set has them and new interactions do not.
VALUES = {"rating": "all its rows count", "weight": "each row counts once", "timestamp": "the new data has no times"}
OTHER_UNIT = 100  # times of one unit do not differ by such a factor


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
    skip_bad: bool = False,
) -> Interactions:
    """The interactions of a file or a frame that are to be added to a data set.

    Columns that are not named are those that the data set was prepared with, or guessed. Ratings below `min_rating`, by
    default the data set's own, are left out. A warning says if a source lacks the ratings, weights or times of the data
    set.
    """
    source = Path(source) if isinstance(source, str) else source
    shown = str(source) if isinstance(source, Path) else "the frame"
    min_rating = data.provenance.min_rating if min_rating is None else min_rating
    needed = _needed(data, min_rating, columns)
    useful = [role for role in ROLES if role not in VALUES or role in needed]
    before = {role: name for role, name in data.provenance.columns.items() if role in useful}
    inheriting, skipping = _Inheriting(**vars(columns), before=before, reasons=needed), Skipping(skip_bad)
    found: Interactions = readers().read([source], inheriting, dialect, min_rating, skipping=skipping)[0]
    without_columns = [name for name, each in readers().FORMATS.items() if not each.has_columns]
    if found.provenance.files[0].format in without_columns:
        for role, reason in needed.items():
            log.warning("%s, and %s has only users and items: %s", reason, shown, VALUES[role])
    _require_same_unit(found, data, shown)
    if skipping.rows:
        log.warning("%d rows were skipped, the first at %s, %s: %s", len(skipping.rows), *skipping.rows[0])
    named = {**data.provenance.columns, **columns.named}
    return replace(found, provenance=found.provenance.model_copy(update={"columns": named} if named else {}))


def _needed(data: Dataset, min_rating: float | None, columns: Columns) -> dict[str, str]:
    """The roles that new interactions should have a column for, and why."""
    reasons = {} if min_rating is None else {"rating": f"only ratings of at least {min_rating:g} count"}
    for role, values in (("weight", data.weight), ("timestamp", data.timestamp)):
        if values is not None:
            reasons[role] = f"the data set {data.name} has {role}s"
        elif getattr(columns, role) is not None:
            raise DataError(f"the data set {data.name} has no {role}s", f"leave {option(role)} out")
    return reasons


@dataclass(frozen=True)
class _Inheriting(Columns):
    """The columns of new interactions: those named, those that the data set was prepared with, or guessed ones."""

    before: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # why some roles should have a column

    def resolve(self, header: Sequence[str], shown: str, otherwise: str = "") -> dict[str, int]:
        """The position of each role's column."""
        known: dict[str, Any] = {
            role: name for role, name in self.before.items() if getattr(self, role) is None and name in header
        }
        columns = replace(self, **known, welcome=tuple(role for role in self.reasons if role in GUESSES))
        chosen = Columns.resolve(columns, header, shown, otherwise)
        for role, reason in self.reasons.items():
            if role not in chosen:
                lacking = f"{reason}, and {shown} has no column that looks like the {role}"
                log.warning("%s: %s, unless you name its column with %s", lacking, VALUES[role], option(role))
        return chosen


def _require_same_unit(new: Interactions, data: Dataset, shown: str) -> None:
    """Refuse times that are, for example, dates (microseconds) beside seconds: their sizes differ a thousandfold."""
    if new.timestamp is None or data.timestamp is None:
        return
    after, before = (float(np.median(np.abs(times.astype(np.float64)))) for times in (new.timestamp, data.timestamp))
    if not 1 / OTHER_UNIT < (after + 1) / (before + 1) < OTHER_UNIT:
        raise DataError(
            f"the times of {shown} are around {after:.0f}, and those of {data.name} around {before:.0f}",
            f"write {option('timestamp')} in the same unit (dates and fractional seconds become microseconds)",
        )


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
    kept = data.provenance.model_dump(include={"min_rating", "columns"}, exclude_unset=True)
    provenance = Provenance(derived_from=f"{data.name} {data.fingerprint}", rows=len(data), split="none", **kept)
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
