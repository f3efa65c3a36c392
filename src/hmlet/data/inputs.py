"""What people have, as a data set: frames, matrices, files, prepared directories and named sets."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypedDict, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hmlet.data.catalog import load
from hmlet.data.columns import Columns
from hmlet.data.dataset import PARTS, Dataset
from hmlet.data.dialect import Dialect
from hmlet.data.interactions import Id, Interactions, Vocabulary, merge
from hmlet.data.preparation import prepare, split_interactions
from hmlet.data.record import Provenance
from hmlet.data.splits import DEFAULT_SPLIT
from hmlet.errors import ConfigError, DataError
from hmlet.system.progress import Advance, silent


@runtime_checkable
class Frame(Protocol):
    """A table in memory: a pandas or Polars frame, an Arrow table, or what else speaks Arrow's C interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


@runtime_checkable
class SparseMatrix(Protocol):
    """A matrix or array of SciPy, in any of its sparse formats."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def tocoo(self, copy: bool = False) -> Any: ...


DataLike = Dataset | Frame | SparseMatrix | Path | str
"""A data set, or what becomes one: a frame, a matrix, an interaction file, a prepared directory, a named set."""


class Reading(TypedDict, total=False):
    """How interactions are read: options of `hmlet data prepare`, which documents them."""

    # The columns of each role.
    user: str | None
    item: str | None
    rating: str | None
    timestamp: str | None
    weight: str | None
    user_name: str | None
    item_name: str | None
    # How files are written.
    format: str | None
    delimiter: str | None
    columns: Sequence[str]
    decimal: str
    day_first: bool
    # Which rows are kept.
    skip_bad: bool
    min_rating: float | None


class Preparing(Reading, total=False):
    """How interactions become a data set: the options of `hmlet data prepare`, which documents them."""

    # Readable names from elsewhere: a file or a frame with an id and a name, or a mapping.
    user_names: Path | str | Frame | Mapping[Any, str] | None
    item_names: Path | str | Frame | Mapping[Any, str] | None
    # What is kept, and where it goes.
    core: int
    split: str
    seed: int
    name: str | None


_ROLES = [field.name for field in fields(Columns) if field.name in Preparing.__annotations__]
_DIALECT = [field.name for field in fields(Dialect)]


def prepared(sources: Sequence[Path | Frame], options: Preparing, parts: Sequence[int] | None = None) -> Dataset:
    """The data set made from files or frames; with `parts`, each source is all of one part."""
    columns, dialect, rest = reading(options, Preparing.__annotations__)
    return prepare(sources, columns=columns, dialect=dialect, parts=parts, **rest)


def reading(options: Mapping[str, Any], known: Collection[str]) -> tuple[Columns, Dialect, dict[str, Any]]:
    """The columns and the dialect that options name, and the other options, which must be `known` as well."""
    given = dict(options)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"use some of {', '.join(known)}"
            raise ConfigError(f"there is no option `{name}`", hint)
    columns = Columns(**{role: given.pop(role, None) for role in _ROLES})
    dialect = Dialect(**{name: given.pop(name) for name in _DIALECT if name in given})
    return columns, dialect, given


def parted(parts: Mapping[str, Frame | SparseMatrix | Path | str | None], options: Preparing) -> Dataset:
    """The data set whose parts are given, all as matrices, or each as a frame or a file."""
    if "split" in options:
        raise ConfigError("the parts are already split", "leave `split` out")
    given = {part: source for part, source in parts.items() if source is not None}
    sparse = {part: source for part, source in given.items() if isinstance(source, SparseMatrix)}
    if sparse:
        allowed = {"core", "name"}
        if len(sparse) < len(given) or set(options) - allowed:
            raise DataError(
                "parts that are matrices go with other matrices, and have no columns", "give every part in the same way"
            )
        return matrices(sparse, core=options.get("core", 0), name=options.get("name") or "matrix")
    sources = [Path(source) if isinstance(source, str) else source for source in given.values()]
    return prepared(cast("list[Path | Frame]", sources), {**options, "split": "files"}, [*map(PARTS.index, given)])


def matrices(
    parts: Mapping[str, SparseMatrix],
    users: Sequence[Id] | None = None,
    items: Sequence[Id] | None = None,
    *,
    core: int = 0,
    split: str = DEFAULT_SPLIT,
    seed: int = 0,
    name: str = "matrix",
) -> Dataset:
    """The data set of a matrix, or of one matrix for each part, with a row for each user and a column for each item.

    A matrix alone is split by `split`; several are the parts. Rows and columns without a value stay: indices are those
    of the matrix. Values are weights, unless all are 1.
    """
    for part in parts.values():
        if not isinstance(part, SparseMatrix):
            raise DataError(
                f"the matrix is a {type(part).__name__}, and not one of SciPy's sparse ones",
                "convert a dense array with scipy.sparse.csr_array(array), or give a frame to `Dataset.from_frame`",
            )
    found = [part.tocoo() for part in parts.values()]
    shape = found[0].shape
    if len(shape) != 2 or any(each.shape != shape for each in found):
        raise DataError(
            f"the matrices have the shapes {', '.join(str(each.shape) for each in found)}",
            "give each a row for every user and a column for every item",
        )
    user, item = (np.concatenate([getattr(each, side) for each in found]).astype(np.int32) for side in ("row", "col"))
    value = np.concatenate([np.asarray(each.data, dtype=np.float64) for each in found])
    code = np.repeat(np.array([PARTS.index(part) for part in parts], dtype=np.uint8), [each.nnz for each in found])
    stored = value != 0
    if not (np.isfinite(value) & (value >= 0)).all():
        raise DataError("the matrix has values that are negative or not finite", "keep the interactions that count")
    user, item, value, code = user[stored], item[stored], value[stored], code[stored]
    merged = merge(user, item, code if len(parts) > 1 else None, None, shape[1], value)
    provenance = Provenance(rows=len(user), below_min_rating=0, duplicates=len(user) - len(merged.user))
    interactions = Interactions(
        merged.user,
        merged.item,
        _numbered("user", shape[0], users),
        _numbered("item", shape[1], items),
        None,
        provenance,
        None if (value == 1).all() else merged.weight,
    )
    if not len(merged.user):
        raise DataError("the matrix has no interactions", "give one with values other than 0")
    return split_interactions(
        interactions, name, split="files" if len(parts) > 1 else split, seed=seed, core=core, part=merged.part
    )


def _numbered(kind: str, count: int, ids: Sequence[Id] | None) -> Vocabulary:
    """The ids of one side of a matrix: those given, or the numbers of its rows or columns."""
    if ids is None:
        return Vocabulary(kind, pa.array(np.arange(count, dtype=np.int64)))
    given = list(ids)
    distinct = len(set(map(str, given)))
    if len(given) != count or distinct != count:
        raise DataError(
            f"`{kind}s` has {len(given)} ids, {distinct} of them distinct, and the matrix has {count} {kind}s",
            "give each one id",
        )
    wrong = [each for each in given if each is None or isinstance(each, float | np.floating)]
    if wrong:
        raise DataError(f"`{kind}s` has the id {wrong[0]!r}", "make every id an integer or text")
    whole = all(isinstance(each, int | np.integer) and -(2**63) <= each < 2**63 for each in given)
    return Vocabulary(kind, pa.array([int(each) if whole else str(each) for each in given]))


def as_dataset(data: DataLike, advance: Advance = silent) -> Dataset:
    """The data set that an argument means. Files and frames are prepared with the defaults of `hmlet data prepare`."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Path | str):
        return load(data, advance=advance)
    if isinstance(data, SparseMatrix):
        return matrices({"train": data})
    return prepared([data], {})


def as_pairs(pairs: object, user: str | None = None, item: str | None = None) -> tuple[list[Id], list[Id]]:
    """The users and the items of pairs: a frame with both columns, an array with two, or an iterable of pairs."""
    if isinstance(pairs, Frame):
        from hmlet.data.readers.sources import as_polars

        frame = as_polars(pairs)
        chosen = Columns(user, item).resolve(frame.columns, "the frame")
        return frame[:, chosen["user"]].to_list(), frame[:, chosen["item"]].to_list()
    given = pairs if _is_listed(pairs) else [pairs]
    rows = [tuple(row) if _is_listed(row) else (row,) for row in cast("npt.NDArray[Any]", given)]
    if any(len(row) != 2 for row in rows):
        raise DataError("the pairs do not all have a user and an item", "give a list of two values each")
    return [row[0] for row in rows], [row[1] for row in rows]


def _is_listed(given: object) -> bool:
    """Whether it has several values, which a text has not."""
    return isinstance(given, Iterable) and not isinstance(given, str)
