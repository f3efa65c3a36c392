"""What all file formats share: the interface of a format, and the rows that it yields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from hmlet.data.columns import Columns
from hmlet.data.dialect import Dialect, Skipping
from hmlet.data.guessing import SampledColumn
from hmlet.data.readers.coding import Coded
from hmlet.data.text import TextFile
from hmlet.errors import DataError
from hmlet.system.outside import first_line
from hmlet.system.spelling import option

ID_ROLES = ("user", "item")


@dataclass(frozen=True)
class Source:
    """The rows of one file or frame, lazy and unchanged, under the names of their roles."""

    shown: str
    rows: pl.LazyFrame
    columns: dict[str, str]  # role -> the user's name for it
    places: Callable[[Sequence[int]], list[str]]  # where to find rows, counted from 0: "line 3" or "row 2"
    untyped: frozenset[str] = frozenset()  # the id roles whose text is an integer wherever it looks like one
    expected: int | None = None  # the number of rows, if the format knows it
    coded: Mapping[str, Coded] = field(default_factory=dict)  # the ids that the file has in this form

    def first_fault(self, role: str, bad: pl.Expr, what: str, fix: str) -> DataError:
        """The error for the first row for which `bad` holds; `what` may speak of its {value}."""
        found = self.rows.with_row_index("row number").filter(bad).select("row number", role).head(1).collect()
        number, value = found.row(0)
        (place,) = self.places([number])
        return DataError(f"{self.shown}, {place}, {self.problem(role, what, value)}", fix)

    def problem(self, role: str, what: str, value: object) -> str:
        """What is wrong with a value, with the name of its column."""
        shown = what.format(value=repr(value) if value is not None else "(empty)")
        return f"column {self.columns[role]!r}: {shown}"


class Check(NamedTuple):
    """What makes a row bad, in words that may speak of the {value}, and what to do about it."""

    role: str
    bad: pl.Expr
    what: str
    fix: str


class Format(ABC):
    """One file format: a subclass in a file of its own, and one line in `hmlet.data.readers`."""

    name: str  # as in --format
    suffixes: tuple[str, ...]  # the file names that promise this format
    has_columns = True  # whether its columns have names, so that options can choose them

    def check_options(self, path: Path, dialect: Dialect) -> None:
        """Refuse the options that this format does not take, before the file is opened."""
        for name in ("delimiter", "columns"):
            if getattr(dialect, name):
                what = "no delimiter" if name == "delimiter" else "column names of its own"
                raise DataError(f"{path} is read as {self.name}, which has {what}", f"leave {option(name)} out")

    @contextmanager
    def opened(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Iterator[TextFile]:
        """The file as `read` and `sample` take it: rows that break the format are blank if they may be skipped."""
        yield text

    @abstractmethod
    def read(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Source:
        """The rows of a file under the names of their roles; a file that breaks the format is a DataError."""

    def sample(self, text: TextFile, dialect: Dialect, rows: int) -> list[SampledColumn] | None:
        """The first rows of every column, for a guess at their roles; None where columns have no names."""
        return None

    def explain(self, text: TextFile, error: BaseException) -> DataError:
        """The error for a file that Polars could not read."""
        message = f"{text.shown} cannot be read as {self.name} ({first_line(error)})"
        return DataError(message, f"check the file, or name its {option('format')}")


def typed_source(shown: str, rows: pl.LazyFrame, columns: Columns, first: int = 1) -> Source:
    """The source of rows whose columns have types, each of which suits its role. `first` is the number of the first."""
    schema = rows.collect_schema()
    names = {role: schema.names()[at] for role, at in columns.resolve(schema.names(), shown).items()}
    for role, name in names.items():
        check_type(shown, role, name, schema[name])
    rows = rows.select(pl.col(name).alias(role) for role, name in names.items())
    wide = frozenset(role for role in ID_ROLES if schema[names[role]] in (pl.UInt64, pl.Int128))
    text = {role for role in ID_ROLES if role in wide or not schema[names[role]].is_integer()}
    rows = rows.with_columns(pl.col(role).cast(pl.String if role in text else pl.Int64) for role in ID_ROLES)
    return Source(shown, rows, names, lambda found: [f"row {row + first}" for row in found], wide)


def check_type(shown: str, role: str, name: str, dtype: Any) -> None:
    """Refuse a column whose type does not suit its role."""
    text = dtype in (pl.String, pl.Categorical, pl.Enum)
    suits = {
        "user": text or dtype.is_integer(),
        "item": text or dtype.is_integer(),
        "rating": dtype == pl.String or dtype.is_numeric(),
        "weight": dtype == pl.String or dtype.is_numeric(),
        "timestamp": dtype == pl.String or dtype.is_integer() or dtype.is_float() or dtype in (pl.Date, pl.Datetime),
    }.get(role, text)
    if not suits:
        wants = {"rating": "a number", "weight": "a number", "timestamp": "a number or a date"}.get(
            role, "text" if "name" in role or role == "part" else "an integer or a string"
        )
        hint = (
            "cast it to an integer (missing values turn whole numbers into floats)"
            if dtype.is_float()
            else "choose or cast the column"
        )
        raise DataError(f"{shown}: column {name!r} has type {dtype}, and a {role.replace('_', ' ')} is {wants}", hint)
