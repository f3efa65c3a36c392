"""From files or a frame to a data set: read, merge, filter, split. What `hmlet data prepare` calls."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
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
from hmlet.data.dialect import Dialect, Skipping
from hmlet.data.guessing import Guess, guess_columns
from hmlet.data.interactions import Interactions, Vocabulary
from hmlet.data.splits import DEFAULT_SPLIT, SplitRule, assign, k_core
from hmlet.errors import ConfigError, DataError
from hmlet.system.progress import Advance, silent
from hmlet.system.spelling import option

log = logging.getLogger(__name__)
SAMPLED_ROWS = 20_000  # of a file whose columns are guessed


def prepare(
    sources: Sequence[Path | str | Any],
    *,
    columns: Columns = Columns(),  # noqa: B008 - frozen
    dialect: Dialect = Dialect(),  # noqa: B008 - frozen
    skip_bad: bool = False,
    min_rating: float | None = None,
    core: int = 0,
    split: str = DEFAULT_SPLIT,
    seed: int = 0,
    name: str | None = None,
    user_names: Path | str | Any | None = None,
    item_names: Path | str | Any | None = None,
    parts: Sequence[int] | None = None,
    advance: Advance = silent,
) -> Dataset:
    """The data set made from interaction files or frames.

    With `split="files"` the sources are the parts: train, valid and test, or train and test, or as `parts` numbers
    them. With `split="column:NAME"` a column says the part of each row. Otherwise the sources are read as one.
    A rating threshold drops rows before duplicates are merged: a pair stays if any of its rows reaches it.
    With `skip_bad` rows that cannot be used are left out, and `Dataset.skipped` lists them.
    """
    given = [Path(source) if isinstance(source, str) else source for source in sources]
    options = _Options(split, core, seed, min_rating)
    if not given:
        raise DataError("there is no file to read", "name at least one")
    if parts is None and options.rule.kind == "files":
        parts = _parts_of(len(given))
    skipping = Skipping(skip_bad)
    advance(0, 4, "reading")
    interactions, part = readers().read(given, options.guessing(columns), dialect, min_rating, parts, skipping)
    advance(1, 4, "naming")
    remembered = {"columns": columns.named} if columns.named else {}  # new interactions are read by the same names
    interactions = replace(
        interactions,
        provenance=interactions.provenance.model_copy(update=remembered),
        users=_named(interactions.users, user_names),
        items=_named(interactions.items, item_names),
    )
    dataset = _finish(interactions, part, options, name or _name_of(given), advance)
    dataset.skipped = tuple(skipping.rows)
    if dataset.skipped:
        first = dataset.skipped[0]
        log.warning("%d rows were skipped, the first at %s, %s: %s", len(dataset.skipped), *first)
    return dataset


def _parts_of(count: int) -> tuple[int, ...]:
    """The part of each of several files."""
    if count not in (2, 3):
        raise DataError(
            f"split files needs two files (train, test) or three (train, valid, test), not {count}",
            "name them in this order",
        )
    return (0, 2) if count == 2 else (0, 1, 2)


def guess_file(file: Path | str, columns: Columns, dialect: Dialect = Dialect()) -> Guess:  # noqa: B008 - frozen
    """The columns of an interaction file that were given, and a guess for the others from its first rows."""
    sample = readers().sample_file(Path(file), dialect, SAMPLED_ROWS)
    return Guess(columns) if sample is None else guess_columns(sample, str(file), columns)


def split_interactions(
    interactions: Interactions,
    name: str,
    *,
    split: str = DEFAULT_SPLIT,
    seed: int = 0,
    core: int = 0,
    part: npt.NDArray[np.uint8] | None = None,
) -> Dataset:
    """The data set made from interactions in memory, whose parts may be known."""
    return _finish(interactions, part, _Options(split, core, seed), name)


def readers() -> ModuleType:
    """The module `sources`, imported when a file is read: a prepared directory loads sooner without Polars."""
    from hmlet.data.readers import sources

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
                "use the lowest rating that counts as positive",
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
        if self.rule.kind == "column":
            columns = replace(columns, part=self.rule.column)
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
            f"{len(twice)} interactions are in more than one part, such as user {user!r} with item {item!r} "
            f"in {PARTS[part[at]]} and {PARTS[part[at + 1]]}",
            "remove the duplicates: the model would be tested on its training data",
        )


def _named(vocabulary: Vocabulary, given: Path | str | Any | None) -> Vocabulary:
    """The vocabulary with the names that a file, a frame or a mapping gives its ids; other ids have none."""
    if given is None:
        return vocabulary
    if isinstance(given, Mapping):
        names = {str(key): str(value) for key, value in given.items() if not _is_missing(value)}
    else:
        names = readers().read_names(Path(given) if isinstance(given, str) else given, vocabulary.kind)
    found = [names.get(str(value)) for value in vocabulary]
    kind, count = vocabulary.kind, sum(name is not None for name in found)
    if not count:
        other = f", not {next(iter(names))!r}" if names else ""
        raise DataError(
            f"none of the {len(names)} {kind} names belongs to one of the {len(found)} {kind}s",
            f"give the ids of the interactions, such as {str(vocabulary.id(0))!r}{other}",
        )
    if count < len(found):
        log.info("%d of %d %ss have names", count, len(found), kind)
    return replace(vocabulary, names=pa.array(found, pa.string()))


def _is_missing(name: object) -> bool:
    """Whether a name is None, or the NaN, NaT or NA of pandas."""
    return name is None or (not isinstance(name, str) and str(name) in ("nan", "NaT", "<NA>"))


def _name_of(sources: Sequence[Path | Any]) -> str:
    """A readable name for what was made from these sources: the file's, or the folder's for several."""
    if not isinstance(sources[0], Path):
        return "frame"
    return sources[0].name.partition(".")[0] if len(sources) == 1 else sources[0].resolve().parent.name
