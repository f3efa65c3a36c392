"""From files or a frame to a data set: read, merge, filter, split. What `hmlet data prepare` calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hmlet.data.columns import Columns
from hmlet.data.dataset import PARTS, Dataset
from hmlet.data.guessing import Guess, guess_columns
from hmlet.data.interactions import Interactions, Vocabulary
from hmlet.data.splits import DEFAULT_SPLIT, SplitRule, assign, k_core
from hmlet.errors import ConfigError, DataError, MissingExtra
from hmlet.system.progress import Advance, silent
from hmlet.system.spelling import option

SAMPLED_ROWS = 20_000  # of a file whose columns are guessed


def prepare(
    files: Sequence[Path | str],
    *,
    columns: Columns = Columns(),  # noqa: B008 - frozen
    format: str | None = None,
    delimiter: str | None = None,
    min_rating: float | None = None,
    core: int = 0,
    split: str = DEFAULT_SPLIT,
    seed: int = 0,
    name: str | None = None,
    user_names: Path | str | None = None,
    item_names: Path | str | None = None,
    advance: Advance = silent,
) -> Dataset:
    """The data set made from interaction files.

    With `split="files"` the files are the parts: train, valid and test, or train and test. Otherwise they are one.
    A rating threshold drops rows before duplicates are merged: a pair stays if any of its rows reaches it.
    """
    paths = [Path(file) for file in files]
    options = _Options(split, core, seed, min_rating)
    if options.rule.kind == "files" and len(paths) not in (2, 3):
        raise DataError(
            f"split files needs two files (train, test) or three (train, valid, test), not {len(paths)}",
            "name them in this order",
        )
    if not paths:
        raise DataError("there is no file to read", "name at least one")
    advance(0, 4, "reading")
    interactions, part = readers().read_files(
        paths,
        options.guessing(columns),
        format,
        min_rating,
        by_file=options.rule.kind == "files",
        delimiter=delimiter,
    )
    if part is not None and len(paths) == 2:
        part *= 2  # the second of two files is the test part
    advance(1, 4, "naming")
    interactions = _with_names(interactions, user_names, item_names)
    return _finish(interactions, part, options, name or _name_of(paths), advance)


def guess_file(file: Path | str, columns: Columns, *, format: str | None = None, delimiter: str | None = None) -> Guess:
    """The columns of an interaction file that were given, and a guess for the others from its first rows."""
    sample = readers().sample_file(Path(file), format, delimiter, SAMPLED_ROWS)
    return Guess(columns) if sample is None else guess_columns(sample, str(file), columns)


def prepare_frame(
    frame: Any,
    *,
    columns: Columns,
    min_rating: float | None = None,
    core: int = 0,
    split: str = DEFAULT_SPLIT,
    seed: int = 0,
    name: str = "frame",
) -> Dataset:
    """The data set made from a Polars or pandas frame or a pyarrow table: see `Dataset.from_frame`."""
    options = _Options(split, core, seed, min_rating)
    if options.rule.kind == "files":
        raise ConfigError("a frame cannot be split by files", "use ratio, temporal or leave-one-out")
    interactions = readers().read_frame(frame, options.guessing(columns), min_rating)
    return _finish(interactions, None, options, name)


def split_interactions(
    interactions: Interactions, name: str, *, split: str = DEFAULT_SPLIT, seed: int = 0, core: int = 0
) -> Dataset:
    """The data set made from interactions in memory."""
    return _finish(interactions, None, _Options(split, core, seed), name)


def readers() -> ModuleType:
    """The module `sources`, imported when a file is read: a prepared directory needs no Polars."""
    try:
        from hmlet.data.readers import sources
    except ImportError as error:
        raise MissingExtra("reading interaction files", "polars", "data") from error
    return sources


@dataclass(frozen=True)
class _Options:
    """How to filter and split, checked before any file is read."""

    split: str
    core: int
    seed: int
    min_rating: float | None = None

    def __post_init__(self) -> None:
        if self.min_rating is not None and not math.isfinite(self.min_rating):
            raise ConfigError(
                f"{option('min_rating', self.min_rating)} is not a finite number",
                "give the least rating that counts as interest",
            )
        if self.core < 0:
            raise ConfigError(
                f"{option('core', self.core)} is negative", "use 0 to keep every interaction, or 10 as the paper does"
            )
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"{option('seed', self.seed)} is out of range", "use a whole number from 0 to 2^63 - 1")
        SplitRule.parse(self.split)

    @cached_property
    def rule(self) -> SplitRule:
        return SplitRule.parse(self.split)

    def guessing(self, columns: Columns) -> Columns:
        """The columns, and what else to guess: a rating for a threshold, a time for a split that goes by time."""
        needed = {"rating": self.min_rating is not None, "timestamp": self.rule.kind == "temporal"}
        welcome = ("timestamp",) if self.rule.kind == "leave-one-out" else ()
        return columns.guessing(*(role for role, wanted in needed.items() if wanted), welcome=welcome)


def _finish(
    interactions: Interactions,
    part: npt.NDArray[np.uint8] | None,
    options: _Options,
    name: str,
    advance: Advance = silent,
) -> Dataset:
    if part is not None:
        _refuse_overlap(interactions, part)
    advance(2, 4, "filtering")
    before = len(interactions)
    kept, rounds = k_core(interactions.user, interactions.item, options.core)
    if len(kept) == 0:
        raise DataError(
            f"no interaction is left of {before} after {options.core}-core filtering", f"lower {option('core')}"
        )
    if len(kept) < before:
        interactions, part = interactions.take(kept), None if part is None else part[kept]
    advance(3, 4, "splitting")
    if part is None:
        part = assign(options.rule, interactions.user, interactions.item, interactions.timestamp, options.seed)
    trained = np.bincount(interactions.user[part == 0], minlength=len(interactions.users)) > 0
    provenance = interactions.provenance.model_copy(
        update={
            "outside_core": before - len(kept),
            "core": options.core,
            "core_rounds": rounds,
            "split": options.split,
            "seed": options.seed,
            "users_without_training": int((~trained).sum()),
        }
    )
    dataset = Dataset(name, replace(interactions, provenance=provenance), part)
    if dataset.count("train") == 0:
        raise DataError("the split leaves no interaction for training", "give training a larger share, or more data")
    advance(4, 4, "done")
    return dataset


def _refuse_overlap(interactions: Interactions, part: npt.NDArray[np.uint8]) -> None:
    twice = np.flatnonzero((np.diff(interactions.user) == 0) & (np.diff(interactions.item) == 0))
    if len(twice):
        at = int(twice[0])
        user, item = (
            interactions.users.id(int(interactions.user[at])),
            interactions.items.id(int(interactions.item[at])),
        )
        raise DataError(
            f"{len(twice)} interactions stand in more than one file, such as user {user!r} with item {item!r} "
            f"in {PARTS[part[at]]} and {PARTS[part[at + 1]]}",
            "remove them from one: a model would be tested on what it was taught",
        )


def _with_names(
    interactions: Interactions, user_names: Path | str | None, item_names: Path | str | None
) -> Interactions:
    return replace(
        interactions, users=_named(interactions.users, user_names), items=_named(interactions.items, item_names)
    )


def _named(vocabulary: Vocabulary, path: Path | str | None) -> Vocabulary:
    """The vocabulary with the names that a file gives its ids; ids that the file leaves out have none."""
    if path is None:
        return vocabulary
    names = readers().read_names(Path(path), vocabulary.kind)
    return replace(
        vocabulary, names=pa.array([names.get(str(value)) for value in vocabulary.ids.to_pylist()], pa.string())
    )


def _name_of(paths: Sequence[Path]) -> str:
    """A readable name for what was made from these files: the file's, or the folder's for several."""
    return paths[0].name.partition(".")[0] if len(paths) == 1 else paths[0].resolve().parent.name
