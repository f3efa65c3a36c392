"""The file formats: each becomes lazy Polars rows under the names of their roles, and knows where a row stands."""

from __future__ import annotations

import csv
import glob
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hmlet.data.columns import FORMATS, Columns
from hmlet.data.readers.adjacency import read_adjacency
from hmlet.data.readers.text import (
    FREE_EXPANSION,
    MAX_EXPANSION,
    TextFile,
    check_delimited,
    line_of_row,
    open_text,
    separator_of,
)
from hmlet.errors import DataError

IDS = ("user", "item")
_SEPARATORS = {"csv": ",", "tsv": "\t"}
_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@dataclass(frozen=True)
class Source:
    """The rows of one file or frame, still lazy and untouched, under the names of their roles."""

    shown: str
    rows: pl.LazyFrame
    columns: dict[str, str]  # role -> the user's name for it
    place: Callable[[int], str]  # where the n-th row stands, counting from 0: "line 3" or "row 2"
    untyped: frozenset[str] = frozenset()  # the id roles whose text is an integer wherever it looks like one
    expected: int | None = None  # how many rows there are, where this is known beforehand

    def first_fault(self, role: str, bad: pl.Expr, what: str, fix: str) -> DataError:
        """The error for the first row for which `bad` holds; `what` may speak of its {value}."""
        found = self.rows.with_row_index("row number").filter(bad).select("row number", role).head(1).collect()
        number, value = found.row(0)
        shown = what.format(value=repr(value) if value is not None else "(empty)")
        return DataError(f"{self.shown}, {self.place(number)}, column {self.columns[role]!r}: {shown}", fix)


@contextmanager
def open_source(path: Path, format: str, columns: Columns, delimiter: str | None = None) -> Iterator[Source]:
    """The rows of one file; they can be read while it is open. A CSV or TSV file's header shows its delimiter."""
    if format not in FORMATS:
        raise DataError(f"there is no format {format!r}", f"use one of {', '.join(FORMATS)}")
    if delimiter is not None:
        _check_delimiter(path, format, delimiter)
    with open_text(path) as text:
        try:
            if format in _SEPARATORS:
                yield _delimited(text, delimiter or separator_of(text, _SEPARATORS[format]), columns)
            elif format == "jsonl":
                yield _json_lines(text, columns)
            elif format == "parquet":
                yield _parquet(text, columns)
            else:
                yield _adjacency(text)
        except _POLARS_ERRORS as error:
            raise _explained(text, format, error) from error


def _check_delimiter(path: Path, format: str, delimiter: str) -> None:
    if format not in _SEPARATORS:
        raise DataError(f"{path} is read as {format}, which has no delimiter", "leave --delimiter out")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise DataError(
            f"--delimiter {delimiter!r} is not one ASCII character that can stand between fields",
            "replace it in the file first, such as with sed 's/::/;/g'",
        )


def _delimited(text: TextFile, separator: str, columns: Columns) -> Source:
    layout = check_delimited(text, separator)
    advice = ", or name its --delimiter" if len(layout.header) == 1 else ", or give the file a header line"
    chosen = columns.resolve(layout.header, text.shown, advice)
    names = [str(number) for number in range(len(layout.header))]
    rows = pl.scan_csv(
        text.path,
        separator=separator,
        has_header=False,
        skip_lines=layout.lines_before,
        schema=dict.fromkeys(names, pl.String),
        glob=False,
    )
    rows = rows.select(pl.col(names[at]).alias(role) for role, at in chosen.items())
    if layout.blank:
        rows = rows.filter(~pl.all_horizontal(pl.col("user", "item").fill_null("") == ""))
    source = Source(
        text.shown,
        rows,
        {role: layout.header[at] for role, at in chosen.items()},
        lambda row: f"line {line_of_row(text, separator, row)}",
        untyped=frozenset(IDS),
        expected=layout.rows,
    )
    if layout.blank and rows.select(pl.len()).collect().item() < layout.rows:
        # Polars shows a blank line and a row with two empty ids alike; the count says that there is one of the latter.
        raise DataError(
            f"{text.shown}, {_empty_pair(text, separator, chosen)}: user and item are empty",
            "give the row its ids or remove it",
        )
    return source


