"""Named sets: the embedded one, the paper's benchmarks with their checks, and the cache they live in.

A benchmark is three adjacency files. Whatever brings them (a public home, a mirror, an older download), the content
decides: counts, no pair in two parts, and a SHA-256 over each part's sorted pairs, so that line order does not matter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hmlet.data.adjacency import Adjacency, read_adjacency
from hmlet.data.dataset import FORMAT_VERSION, PARTS, Dataset, read_parquet, read_record, sha256
from hmlet.data.download import download
from hmlet.data.interactions import Interactions, Ints, Vocabulary, encode, merge
from hmlet.data.preparation import split_interactions
from hmlet.data.text import open_text
from hmlet.errors import DataError
from hmlet.system.progress import Advance, silent

# Public homes. LightGCN's repository has NGCF's training sets; its test sets' halves are in that of HMLET's authors.
_LIGHTGCN = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data"
_HMLET = "https://raw.githubusercontent.com/qbxlvnf11/HMLET/fbc4b9d93383923ab4e3942aca6b949c02864b0f/data"
_EMBEDDED = Path(__file__).parent / "embedded" / "debian.parquet"


@dataclass(frozen=True)
class PartFile:
    """One part's file: where it is at home, and what must be in it."""

    file: str
    pairs: int
    home: str | None = None
    pairs_sha256: str | None = None
    file_sha256: str | None = None  # for a set whose sorted pairs nobody has hashed yet


@dataclass(frozen=True)
class NamedSet:
    """A data set that has a name: its size, and its files in the order of the parts."""

    name: str
    about: str
    users: int
    items: int
    files: tuple[PartFile, ...] = ()

    @property
    def public(self) -> bool:
        return all(file.home for file in self.files)


def _benchmark(
    name: str,
    about: str,
    users: int,
    items: int,
    pairs: tuple[int, int, int],
    hashes: tuple[str | None, str | None, str | None],
) -> NamedSet:
    homes = (f"{_LIGHTGCN}/{name}", f"{_HMLET}/{name}", f"{_HMLET}/{name}")
    files = zip(("train.txt", "val.txt", "test.txt"), pairs, homes, hashes, strict=True)
    return NamedSet(
        name, about, users, items, tuple(PartFile(file, count, home, digest) for file, count, home, digest in files)
    )


_AMAZON_TRAIN = "529066026085919381acd4ce19f69e9eafa4af3fef1a10119ea5551cc2ef8530"
CATALOG = {
    named.name: named
    for named in (
        NamedSet("debian", "which packages of Debian 12 depend on which (embedded)", 3779, 1285),
        _benchmark(
            *("gowalla", "check-ins, the paper's split", 29858, 40981, (810128, 108621, 108621)),
            (
                "f44cff05ba25a6ccaac60444d7cce50aecd50831597ace016f35cc309045682d",
                "45842b2023bf47702c7b4ed35fa2172adb0a851ef9654cafd9af9e7b08315a41",
                "29cd92a1382fa4e04edfa41de0dd07766f87eead4e16b2a8ce851552a69996ec",
            ),
        ),
        _benchmark(
            *("yelp2018", "local businesses, the paper's split", 31668, 38048, (1237259, 162073, 162074)),
            (
                "e2f2f50836855d94a19497557e7cd917c5809cfa2b3318ab04e388e08d825213",
                "5f76656c05f16cd526bf5667924711684aeca13e27c000ccffc837754271a0e0",
                "9e3719e64d2abd45ab382078b239790e5e2f62662b385fab2eec05641e854ff9",
            ),
        ),
        NamedSet(
            *("amazon-book", "books, the paper's split", 52643, 91599),
            (
                PartFile("train.txt", 2380730, f"{_LIGHTGCN}/amazon-book", file_sha256=_AMAZON_TRAIN),
                PartFile("val.txt", 301689, f"{_HMLET}/amazon-book"),
                PartFile("test.txt", 301689, f"{_HMLET}/amazon-book"),
            ),
        ),
        NamedSet(
            *(
                "amazon-book-29k",
                "29,787 users of Amazon-Book (mirrors only; not comparable with the paper)",
                29787,
                90814,
            ),
            tuple(
                PartFile(file, pairs, None, digest)
                for file, pairs, digest in (
                    ("train.txt", 1429082, "c8295c95086280a3cb9b05090c670796b63f80f36c7de9f1845c03acd6781a91"),
                    ("val.txt", 177955, "72a01933e665cddbe4d714d09631a89a3a56f42c11d7b9ef360f9c86a116c35a"),
                    ("test.txt", 177833, "3c7ef911dd06f125b29dedd3c11046a2a18e18d1f7f502298be95a8d27ffcd75"),
                )
            ),
        ),
    )
}


