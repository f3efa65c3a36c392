"""Named sets: the embedded one, the paper's benchmarks with their checks, and the cache they live in.

A benchmark is three adjacency files. Whatever brings them (a public home, a mirror, an older download), the content
decides: counts, no pair in two parts, and a SHA-256 over each part's sorted pairs, so that line order does not matter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hmlet.data.adjacency import Adjacency, read_adjacency
from hmlet.data.columns import UnclearColumns
from hmlet.data.dataset import PARTS, Dataset, sha256
from hmlet.data.download import download
from hmlet.data.interactions import Interactions, Ints, Vocabulary, encode, merge
from hmlet.data.preparation import prepare, split_interactions
from hmlet.data.record import DATASET_VERSION, Provenance, is_prepared, read_record
from hmlet.data.text import open_text
from hmlet.errors import DataError
from hmlet.system.progress import Advance, silent
from hmlet.system.spelling import call, option

EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True)
class PartFile:
    """One part's file: where it is published, and what must be in it."""

    file: str
    pairs: int
    home: str | None = None
    pairs_sha256: str | None = None
    file_sha256: str | None = None  # for a set whose sorted pairs nobody has hashed yet


@dataclass(frozen=True)
class NamedSet:
    """A data set with a name. Its interactions are fetched, one file per part, or embedded in hmlet."""

    name: str
    about: str
    users: int
    items: int
    files: tuple[PartFile, ...] = ()  # in the order of the parts
    embedded: str | None = None  # a Parquet file in `EMBEDDED`, split when it is loaded
    core: int = 0  # the k-core that the embedded interactions are filtered to
    train: int = 0  # training pairs of an embedded set

    @property
    def public(self) -> bool:
        return all(file.home for file in self.files)


def _read_catalog() -> dict[str, NamedSet]:
    entries = tomllib.loads((Path(__file__).parent / "catalog.toml").read_text(encoding="utf-8"))
    return {
        name: NamedSet(name, files=tuple(PartFile(**file) for file in entry.pop("files", ())), **entry)
        for name, entry in entries.items()
    }


CATALOG = _read_catalog()


def load(name_or_path: str | Path, *, mirror: str | None = None, advance: Advance = silent) -> Dataset:
    """The data set that a command's DATA argument means: a prepared directory, a named set or an interaction file.

    A file is prepared with the defaults of `hmlet data prepare`.
    """
    path = Path(name_or_path)
    if _is_name(name_or_path):
        return load_named(str(name_or_path), mirror=mirror, advance=advance)
    if not path.exists():
        raise DataError(
            f"{name_or_path} is neither a prepared directory nor a named set nor a file",
            f"make it with `hmlet data prepare`, or use one of {', '.join(CATALOG)}",
        )
    if path.is_file():
        try:
            return prepare([path], advance=advance)
        except UnclearColumns as error:  # its hint names what a command with DATA does not have
            raise DataError(error.message, f"prepare it with {call('Dataset.from_file')}: {error.hint}") from error
    return Dataset.load(path)


def known_name(data: Dataset | Path | str) -> str | None:
    """The catalogue's name of a data set, or of a command's DATA, which is not loaded for it; None of one's own data.

    A prepared directory is what its record says it was made from, however it is called.
    """
    if isinstance(data, Dataset):
        provenance = data.provenance
    elif _is_name(data):
        return str(data)
    else:
        path = Path(data)
        provenance = read_record(path).provenance if is_prepared(path) else Provenance()
    name = provenance.named_set
    return name if name in CATALOG else None


def distinct_name(data: Dataset) -> str:
    """The display name of a data set: a named set's name is for that set alone, not for one's own data."""
    return known_name(data) or (f"own {data.name}" if data.name in CATALOG else data.name)


def _is_name(data: Path | str) -> bool:
    """Whether a command's DATA is a named set: a prepared directory of that name goes before it."""
    return str(data) in CATALOG and not is_prepared(Path(data))


def counts(data: Dataset | Path | str) -> tuple[int, int, int] | None:
    """Users, items and training interactions of a data set, or of a command's DATA, which is not loaded if it says so.

    None of what is not there.
    """
    if not isinstance(data, Dataset):
        if not _is_name(data):
            path = Path(data)
            record = read_record(path) if is_prepared(path) else None
            return None if record is None else (record.users, record.items, record.train)
        named = find(str(data))
        return named.users, named.items, named.train or named.files[0].pairs
    return data.n_users, data.n_items, data.count("train")


def load_named(name: str, *, mirror: str | None = None, advance: Advance = silent) -> Dataset:
    """A named set: embedded, from the cache, or fetched into it first. A damaged copy in the cache is rebuilt."""
    dataset = _cached(find(name)) or fetch(name, mirror=mirror, advance=advance)
    dataset.reference = name
    return dataset


def find(name: str) -> NamedSet:
    """The catalogue's entry of a name."""
    if name not in CATALOG:
        raise DataError(f"there is no named set {name!r}", f"use one of {', '.join(CATALOG)}")
    return CATALOG[name]


def fetch(name: str, *, mirror: str | None = None, advance: Advance = silent) -> Dataset:
    """The named set, got from its home or a mirror (a directory or URL), checked, and prepared in the cache."""
    named = find(name)
    if named.embedded:
        return _load_embedded(named)
    raw = cache_directory() / "raw" / name
    parts = []
    for part in named.files:
        path = _obtain(named, part, raw, mirror or os.environ.get("HMLET_DATA_MIRROR"), advance)
        try:
            with open_text(path) as text:
                parts.append(read_adjacency(text))
            _check(part, parts[-1], path)
        except DataError:
            if path.is_relative_to(raw):  # a wrong download must not be taken up again; a mirror's file is not ours
                path.unlink()
            raise
    dataset = _assemble(named, parts)
    dataset.path = dataset.save(_prepared(named), overwrite=True)
    shutil.rmtree(raw, ignore_errors=True)
    return dataset


