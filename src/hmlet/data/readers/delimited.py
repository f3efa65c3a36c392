"""CSV and TSV: a header line, then rows with as many fields. Polars reads them after their shape has been checked."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from hmlet.data.columns import Columns
from hmlet.data.guessing import SampledColumn
from hmlet.data.readers.format import ID_ROLES, Format, Source
from hmlet.data.text import LONGEST_LINE, TextFile
from hmlet.errors import DataError
from hmlet.system.spelling import option

_OTHER_SEPARATORS = (";", "\t", "|")  # of files that are called CSV
LONGEST_FIELD = 131_072  # bytes; Python's csv module reads as many characters
_LONGEST_ROW = 80 << 20  # bytes: a quoted field may hold line ends
_QUOTE, _NEWLINE, _RETURN = 0x22, 0x0A, 0x0D


class Delimited(Format):
    """Fields between separators. The header shows the separator unless the user names it."""

    separator: str  # the usual one

    def check_options(self, path: Path, delimiter: str | None) -> None:
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
            raise DataError(
                f"{option('delimiter')} {delimiter!r} is not one ASCII character that can stand between fields",
                "replace it in the file first, such as with sed 's/::/;/g'",
            )

    def read(self, text: TextFile, columns: Columns, delimiter: str | None) -> Source:
        separator = delimiter or _separator_of(text, self.separator)
        layout = _check_shape(text, separator)
        advice = (
            f", or name its {option('delimiter')}" if len(layout.header) == 1 else ", or give the file a header line"
        )
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
            if rows.select(pl.len()).collect().item() < layout.rows:
                # Polars shows a blank line and a row with two empty ids alike; the count tells that one is the latter.
                raise DataError(
                    f"{text.shown}, {_empty_pair(text, separator, chosen)}: user and item are empty",
                    "give the row its ids or remove it",
                )
        return Source(
            text.shown,
            rows,
            {role: layout.header[at] for role, at in chosen.items()},
            lambda row: f"line {_line_of_row(text, separator, row)}",
            untyped=frozenset(ID_ROLES),
            expected=layout.rows,
        )

    def sample(self, text: TextFile, delimiter: str | None, rows: int) -> list[SampledColumn]:
        separator = delimiter or _separator_of(text, self.separator)
        next(text.blocks(), None)  # checks the encoding
        with text.path.open(encoding="utf-8", newline="") as file:
            try:
                lines = list(islice(filter(None, csv.reader(file, delimiter=separator)), rows + 1))
            except csv.Error as error:
                _check_shape(text, separator)  # says where, in most cases
                raise text.fault(
                    1, f"is not CSV ({error})", f"check the quotes, or name the {option('delimiter')}"
                ) from error
        if not lines:
            return []
        header, *others = lines
        whole = [fields for fields in others if len(fields) == len(header)]  # reading the file refuses the others
        columns = [SampledColumn(name, [fields[at] for fields in whole]) for at, name in enumerate(header)]
        if whole and all(_is_number(column.name) or column.name in column.values for column in columns):
            shown = separator.join(header)
            raise text.fault(
                1, f"{shown[:60]!r} looks like data, not like column names", "add a first line such as user,item"
            )
        return columns


class CSV(Delimited):
    name = "csv"
    suffixes = (".csv",)
    separator = ","


class TSV(Delimited):
    name = "tsv"
    suffixes = (".tsv", ".tab")
    separator = "\t"


def _empty_pair(text: TextFile, separator: str, chosen: dict[str, int]) -> str:
    with text.path.open(encoding="utf-8", newline="") as file:
        start = 1
        reader = csv.reader(file, delimiter=separator)
        for fields in reader:
            if fields and not fields[chosen["user"]] and not fields[chosen["item"]]:
                return f"line {start}"
            start = reader.line_num + 1
    return "one row"


@dataclass(frozen=True)
class _Layout:
    """The shape of a delimited file: its header, the lines before the first row, the rows and the blank lines."""

    header: list[str]
    lines_before: int
    rows: int
    blank: int


def _check_shape(text: TextFile, separator: str) -> _Layout:
    """The layout of a CSV or TSV file in which every row has as many fields as the header."""
    header: list[str] = []
    lines_before = rows = blank = 0
    for line, block, is_last in _whole_rows(text):
        ends, fields, empty = _structure(text, block, line, separator, is_last)
        starts = np.concatenate([[0], ends[:-1] + 1])
        filled = np.flatnonzero(~empty)
        blank += len(empty) - len(filled)
        if not header and len(filled):
            first, filled = filled[0], filled[1:]
            header = _fields(block[starts[first] : ends[first]], separator)
        if rows == 0 and len(filled):
            lines_before = line - 1 + block.count(b"\n", 0, int(starts[filled[0]]))
        wrong = filled[fields[filled] != len(header)]
        if len(wrong):
            at = int(wrong[0])
            cut = is_last and at == len(ends) - 1 and not block.endswith(b"\n") and fields[at] < len(header)
            raise text.fault(
                line + block.count(b"\n", 0, int(starts[at])),
                f"has {fields[at]} field{'s' if fields[at] > 1 else ''}, and the header has {len(header)}"
                + ("; the file ends in the middle of this row" if cut else ""),
                "get the whole file" if cut else "make the row complete, and quote fields that contain the separator",
            )
        rows += len(filled)
    if not header:
        raise DataError(f"{text.shown} is empty", "give a file with a header and interactions")
    if rows == 0:
        raise DataError(f"{text.shown} has a header and no rows", "give a file with interactions")
    return _Layout(header, lines_before, rows, blank)


def _separator_of(text: TextFile, usual: str) -> str:
    """What separates the header's fields: the usual character, or another common one where the header lacks it."""
    with text.path.open("rb") as file:
        lines = iter(lambda: file.readline(LONGEST_LINE), b"")
        header = next((line for line in lines if line.strip()), b"")
    bare = re.sub(rb'"[^"]*"', b"", header)  # a character in quotes separates nothing
    found = max(_OTHER_SEPARATORS, key=lambda each: bare.count(each.encode()))
    return found if usual.encode() not in bare and found.encode() in bare else usual


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _fields(row: bytes, separator: str) -> list[str]:
    return next(csv.reader(io.StringIO(row.decode("utf-8"), newline=""), delimiter=separator))