def load(name_or_path: str | Path, *, mirror: str | None = None, advance: Advance = silent) -> Dataset:
    """The data set that a command's DATA argument means: a prepared directory, or else a named set."""
    path = Path(name_or_path)
    if _is_name(name_or_path):
        return load_named(str(name_or_path), mirror=mirror, advance=advance)
    if not path.exists():
        raise DataError(
            f"{name_or_path} is neither a prepared directory nor a named set",
            f"make it with `hmlet data prepare`, or use one of {', '.join(CATALOG)}",
        )
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
        provenance = read_record(path)["provenance"] if (path / "dataset.json").is_file() else {}
    name = provenance.get("named_set")
    return name if isinstance(name, str) and name in CATALOG else None


def distinct_name(data: Dataset) -> str:
    """What a data set is called beside others: a named set's name is for that set alone, not for one's own data."""
    return known_name(data) or (f"own {data.name}" if data.name in CATALOG else data.name)


def _is_name(data: Path | str) -> bool:
    """Whether a command's DATA is a named set: a prepared directory of that name goes before it."""
    return str(data) in CATALOG and not (Path(data) / "dataset.json").is_file()


def load_named(name: str, *, mirror: str | None = None, advance: Advance = silent) -> Dataset:
    """A named set: embedded, from the cache, or fetched into it first. A damaged copy in the cache is made anew."""
    named = find(name)
    dataset = (_cached(named) if named.files else _debian()) or fetch(name, mirror=mirror, advance=advance)
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
    if not named.files:
        return _debian()
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
    try:
        from platformdirs import user_cache_path
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hmlet"
    return Path(user_cache_path("hmlet", appauthor=False))


def interactions(named: NamedSet) -> int:
    """How many interactions a named set has, without loading it."""
    return sum(file.pairs for file in named.files) or int(pq.read_metadata(_EMBEDDED).num_rows)


def is_at_hand(name: str) -> bool:
    """Whether a named set loads without fetching anything."""
    named = find(name)
    return not named.files or (_prepared(named) / "dataset.json").is_file()


def _prepared(named: NamedSet) -> Path:
    return cache_directory() / "prepared" / f"{named.name}-{FORMAT_VERSION}"


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
            f"{named.name} has no public home",
            "pass --mirror or set HMLET_DATA_MIRROR to a directory or URL that has it",
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
            f"{path} has {len(key)} distinct pairs, not {part.pairs}", "fetch it again or give another --mirror"
        )
    wrong = f"{path} has the right number of pairs, but not the right ones"
    if part.pairs_sha256 and hash_pairs(key) != part.pairs_sha256:
        raise DataError(wrong, "fetch it again or give another --mirror")
    if part.file_sha256 and sha256(path) != part.file_sha256:
        raise DataError(wrong, "fetch it again or give another --mirror")


def hash_pairs(key: npt.NDArray[np.int64]) -> str:
    """SHA-256 over sorted distinct pairs (user · 2^31 + item), written as little-endian 32-bit user, item, user, …"""
    return hashlib.sha256(np.stack([key >> 31, key & (2**31 - 1)], axis=1).astype("<u4").tobytes()).hexdigest()


def _assemble(named: NamedSet, parts: list[Adjacency]) -> Dataset:
    user, users = encode("user", np.concatenate([part.user for part in parts]))
    item, items = encode("item", np.concatenate([part.item for part in parts]))
    number = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(part.user) for part in parts])
    user, item, split, _ = merge(user, item, number, None, len(items))
    if np.any((np.diff(user) == 0) & (np.diff(item) == 0)):
        raise DataError(f"the parts of {named.name} share pairs", "fetch it again or give another --mirror")
    if (len(users), len(items)) != (named.users, named.items):
        raise DataError(
            f"{named.name} has {len(users)} users and {len(items)} items, not {named.users} and {named.items}",
            "fetch it again or give another --mirror",
        )
    assert split is not None
    provenance = {"named_set": named.name, "rows": len(number), "duplicates": len(number) - len(user), "split": "files"}
    return Dataset(named.name, Interactions(user, item, users, items, None, provenance), split)


def _debian() -> Dataset:
    """The embedded set, which is a 10-core already, split per user 80/10/10 with seed 0 when it is loaded."""
    table = read_parquet(_EMBEDDED)
    user, users = _strings("user", table["user"], table["user_name"])
    item, items = _strings("item", table["item"], table["item_name"])
    about = {
        key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items() if key != b"ARROW:schema"
    }
    provenance = {"named_set": "debian", **about, "rows": len(user), "below_min_rating": 0, "duplicates": 0}
    return split_interactions(Interactions(user, item, users, items, None, provenance), "debian", core=10)


def _strings(kind: str, ids: pa.ChunkedArray, names: pa.ChunkedArray) -> tuple[Ints, Vocabulary]:
    """The index of each id among the sorted distinct ones, and their vocabulary with names."""
    plain = ids.cast(pa.string()).combine_chunks()
    distinct = plain.unique().sort()
    index = pc.index_in(plain, value_set=distinct).to_numpy().astype(np.int32)
    first = pc.index_in(distinct, value_set=plain)
    return index, Vocabulary(kind, distinct, names.cast(pa.string()).combine_chunks().take(first))