def cache_directory() -> Path:
    """Where fetched sets live: HMLET_CACHE, or the platform's place for caches."""
    if chosen := os.environ.get("HMLET_CACHE"):
        return Path(chosen)
    from platformdirs import user_cache_path

    return Path(user_cache_path("hmlet", appauthor=False))


def interactions(named: NamedSet) -> int:
    """How many interactions a named set has, without loading it."""
    if named.embedded:
        return int(pq.read_metadata(EMBEDDED / named.embedded).num_rows)
    return sum(file.pairs for file in named.files)


def is_at_hand(name: str) -> bool:
    """Whether a named set loads without fetching anything."""
    named = find(name)
    return named.embedded is not None or is_prepared(_prepared(named))


def _prepared(named: NamedSet) -> Path:
    return cache_directory() / "prepared" / f"{named.name}-{DATASET_VERSION}"


def _cached(named: NamedSet) -> Dataset | None:
    if not _prepared(named).is_dir():
        return None
    try:
        dataset = Dataset.load(_prepared(named))
    except DataError:
        return None
    expected = (named.users, named.items, [file.pairs for file in named.files])
    return dataset if (dataset.n_users, dataset.n_items, [dataset.count(part) for part in PARTS]) == expected else None


def _obtain(named: NamedSet, part: PartFile, raw: Path, mirror: str | None, advance: Advance) -> Path:
    """A local path of one part's file: in a mirror directory, already downloaded, or downloaded now."""
    if mirror and "://" not in mirror:
        path = Path(mirror).expanduser() / named.name / part.file
        if not path.is_file():
            raise DataError(f"the mirror has no {path}", f"give a directory that has {named.name}/{part.file}")
        return path
    if not mirror and part.home is None:
        raise DataError(
            f"{named.name} has no public download",
            f"pass {option('mirror')} or set HMLET_DATA_MIRROR to a directory or URL that contains it",
        )
    target = raw / part.file
    home = f"{mirror.rstrip('/')}/{named.name}" if mirror else part.home
    return target if target.is_file() else download(f"{home}/{part.file}", target, advance=advance)


def _check(part: PartFile, pairs: Adjacency, path: Path) -> None:
    """Refuse a file that has not exactly the pairs it should have."""
    key = (
        np.unique(pairs.user * np.int64(2**31) + pairs.item)
        if max(pairs.user.max(), pairs.item.max()) < 2**31
        else pairs.user[:0]
    )
    if len(key) != part.pairs:
        raise DataError(
            f"{path} has {len(key)} distinct pairs, not {part.pairs}", "fetch it again, or use another mirror"
        )
    wrong = f"{path} has the right number of pairs, but not the right ones"
    if part.pairs_sha256 and hash_pairs(key) != part.pairs_sha256:
        raise DataError(wrong, "fetch it again, or use another mirror")
    if part.file_sha256 and sha256(path) != part.file_sha256:
        raise DataError(wrong, "fetch it again, or use another mirror")


def hash_pairs(key: npt.NDArray[np.int64]) -> str:
    """SHA-256 over sorted distinct pairs (user · 2^31 + item), written as little-endian 32-bit user, item, user, …"""
    return hashlib.sha256(np.stack([key >> 31, key & (2**31 - 1)], axis=1).astype("<u4").tobytes()).hexdigest()


def _assemble(named: NamedSet, parts: list[Adjacency]) -> Dataset:
    user, users = encode("user", np.concatenate([part.user for part in parts]))
    item, items = encode("item", np.concatenate([part.item for part in parts]))
    number = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(part.user) for part in parts])
    user, item, split, *_ = merge(user, item, number, None, len(items))
    if np.any((np.diff(user) == 0) & (np.diff(item) == 0)):
        raise DataError(f"the parts of {named.name} share pairs", "fetch it again, or use another mirror")
    if (len(users), len(items)) != (named.users, named.items):
        raise DataError(
            f"{named.name} has {len(users)} users and {len(items)} items, not {named.users} and {named.items}",
            "fetch it again, or use another mirror",
        )
    assert split is not None
    provenance = Provenance(named_set=named.name, rows=len(number), duplicates=len(number) - len(user), split="files")
    return Dataset(named.name, Interactions(user, item, users, items, None, provenance), split)


def _load_embedded(named: NamedSet) -> Dataset:
    """An embedded set, split per user 80/10/10 with seed 0."""
    assert named.embedded is not None
    with pq.ParquetFile(EMBEDDED / named.embedded, pre_buffer=False) as file:
        table = file.read(use_threads=False)
    user, users = _strings("user", table["user"], table["user_name"])
    item, items = _strings("item", table["item"], table["item_name"])
    about = table.schema.metadata
    provenance = Provenance(
        named_set=named.name,
        source=about[b"source"].decode(),
        release_date=about[b"release_date"].decode(),
        licence=about[b"licence"].decode(),
        rows=len(user),
        below_min_rating=0,
        duplicates=0,
    )
    return split_interactions(Interactions(user, item, users, items, None, provenance), named.name, core=named.core)


def _strings(kind: str, ids: pa.ChunkedArray, names: pa.ChunkedArray) -> tuple[Ints, Vocabulary]:
    """The index of each id among the sorted distinct ones, and their vocabulary with names."""
    plain = ids.cast(pa.string()).combine_chunks()
    distinct = plain.unique().sort()
    index = pc.index_in(plain, value_set=distinct).to_numpy().astype(np.int32)
    first = pc.index_in(distinct, value_set=plain)
    return index, Vocabulary(kind, distinct, names.cast(pa.string()).combine_chunks().take(first))
