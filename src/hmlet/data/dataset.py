"""A data set ready for training: interactions, each in one part, and the prepared directory that holds them."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hmlet.data.dialect import SKIPPED_FILE, SkippedRow, write_skipped
from hmlet.data.interactions import Id, Interactions, Ints, Vocabulary
from hmlet.data.record import (
    DATASET_VERSION,
    RECORD_FILE,
    DatasetRecord,
    Statistics,
    is_prepared,
    origin_of,
    read_record,
)
from hmlet.data.splits import DEFAULT_SPLIT
from hmlet.errors import DataError
from hmlet.system.files import keep, unfinished, unwritable
from hmlet.system.frames import Framed, html_table
from hmlet.system.outside import Content, Origin
from hmlet.system.spelling import option
from hmlet.system.tables import Column, numbers, read_table, texts

if TYPE_CHECKING:
    from hmlet.data.inputs import Frame, Preparing, SparseMatrix

PARTS = ("train", "valid", "test")
_INDEX, _TEXT = Column((pa.int32(),)), Column((pa.string(),))
_SIDE = {"index": _INDEX, "id": Column((pa.int64(), pa.string())), "name": replace(_TEXT, required=False, nulls=True)}
_TABLES = {
    "interactions.parquet": {
        "user": _INDEX,
        "item": _INDEX,
        "split": _TEXT,
        "timestamp": Column((pa.int64(),), required=False),
        "weight": Column((pa.float32(),), required=False),
    },
    "users.parquet": _SIDE,
    "items.parquet": _SIDE,
}
_OWN_FILES = {RECORD_FILE, SKIPPED_FILE, *_TABLES}


@dataclass(frozen=True)
class Csr:
    """For each user a sorted run of items: items[indptr[u]:indptr[u + 1]]."""

    indptr: npt.NDArray[np.int64]
    items: Ints
    weights: npt.NDArray[np.float32] | None = None  # of the items; None: all count alike

    def row(self, user: int) -> Ints:
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def rows(self, users: npt.NDArray[np.int64]) -> list[Ints]:
        """Each user's items, much faster than one by one."""
        bounds = zip(self.indptr.take(users).tolist(), self.indptr.take(users + 1).tolist(), strict=True)
        return [self.items[start:end] for start, end in bounds]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.diff(self.indptr)


