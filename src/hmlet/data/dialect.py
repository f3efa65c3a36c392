"""How interaction files are written, where they do not say so themselves, and the rows that could not be used."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hmlet.errors import ConfigError, DataError
from hmlet.system.spelling import option

SKIPPED_FILE = "skipped.csv"


@dataclass(frozen=True)
class Dialect:
    """How files are written: by default as their names and first lines say."""

    format: str | None = None  # by default the suffix decides
    delimiter: str | None = None  # by default the first line shows it
    columns: Sequence[str] = ()  # the names for files without a header line; as text, with commas between them
    decimal: str = "."  # what separates the decimals of ratings and weights
    day_first: bool = False  # whether dates are written as 31/12/2024 or 31.12.2024

    def __post_init__(self) -> None:
        names = self.columns.split(",") if isinstance(self.columns, str) else self.columns
        object.__setattr__(self, "columns", tuple(name.strip() for name in names))
        if self.delimiter is not None:  # a shell passes a tab as a backslash and a t
            object.__setattr__(self, "delimiter", self.delimiter.replace("\\t", "\t"))
        if self.decimal not in (".", ","):
            raise ConfigError(f"{option('decimal', self.decimal)} is not . or ,", f"use {option('decimal', ',')}")
        if not all(self.columns):
            raise ConfigError(
                f"{option('columns')} has an empty name", "name every column, and use _ for those to leave out"
            )


class SkippedRow(NamedTuple):
    """A row that could not be used: the file, where in it, and why."""

    file: str
    place: str
    reason: str


@dataclass
class Skipping:
    """What happens to rows that cannot be used: they are refused, or with `allowed` skipped and remembered."""

    allowed: bool = False
    rows: list[SkippedRow] = field(default_factory=list)

    def skip(self, file: str, places: Iterable[str], reasons: Iterable[str]) -> None:
        self.rows += [SkippedRow(file, place, reason) for place, reason in zip(places, reasons, strict=True)]


def or_skip(error: DataError) -> DataError:
    """An error about a row, with a hint that such rows can be left out."""
    return DataError(error.message, f"{error.hint}, or pass {option('skip_bad', True)} to leave such rows out")


def write_skipped(rows: Iterable[SkippedRow], path: Path) -> None:
    """A CSV file of skipped rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(SkippedRow._fields)
        writer.writerows(rows)