def _empty_pair(text: TextFile, separator: str, chosen: dict[str, int]) -> str:
    with text.path.open(encoding="utf-8", newline="") as file:
        start = 1
        reader = csv.reader(file, delimiter=separator)
        for fields in reader:
            if fields and not fields[chosen["user"]] and not fields[chosen["item"]]:
                return f"line {start}"
            start = reader.line_num + 1
    return "one row"


def _json_lines(text: TextFile, columns: Columns) -> Source:
    for _ in text.blocks():  # the encoding and NUL check; the lines themselves are for the parser
        pass
    path = glob.escape(str(text.path))  # a file's name is not a pattern
    schema = pl.scan_ndjson(path, infer_schema_length=None).collect_schema()
    chosen = columns.resolve(schema.names(), text.shown)
    names = {role: schema.names()[at] for role, at in chosen.items()}
    for role in names.keys() - set(IDS):
        _check_type(text.shown, role, names[role], schema[names[role]])
    # Ids are read as text so that integers of any size keep their digits; what is not an id is found by the schema.
    ids = {names[role]: pl.String for role in IDS}
    text_ids = [name for name in ids if not schema[name].is_integer()]
    if any(schema[name] != pl.String for name in text_ids) or _has_other_than_strings(text, text_ids):
        problem = _json_fault(text, names)
        if problem is not None:
            raise problem
    wanted = {name: ids.get(name, schema[name]) for name in names.values()}
    rows = pl.scan_ndjson(path, schema=wanted).select(pl.col(name).alias(role) for role, name in names.items())
    integers = frozenset(role for role in IDS if schema[names[role]].is_integer())
    return Source(text.shown, rows, names, lambda row: f"line {_line_of_object(text, row)}", integers)


def _line_of_object(text: TextFile, row: int) -> int:
    with text.path.open("rb") as file:
        numbers = (number for number, line in enumerate(file, 1) if line.strip())
        return next(number for at, number in enumerate(numbers) if at == row)


def _has_other_than_strings(text: TextFile, names: list[str]) -> bool:
    """Whether one of these keys may have a value other than a string, which Polars would spell out as one."""
    keys = b"|".join(re.escape(json.dumps(name, ensure_ascii=False).encode()) for name in names)
    other = re.compile(rb"(?:" + keys + rb")\s*:\s*[^\s\"]")
    return bool(names) and any(other.search(block) for _, block in text.blocks())


def _explained(text: TextFile, format: str, error: BaseException) -> DataError:
    """What is wrong with a file that could not be read; in JSON lines, with the first bad line."""
    found = _json_fault(text, {}) if format == "jsonl" else None
    message = f"{text.shown} cannot be read as {format} ({_one_line(error)})"
    return found or DataError(message, "check the file, or name its --format")


def _json_fault(text: TextFile, names: dict[str, str]) -> DataError | None:
    """The error for the first bad line, found one by one, if there is one."""
    with text.path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip() and (problem := _json_problem(line, names)):
                return text.fault(number, *problem)
    return None


def _json_problem(line: str, names: dict[str, str]) -> tuple[str, str] | None:
    try:
        value = json.loads(line)
    except ValueError as error:
        cut = "" if line.endswith("\n") else "; the file may end in the middle of this row"
        return f"is not JSON ({error}){cut}", "write one JSON object a line"
    except RecursionError:
        return "is nested too deeply", "write one flat JSON object a line"
    if not isinstance(value, dict):
        return f"is a JSON {type(value).__name__}, not an object", 'write lines such as {"user": 1, "item": 2}'
    if any(isinstance(field, int) and field.bit_length() > 127 for field in value.values()):
        return "has an integer of more than 127 bits", "write it as a string"
    for role in IDS:
        found = value.get(names[role]) if role in names else ""
        if found is None:
            return f"has no {names[role]!r}", "give every line its user and its item"
        if isinstance(found, bool) or not isinstance(found, int | str):
            return (
                f"{names[role]!r} is {json.dumps(found)[:40]}, not a whole number or a string",
                "write ids as integers or strings",
            )
    return None