class Dataset(Framed):
    """Interactions and the part (train, valid or test) of each, sorted by part, user and item.

    The order makes every part one slice and every part's rows per user a CSR without a copy.
    """

    def __init__(
        self, name: str, interactions: Interactions, part: npt.NDArray[np.uint8], path: Path | None = None
    ) -> None:
        order = _canonical_order(interactions, part)
        self.name = name
        self.path = path
        # What finds it again, from any working directory: a whole path, or a named set's name.
        self.reference = None if path is None else str(path.resolve())
        self.users = interactions.users
        self.items = interactions.items
        self.user: Ints = interactions.user[order]
        self.item: Ints = interactions.item[order]
        self.timestamp = None if interactions.timestamp is None else interactions.timestamp[order]
        self.weight = None if interactions.weight is None else interactions.weight[order]
        self.provenance = interactions.provenance
        self.skipped: Sequence[SkippedRow] = ()  # rows that were left out when this was prepared
        self._csr: dict[tuple[str, ...], Csr] = {}
        self._bounds = np.searchsorted(part[order], np.arange(len(PARTS) + 1, dtype=np.uint8))

    @classmethod
    def from_frame(cls, frame: Frame, **options: Unpack[Preparing]) -> Dataset:
        """The data set made from a pandas or Polars frame or an Arrow table: the twin of `hmlet data prepare`.

        Example: hmlet.Dataset.from_frame(ratings, user="userId", item="movieId", min_rating=4)

        `user`, `item` and the like are column names; user and item are guessed where they are not given. Any object
        with Arrow's `__arrow_c_stream__` is a frame.
        """
        from hmlet.data.inputs import prepared

        return prepared([frame], options)

    @classmethod
    def from_file(cls, *files: Path | str, **options: Unpack[Preparing]) -> Dataset:
        """The data set made from interaction files, which are read as one: the twin of `hmlet data prepare`.

        Example: hmlet.Dataset.from_file("ratings.csv", min_rating=4, core=10)
        """
        from hmlet.data.inputs import prepared

        for file in files:
            if not isinstance(file, str | os.PathLike):
                raise DataError(f"a {type(file).__name__} is not the path of a file", "use `Dataset.from_frame`")
        return prepared([Path(file) for file in files], options)

    @classmethod
    def from_parts(
        cls,
        train: Frame | SparseMatrix | Path | str,
        valid: Frame | SparseMatrix | Path | str | None = None,
        test: Frame | SparseMatrix | Path | str | None = None,
        **options: Unpack[Preparing],
    ) -> Dataset:
        """The data set whose parts are given, each as a frame, a file or a matrix: `--split files` for everything.

        Example: hmlet.Dataset.from_parts(train=train, test=test, user="userId", item="movieId")
        """
        from hmlet.data.inputs import parted

        return parted({"train": train, "valid": valid, "test": test}, options)

    @classmethod
    def from_matrix(
        cls,
        matrix: SparseMatrix,
        *,
        users: Sequence[Id] | None = None,
        items: Sequence[Id] | None = None,
        core: int = 0,
        split: str = DEFAULT_SPLIT,
        seed: int = 0,
        name: str = "matrix",
    ) -> Dataset:
        """The data set of a SciPy sparse matrix with a row for each user and a column for each item.

        Example: hmlet.Dataset.from_matrix(scipy.sparse.csr_array(plays), items=titles)

        Ids are `users` and `items`, or the numbers of rows and columns. Values other than 1 are weights.
        """
        from hmlet.data.inputs import matrices

        return matrices({"train": matrix}, users, items, core=core, split=split, seed=seed, name=name)

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_items(self) -> int:
        return len(self.items)

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        return f"<Dataset {self.name}: {self.n_users:,} users, {self.n_items:,} items, {len(self):,} interactions>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the counts, not the rows."""
        counts = {"users": self.n_users, "items": self.n_items, **{part: self.count(part) for part in PARTS}}
        return html_table(list(counts), [[f"{count:,}" for count in counts.values()]], escape(repr(self)))

    def to_arrow(self) -> pa.Table:
        """The interactions with their own ids: user, item, part and, if there are any, timestamp and weight."""
        part = np.repeat(np.array(PARTS), np.diff(self._bounds))
        columns = {
            "user": self.users.ids.take(pa.array(self.user)),
            "item": self.items.ids.take(pa.array(self.item)),
            "part": pa.array(part),
            "timestamp": self.timestamp,
            "weight": self.weight,
        }
        return pa.table({name: column for name, column in columns.items() if column is not None})

    def slice(self, part: str) -> slice:
        """Where a part's interactions lie in `user`, `item` and `timestamp`."""
        if part not in PARTS:
            raise DataError(f"there is no part {part!r}", f"use one of {', '.join(PARTS)}")
        at = PARTS.index(part)
        return slice(int(self._bounds[at]), int(self._bounds[at + 1]))

    def count(self, part: str) -> int:
        where = self.slice(part)
        return len(self.user[where])

    @property
    def parts(self) -> npt.NDArray[np.uint8]:
        """The part of each interaction, as an index into PARTS."""
        return np.repeat(np.arange(len(PARTS), dtype=np.uint8), np.diff(self._bounds))

    def csr(self, *parts: str) -> Csr:
        """Each user's items in one part, or in several together; made once, since serving asks at every request."""
        if parts not in self._csr:
            self._csr[parts] = self._make_csr(parts)
        return self._csr[parts]

    def _make_csr(self, parts: tuple[str, ...]) -> Csr:
        slices = [self.slice(part) for part in parts]

        def joined(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            found = [column[where] for where in slices]
            return np.concatenate(found) if len(found) > 1 else found[0]

        user, item, weight = joined(self.user), joined(self.item), None if self.weight is None else joined(self.weight)
        if len(slices) > 1:
            order = np.argsort(user.astype(np.int64) * self.n_items + item, kind="stable")
            user, item, weight = user[order], item[order], None if weight is None else weight[order]
        indptr = np.zeros(self.n_users + 1, dtype=np.int64)
        np.cumsum(np.bincount(user, minlength=self.n_users), out=indptr[1:])
        return Csr(indptr, item, weight)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the ids of both sides and each part's sorted pairs and weights: equal for equal data."""
        digest = hashlib.sha256(f"hmlet dataset {DATASET_VERSION} {self.n_users} {self.n_items}".encode())
        for vocabulary in (self.users, self.items):
            digest.update("\0".join(map(str, vocabulary.ids.to_pylist())).encode())
        for part in PARTS:
            where = self.slice(part)
            digest.update(f"{part} {self.count(part)}".encode())
            digest.update(np.ascontiguousarray(self.user[where], dtype="<i4").data)
            digest.update(np.ascontiguousarray(self.item[where], dtype="<i4").data)
            if self.weight is not None:
                digest.update(np.ascontiguousarray(self.weight[where], dtype="<f4").data)
        return digest.hexdigest()

    def statistics(self) -> Statistics:
        """The counts that `hmlet data stats` prints and the paper's table of data sets has."""
        cells = self.n_users * self.n_items
        return Statistics(
            name=self.name,
            users=self.n_users,
            items=self.n_items,
            interactions=len(self),
            density=len(self) / cells if cells else 0.0,
            sparsity_percent=100 * (1 - len(self) / cells) if cells else 100.0,
            train=self.count("train"),
            valid=self.count("valid"),
            test=self.count("test"),
            fingerprint=self.fingerprint,
        )

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the prepared directory under a temporary name and rename it: there is never half of one."""
        path = Path(path)
        _recover(path)
        check_target(path, overwrite=overwrite)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        except OSError as error:
            raise unwritable(path, error, DataError) from error
        try:
            with unfinished(temporary):
                self._write(temporary)
                os.chmod(temporary, 0o755)
                check_target(path, overwrite=overwrite)  # again: another process may have been quicker
                _put_in_place(temporary, path, overwrite=overwrite)
        except OSError as error:
            raise unwritable(path, error, DataError) from error
        return path

    def _write(self, directory: Path) -> None:
        part = pa.DictionaryArray.from_arrays(numbers(self.parts.view(np.int8)), texts(PARTS))
        columns = {"user": numbers(self.user), "item": numbers(self.item), "split": part}
        if self.timestamp is not None:
            columns["timestamp"] = numbers(self.timestamp)
        if self.weight is not None:
            columns["weight"] = numbers(self.weight)
        pq.write_table(pa.table(columns), directory / "interactions.parquet", compression="zstd")
        for vocabulary, name in ((self.users, "users.parquet"), (self.items, "items.parquet")):
            table = {"index": numbers(np.arange(len(vocabulary), dtype=np.int32)), "id": vocabulary.ids}
            if vocabulary.names is not None:
                table["name"] = vocabulary.names
            pq.write_table(pa.table(table), directory / name, compression="zstd")
        if self.skipped:
            write_skipped(self.skipped, directory / SKIPPED_FILE)
        record = {
            "format_version": DATASET_VERSION,
            **self.statistics().to_json(),
            "provenance": self.provenance,
            "checksums": {name: sha256(directory / name) for name in _TABLES},
        }
        DatasetRecord.model_validate(record).write(directory)

    @classmethod
    def load(cls, path: Path | str) -> Dataset:
        """A prepared directory, checked: format version, checksums, columns, ranges and the fingerprint."""
        path = Path(path)
        record = read_record(path)
        tables = {name: read_table(_content(path / name, record), columns) for name, columns in _TABLES.items()}
        users = _vocabulary("user", tables["users.parquet"], origin_of(path / "users.parquet"))
        items = _vocabulary("item", tables["items.parquet"], origin_of(path / "items.parquet"))
        table, origin = tables["interactions.parquet"], origin_of(path / "interactions.parquet")
        part = _part_codes(table["split"], origin)
        timestamp = _numbers(table["timestamp"]) if "timestamp" in table.column_names else None
        interactions = Interactions(
            _indices(table, "user", len(users), origin),
            _indices(table, "item", len(items), origin),
            users,
            items,
            timestamp,
            record.provenance,
            _numbers(table["weight"]) if "weight" in table.column_names else None,
        )
        _require_distinct(interactions, origin)
        if interactions.weight is not None and not (interactions.weight > 0).all():  # NaN is not, either
            raise origin.fault(": column 'weight': it has values that are not positive")
        dataset = cls(record.name, interactions, part, path)
        if dataset.fingerprint != record.fingerprint:
            raise DataError(f"{path} does not match the fingerprint in its dataset.json", "prepare the data again")
        _check_counts(dataset.statistics(), record, path)
        return dataset


def _put_in_place(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Rename a finished directory to its name. What may be overwritten is moved aside first, and comes back on failure;
    where nothing may be, the system refuses to rename it over another."""
    aside = temporary.with_name(temporary.name + ".old")
    replaces = overwrite and path.exists()
    if replaces:
        keep(temporary)  # a process that ends between the two renames leaves both directories, and not only the old one
        path.rename(aside)
    try:
        temporary.rename(path)
    except BaseException:
        if replaces and not path.exists():
            aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _recover(path: Path) -> None:
    """Bring back a directory that was moved aside by a process that ended before it could replace it."""
    for aside in path.parent.glob(f".{glob.escape(path.name)}.*.tmp.old"):
        if not path.exists():
            aside.rename(path)
            shutil.rmtree(aside.with_suffix(""), ignore_errors=True)  # what was to replace it


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse to write over anything but a prepared directory without other files, and over that only when asked."""
    if not path.exists():
        return
    if not is_prepared(path):
        raise DataError(f"{path} exists and is not a prepared directory", f"choose another {option('out')}")
    if not overwrite:
        raise DataError(
            f"{path} exists already",
            f"choose another {option('out')}, or pass {option('overwrite', True)} to replace it",
        )
    others = sorted({entry.name for entry in path.iterdir()} - _OWN_FILES)
    if others:
        raise DataError(
            f"{path} cannot be replaced: it also has {others[0]!r}, which is not part of a prepared directory",
            f"move that elsewhere, or choose another {option('out')}",
        )


def _content(path: Path, record: DatasetRecord) -> Content:
    """The bytes of a table, whose checksum is what the record says."""
    if not path.is_file():
        raise DataError(f"{path} is missing", "prepare the data again")
    content = origin_of(path).read()
    if content.sha256 != record.checksums.get(path.name):
        raise content.origin.fault("is damaged (its checksum differs from dataset.json)")
    return content


def _part_codes(column: pa.ChunkedArray, origin: Origin) -> npt.NDArray[np.uint8]:
    coded = column.combine_chunks().dictionary_encode()
    values = coded.dictionary.to_pylist()
    if not set(values) <= set(PARTS):
        raise origin.fault(f": column 'split': it has a part other than {', '.join(PARTS)}")
    code_of = np.array([PARTS.index(value) for value in values], dtype=np.uint8)
    result: npt.NDArray[np.uint8] = code_of[np.from_dlpack(coded.indices)]
    return result


def _indices(table: pa.Table, side: str, count: int, origin: Origin) -> Ints:
    found: Ints = _numbers(table[side]).astype(np.int32, copy=False)
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < count:
        raise origin.fault(f": column {side!r}: it has values outside 0 to {count - 1}, and there are {count} {side}s")
    return found


def _require_distinct(interactions: Interactions, origin: Origin) -> None:
    key = interactions.user.astype(np.int64) * len(interactions.items) + interactions.item
    key.sort()
    twice = np.flatnonzero(key[1:] == key[:-1])
    if len(twice):
        user, item = divmod(int(key[twice[0]]), len(interactions.items))
        raise origin.fault(f": user {user} has item {item} more than once")


def _vocabulary(kind: str, table: pa.Table, origin: Origin) -> Vocabulary:
    """The ids and names of one side, each id once and in the order of their indices."""
    if not np.array_equal(_numbers(table["index"]), np.arange(len(table))):
        raise origin.fault(": column 'index': it does not count the rows from 0")
    ids = table["id"].combine_chunks()
    if len(ids.unique()) < len(ids):
        raise origin.fault(": column 'id': it has an id more than once")
    return Vocabulary(kind, ids, table["name"].combine_chunks() if "name" in table.column_names else None)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column of numbers, none of them missing. `to_numpy` would import pandas where it is, for half a second."""
    return np.array(np.from_dlpack(column.combine_chunks()))


def _check_counts(found: Statistics, record: DatasetRecord, path: Path) -> None:
    for field in ("users", "items", "interactions", *PARTS):
        said, counted = getattr(record, field), getattr(found, field)
        if said != counted:
            raise DataError(
                f"{path / RECORD_FILE} says {field} = {said}, and the directory has {counted}", "prepare the data again"
            )


def _canonical_order(interactions: Interactions, part: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The rows in order of part, user and item. Each pair must be in one part, and only once."""
    key = interactions.user.astype(np.int64) * len(interactions.items) + interactions.item
    by_pair = None if np.all(key[1:] > key[:-1]) else np.argsort(key)
    if by_pair is not None:
        key, part = key[by_pair], part[by_pair]
        assert not np.any(key[1:] == key[:-1]), "a pair occurs twice"
    by_part = np.concatenate([np.flatnonzero(part == code) for code in range(len(PARTS))])
    return by_part if by_pair is None else by_pair[by_part]


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