def _whole_rows(text: TextFile) -> Iterator[tuple[int, bytes, bool]]:
    """Blocks that end at a row's end, and whether the file ends there too, without a line end.

    A quoted field may hold line ends, so a block of whole lines can end inside a row.
    """
    pending, pending_line = b"", 1
    for line, block in text.blocks():
        if not pending:
            pending_line = line
        pending += block
        if pending.count(b'"') % 2 == 0 and block.endswith(b"\n"):
            yield pending_line, pending, False
            pending = b""
        elif len(pending) > _LONGEST_ROW:
            break
    if pending.count(b'"') % 2:
        at = pending_line + pending.count(b"\n", 0, pending.rfind(b'"'))
        raise text.fault(
            at, "opens a quoted field that does not end", 'close it, or write a quote inside a field as ""'
        )
    if pending:
        yield pending_line, pending, True


def _structure(
    text: TextFile, block: bytes, line: int, separator: str, is_last: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where each row ends, how many fields it has, and whether it is an empty line."""
    data = np.frombuffer(block + b"\n" if is_last and not block.endswith(b"\n") else block, dtype=np.uint8)
    marks = np.flatnonzero((data == ord(separator)) | (data == _NEWLINE))
    if b'"' in block:
        quotes = np.flatnonzero(data == _QUOTE)
        _check_quotes(text, block, line, data, quotes, separator)
        marks = marks[np.searchsorted(quotes, marks) % 2 == 0]  # those inside quotes are part of a field
    last_marks = np.flatnonzero(data[marks] == _NEWLINE)
    ends = marks[last_marks]
    size = np.diff(marks, prepend=-1) - 1
    if len(size) and int(size.max()) > LONGEST_FIELD:
        at = int(np.argmax(size > LONGEST_FIELD))
        start = int(marks[at - 1]) + 1 if at else 0
        raise text.fault(
            line + block.count(b"\n", 0, start),
            f"has a field of {size[at]} bytes, and fields may have {LONGEST_FIELD}",
            "shorten it, or save the file as Parquet",
        )
    length = np.diff(ends, prepend=-1) - 1
    empty = (length == 0) | ((length == 1) & (data[ends - 1] == _RETURN))
    return ends, np.diff(last_marks, prepend=-1), empty


def _check_quotes(
    text: TextFile, block: bytes, line: int, data: npt.NDArray[np.uint8], quotes: npt.NDArray[np.int64], separator: str
) -> None:
    """Refuse a quote that neither begins nor ends a field nor is doubled inside one: readers differ on those."""
    opening, closing = quotes[::2], quotes[1::2]
    before = data[np.maximum(opening - 1, 0)]
    opens_well = (opening == 0) | np.isin(before, [ord(separator), _NEWLINE, _QUOTE])
    after = data[np.minimum(closing + 1, len(data) - 1)]
    closes_well = (closing == len(data) - 1) | np.isin(after, [ord(separator), _NEWLINE, _RETURN, _QUOTE])
    bad = np.concatenate([opening[~opens_well], closing[~closes_well]])
    if len(bad):
        raise text.fault(
            line + block.count(b"\n", 0, int(bad.min())),
            "has a quote inside a field",
            'quote the whole field and write the quote inside it as "" (or save the file as Parquet)',
        )


def _line_of_row(text: TextFile, separator: str, row: int) -> int:
    """The line where the n-th row after the header begins, from 0, blank lines left out. Slow: for messages only."""
    with text.path.open(encoding="utf-8", newline="") as file:
        seen, start = -2, 1  # the header is row -1
        reader = csv.reader(file, delimiter=separator)
        for fields in reader:
            seen += bool(fields)
            if fields and seen == row:
                return start
            start = reader.line_num + 1
    return start