def _parquet(text: TextFile, columns: Columns) -> Source:
    """The needed columns, decoded by pyarrow: on damaged pages it raises errors where Polars may panic."""
    try:
        with pq.ParquetFile(text.path) as file:
            schema = file.schema_arrow
            _refuse_bomb(text, file.metadata.num_rows)
            chosen = columns.resolve(schema.names, text.shown)
            names = list(dict.fromkeys(schema.names[at] for at in chosen.values()))
            empty = _bare(schema.empty_table(), names)
            typed_source(text.shown, empty.lazy(), columns, str)  # refuses wrong types before any data is read
            frames = [empty]
            for batch in file.iter_batches(1 << 20, columns=names):
                batch.validate(full=True)
                frames.append(_bare(batch, names))
            rows = pl.concat(frames).lazy()
    except DataError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        message = f"{text.shown} is not a readable Parquet file ({_one_line(error)})"
        raise DataError(message, "write or download it again") from error
    return typed_source(text.shown, rows, columns, lambda row: f"row {row + 1}")


def _bare(table: Any, names: list[str]) -> Any:
    """Some columns as a frame, without the file's metadata: that may be any bytes, and Polars wants text."""
    return pl.from_arrow(pa.table({name: table.column(name) for name in names}))


def _refuse_bomb(text: TextFile, rows: int) -> None:
    """A few bytes can say that one value repeats a billion times; real interactions differ from row to row."""
    if rows > max(FREE_EXPANSION, MAX_EXPANSION * text.path.stat().st_size) // 8:
        raise DataError(
            f"{text.shown} has {rows} rows in {text.path.stat().st_size} bytes", "check where it comes from"
        )


def typed_source(shown: str, rows: pl.LazyFrame, columns: Columns, place: Callable[[int], str]) -> Source:
    """Rows whose columns have types: each must suit its role."""
    schema = rows.collect_schema()
    names = {role: schema.names()[at] for role, at in columns.resolve(schema.names(), shown).items()}
    for role, name in names.items():
        _check_type(shown, role, name, schema[name])
    rows = rows.select(pl.col(name).alias(role) for role, name in names.items())
    wide = frozenset(role for role in IDS if schema[names[role]] in (pl.UInt64, pl.Int128))
    text = {role for role in IDS if role in wide or not schema[names[role]].is_integer()}
    rows = rows.with_columns(pl.col(role).cast(pl.String if role in text else pl.Int64) for role in IDS)
    return Source(shown, rows, names, place, wide)


def _check_type(shown: str, role: str, name: str, dtype: Any) -> None:
    text = dtype in (pl.String, pl.Categorical, pl.Enum)
    suits = {
        "user": text or dtype.is_integer(),
        "item": text or dtype.is_integer(),
        "rating": dtype == pl.String or dtype.is_numeric(),
        "timestamp": dtype == pl.String or dtype.is_integer() or dtype.is_float() or dtype in (pl.Date, pl.Datetime),
    }.get(role, text)
    if not suits:
        wants = {"rating": "a number", "timestamp": "a number or a date"}.get(
            role, "text" if "name" in role else "an integer or a string"
        )
        hint = (
            "cast it to an integer (missing values turn whole numbers into floats)"
            if dtype.is_float()
            else "choose or cast the column"
        )
        raise DataError(f"{shown}: column {name!r} has type {dtype}, and a {role.replace('_', ' ')} is {wants}", hint)


def _adjacency(text: TextFile) -> Source:
    pairs = read_adjacency(text)
    rows = pl.DataFrame({"user": pairs.user, "item": pairs.item}).lazy()
    return Source(text.shown, rows, {"user": "user", "item": "item"}, lambda row: f"pair {row + 1}")


def _one_line(error: BaseException) -> str:
    """The first line of an error that is not ours, short enough for a message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]
