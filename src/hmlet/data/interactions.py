"""Interactions with contiguous integer ids, and the vocabularies that lead back to the user's own ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hmlet.data.record import Provenance
from hmlet.errors import ConfigError, DataError, UnknownId
from hmlet.system.tables import numbers

Ints = npt.NDArray[np.int32]
Id = int | str


@dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """The external ids of one side, in index order: int64 where the source had integers, strings otherwise."""

    kind: str  # "user" or "item": the word that messages use
    ids: pa.Array
    names: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Id]:
        """The ids in the order of their indices."""
        return iter(self.ids.to_pylist())

    def __repr__(self) -> str:
        first = [repr(value) for value in self.ids.slice(0, 3).to_pylist()] + ["…"] * (len(self) > 3)
        return f"<Vocabulary of {len(self):,} {self.kind}s: {', '.join(first)}>"

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {str(value): index for index, value in enumerate(self.ids.to_pylist())}

    def indices(self, ids: Iterable[Id]) -> Ints:
        """The indices of external ids; integers and their decimal spelling are the same id."""
        if isinstance(ids, str) or not isinstance(ids, Iterable):  # "12" would be read as 1 and 2
            raise ConfigError(f"{ids!r} is a single {self.kind}, but a list is needed", f"write [{ids!r}]")
        found = []
        for value in ids:
            index = self._positions.get(str(value))
            if index is None:
                raise UnknownId(f"{self.kind} {value!r} is not in the data set", self._suggestion(str(value)))
            found.append(index)
        return np.array(found, dtype=np.int32)

    def __contains__(self, value: object) -> bool:
        return str(value) in self._positions

    def find(self, value: Id) -> int | None:
        """The index of an external id; None if it is not there."""
        return self._positions.get(str(value))

    def id(self, index: int) -> Id:
        """The external id at an index."""
        value: Id = self.ids[index].as_py()
        return value

    def name(self, index: int) -> str | None:
        """The readable name at an index, where the data set has names."""
        if self.names is None:
            return None
        value: str | None = self.names[index].as_py()
        return value

    def ids_at(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> list[Id]:
        """The external ids at some indices, much faster than one by one."""
        found: list[Id] = (
            _taken(self.ids, indices)
            if self._numbers is None
            else self._numbers[np.asarray(indices, dtype=np.int64)].tolist()
        )
        return found

    @cached_property
    def _numbers(self) -> npt.NDArray[np.int64] | None:
        """The ids as an array, which is faster to take from, if they are integers."""
        return self.ids.to_numpy() if pa.types.is_integer(self.ids.type) else None

    def names_at(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> list[str | None] | None:
        """The readable names at some indices; None if the data set has no names."""
        return None if self.names is None else _taken(self.names, indices)

    def _suggestion(self, value: str) -> str:
        import difflib

        close = difflib.get_close_matches(value, self._positions, n=3, cutoff=0.6) if len(self) <= 200_000 else []
        return (
            f"did you mean {', '.join(map(repr, close))}?" if close else f"its {self.kind} ids look like {self.id(0)!r}"
        )


def _taken(values: pa.Array, indices: Sequence[int] | npt.NDArray[np.int64]) -> list[Any]:
    return values.take(pa.array(indices, type=pa.int64())).to_pylist()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Interactions:
    """Distinct (user, item) pairs as integers. Duplicates are merged before this; order carries no meaning."""

    user: Ints
    item: Ints
    users: Vocabulary
    items: Vocabulary
    timestamp: npt.NDArray[np.int64] | None = None
    provenance: Provenance = field(default_factory=Provenance)
    weight: npt.NDArray[np.float32] | None = None  # how much each counts, such as plays; positive

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """Some of the interactions; users and items that have none of them leave their vocabularies."""
        user, users = _compact(self.user[rows], self.users)
        item, items = _compact(self.item[rows], self.items)
        timestamp = None if self.timestamp is None else self.timestamp[rows]
        weight = None if self.weight is None else self.weight[rows]
        return replace(self, user=user, item=item, users=users, items=items, timestamp=timestamp, weight=weight)


def _compact(index: Ints, vocabulary: Vocabulary) -> tuple[Ints, Vocabulary]:
    used = np.bincount(index, minlength=len(vocabulary)) > 0
    if used.all():
        return index, vocabulary
    new_index = np.cumsum(used, dtype=np.int32) - np.int32(1)
    kept = numbers(np.flatnonzero(used))
    names = None if vocabulary.names is None else vocabulary.names.take(kept)
    return new_index[index], Vocabulary(vocabulary.kind, vocabulary.ids.take(kept), names)


def encode(kind: str, values: npt.NDArray[np.int64]) -> tuple[Ints, Vocabulary]:
    """The index of each integer id, and the vocabulary of those ids in numeric order."""
    ids, index = np.unique(values, return_inverse=True)
    return index.astype(np.int32), Vocabulary(kind, pa.array(ids))


class Merged(NamedTuple):
    """Distinct pairs and what belongs to each; a column that was not given is None."""

    user: Ints
    item: Ints
    part: npt.NDArray[np.uint8] | None
    timestamp: npt.NDArray[np.int64] | None
    weight: npt.NDArray[np.float32] | None


def merge(
    user: Ints,
    item: Ints,
    part: npt.NDArray[np.uint8] | None,
    timestamp: npt.NDArray[np.int64] | None,
    n_items: int,
    weight: npt.NDArray[np.float64] | None = None,
) -> Merged:
    """Each (user, item, part) once, sorted by user and item, with its latest timestamp and the sum of its weights.

    A pair in two parts comes out twice, side by side: the caller decides what that means.
    """
    key = user.astype(np.int64) * n_items + item
    if part is not None:
        key = key * 4 + part
    if timestamp is None and weight is None:
        key.sort()
    else:
        order = np.argsort(key)
        key = key[order]
    first = np.ones(len(key), dtype=bool)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    if timestamp is not None:
        timestamp = np.maximum.reduceat(timestamp[order], starts) if len(key) else timestamp
    summed = None
    if weight is not None:
        summed = _in_float32(np.add.reduceat(weight[order], starts) if len(key) else weight)
    key = key[first]
    if part is not None:
        part = (key & 3).astype(np.uint8)
        key >>= 2
    n_items = max(n_items, 1)
    return Merged((key // n_items).astype(np.int32), (key % n_items).astype(np.int32), part, timestamp, summed)


def _in_float32(weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        found = weight.astype(np.float32)
    bad = ~(np.isfinite(found) & (found > 0))
    if bad.any():
        raise DataError(
            f"an interaction has the weight {weight[bad][0]:g}, with its duplicate rows added up, and weights are "
            "positive 32-bit floats, up to 3.4e+38",
            "scale the weights",
        )
    return found
