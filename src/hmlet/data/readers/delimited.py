"""Rows of fields: CSV, TSV, and what MovieLens and RecBole publish. Polars reads them after a check of their shape."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl

from hmlet.data.columns import Columns, listed, looks_like_header
from hmlet.data.dialect import Dialect, Skipping, or_skip
from hmlet.data.guessing import SampledColumn
from hmlet.data.readers.format import ID_ROLES, Format, Source
from hmlet.data.text import LONGEST_LINE, TextFile, temporary_copy
from hmlet.errors import DataError
from hmlet.system.spelling import option

_NARROW = "\x1f"  # placeholder for a delimiter of several characters
_OTHER_SEPARATORS = (";", "\t", "|", _NARROW)  # of files that are called CSV
LONGEST_FIELD = 131_072  # bytes; Python's csv module reads as many characters
_LONGEST_ROW = 80 << 20  # bytes: a quoted field may hold line ends
_QUOTE, _NEWLINE, _RETURN = 0x22, 0x0A, 0x0D


class Delimited(Format):
    """Fields between separators. The first line shows the separator unless the user names it."""

    separator: str  # the usual one
    without_header: ClassVar[Mapping[int, Sequence[str]]] = {}  # by their number, the columns of files without one

    def check_options(self, path: Path, dialect: Dialect) -> None:
        delimiter = dialect.delimiter
        if delimiter is not None and (not delimiter or not delimiter.isascii() or set(delimiter) & set('"\r\n\0')):
            raise DataError(
                f"{option('delimiter')} {delimiter!r} cannot be between fields", "use ASCII characters such as ; or ::"
            )

    def names(self, header: list[str]) -> list[str]:
        """The names of the columns, from the fields of the header line."""
        return header

    @contextmanager
    def opened(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Iterator[TextFile]:
        """The file with one character between fields, and with rows blank that are to be skipped for their length."""
        with ExitStack() as copies:
            wide = dialect.delimiter or _wide_separator(text, self.separator)
            if len(wide) > 1:
                text = copies.enter_context(_narrowed(text, wide))
            if skipping.allowed:
                separator = self._separator(text, dialect)
                header = self._header(text, separator, dialect)
                text = copies.enter_context(_blanked(text, separator, header, skipping))
            yield text

    def read(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Source:
        separator = self._separator(text, dialect)
        named = self._header(text, separator, dialect)
        layout = _check_shape(text, separator, named)
        header = list(named) or self.names(layout.header)
        advice = f", or name its {option('delimiter')}" if len(header) == 1 else f", or its {option('columns')}"
        if named and not dialect.columns:
            advice += f" ({self.name} files have no header line; if this one has, pass {option('format', 'tsv')})"
        chosen = columns.resolve(header, text.shown, advice)
        names = [str(number) for number in range(len(header))]
        rows = pl.scan_csv(
            text.path,
            separator=separator,
            has_header=False,
            skip_lines=layout.lines_before,
            schema=dict.fromkeys(names, pl.String),
            glob=False,
        )
        # Spaces around a field are no part of it. Where fields have types, text keeps them.
        rows = rows.select(pl.col(names[at]).str.strip_chars().alias(role) for role, at in chosen.items())
        expected = layout.rows
        if layout.blank:
            rows = rows.filter(~pl.all_horizontal(pl.col("user", "item").fill_null("") == ""))
            if rows.select(pl.len()).collect().item() < layout.rows:
                # Polars shows a blank line and a row with two empty ids alike; the count tells that one is the latter.
                places = _empty_pairs(text, separator, chosen)
                if not skipping.allowed:
                    error = DataError(
                        f"{text.shown}, {places[0]}: user and item are empty", "add the ids or remove the row"
                    )
                    raise or_skip(error)
                skipping.skip(text.shown, places, ["user and item are empty"] * len(places))
                expected -= len(places)
        return Source(
            text.shown,
            rows,
            {role: header[at] for role, at in chosen.items()},
            lambda found: _lines_of_rows(text, separator, found, has_header=not named),
            untyped=frozenset(ID_ROLES),
            expected=expected,
        )

    def sample(self, text: TextFile, dialect: Dialect, rows: int) -> list[SampledColumn]:
        separator = self._separator(text, dialect)
        next(text.blocks(), None)  # checks the encoding
        named = list(self._header(text, separator, dialect))
        with text.path.open(encoding="utf-8", newline="") as file:
            try:
                lines = list(islice(filter(None, csv.reader(file, delimiter=separator)), rows + 1))
            except csv.Error as error:
                _check_shape(text, separator, named)  # says where, in most cases
                raise text.fault(
                    1, f"is not CSV ({error})", f"check the quotes, or name the {option('delimiter')}"
                ) from error
        if not lines:
            return []
        header, others = (named, lines) if named else (self.names(lines[0]), lines[1:])
        whole = [fields for fields in others if len(fields) == len(header)]  # reading the file refuses the others
        columns = [SampledColumn(name, [fields[at].strip() for fields in whole]) for at, name in enumerate(header)]
        if whole and not named and all(_is_number(column.name) or column.name in column.values for column in columns):
            shown = separator.join(header)
            raise text.fault(
                1,
                f"{shown[:60]!r} looks like data, not like column names",
                f"name the {option('columns')}, such as user,item, or add a first line with their names",
            )
        return columns

    def _separator(self, text: TextFile, dialect: Dialect) -> str:
        """The one character between fields of a file that is opened."""
        if dialect.delimiter:
            return dialect.delimiter if len(dialect.delimiter) == 1 else _NARROW
        return _separator_of(text, self.separator)

    def _header(self, text: TextFile, separator: str, dialect: Dialect) -> Sequence[str]:
        """The names of the columns of a file without a header line; none for a file that has one."""
        line = _first_line(text).decode("utf-8", "replace").strip("\r\n")
        if not line or not (dialect.columns or self.without_header):
            return dialect.columns
        fields = self.names([field.strip(' "') for field in line.split(separator)])
        names = dialect.columns or self.without_header.get(len(fields), ())
        reading_it = f"pass {option('format', 'tsv')} (or rename the file to .tsv)"
        if looks_like_header(fields, names):
            reason = f"{self.name} files have no header line"
            if dialect.columns:
                reason = f"{option('columns')} is for files without a header line"
                reading_it = f"leave {option('columns')} out" + f" and {reading_it}" * bool(self.without_header)
            raise text.fault(
                1, f"{listed(fields)} look like column names, and {reason}", f"{reading_it}, or remove the line"
            )
        if not names:
            single = len(fields) == 1
            raise text.fault(
                1,
                f"has {len(fields)} field{'s' * (not single)}, and the file is read as {self.name}, which has "
                f"{' or '.join(map(str, self.without_header))} and no header line",
                f"name its {option('columns')}"
                + f" and its {option('delimiter')}" * single
                + f", or {reading_it} if it has a header line",
            )
        return names


class CSV(Delimited):
    name = "csv"
    suffixes = (".csv",)
    separator = ","


class TSV(Delimited):
    name = "tsv"
    suffixes = (".tsv", ".tab")
    separator = "\t"


class MovieLens(Delimited):
    """The older MovieLens files, which have no header line: u.data with tabs, ratings.dat and movies.dat with ::"""

    name = "movielens"
    suffixes = (".data", ".base", ".dat")
    separator = "\t"
    without_header: ClassVar = {3: ("id", "name", "genres"), 4: ("user", "item", "rating", "timestamp")}


class RecBole(Delimited):
    """RecBole's atomic files: tabs, and a header line whose names end in a type, such as user_id:token."""

    name = "recbole"
    suffixes = (".inter", ".item", ".user")
    separator = "\t"

    def names(self, header: list[str]) -> list[str]:
        return [re.sub(r":(token|float)(_seq)?$", "", name) for name in header]


def _empty_pairs(text: TextFile, separator: str, chosen: dict[str, int]) -> list[str]:
    """The lines of rows whose user and item are empty."""
    found, start = [], 1
    with text.path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        for fields in reader:
            if fields and not fields[chosen["user"]].strip() and not fields[chosen["item"]].strip():
                found.append(f"line {start}")
            start = reader.line_num + 1
    return found


@dataclass(frozen=True)
class _Layout:
    """The shape of a delimited file: its header, the lines before the first row, the rows and the blank lines."""

    header: list[str]
    lines_before: int
    rows: int
    blank: int


def _check_shape(text: TextFile, separator: str, named: Sequence[str] = ()) -> _Layout:
    """The layout of a file in which every row has as many fields as the header, or as there are `named` columns."""
    header = list(named)
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
            error = text.fault(
                line + block.count(b"\n", 0, int(starts[at])),
                _wrong_length(int(fields[at]), len(header), bool(named))
                + ("; the file ends in the middle of this row" if cut else ""),
                "get the whole file" if cut else "make the row complete, and quote fields that contain the separator",
            )
            raise error if cut else or_skip(error)
        rows += len(filled)
    if not header or (named and not rows):
        raise DataError(f"{text.shown} is empty", "give a file with a header and interactions")
    if rows == 0:
        raise DataError(f"{text.shown} has a header and no rows", "give a file with interactions")
    return _Layout(header, lines_before, rows, blank)


def _wrong_length(fields: int, expected: int, named: bool) -> str:
    whole = f"{expected} columns are named" if named else f"the header has {expected}"
    return f"has {fields} field{'s' if fields > 1 else ''}, and {whole}"


@contextmanager
def _blanked(text: TextFile, separator: str, named: Sequence[str], skipping: Skipping) -> Iterator[TextFile]:
    """A copy of a file in which rows with a wrong number of fields are blank, so that the others keep their lines."""
    expected = len(named)
    with temporary_copy(text) as (copy, target):
        for line, block, is_last in _whole_rows(text):
            ends, fields, empty = _structure(text, block, line, separator, is_last)
            starts = np.concatenate([[0], ends[:-1] + 1])
            filled = np.flatnonzero(~empty)
            if not expected and len(filled):
                expected = int(fields[filled[0]])
            done = 0
            for at in filled[fields[filled] != expected]:
                start, end = int(starts[at]), int(ends[at])
                number = line + block.count(b"\n", 0, start)
                skipping.skip(text.shown, [f"line {number}"], [_wrong_length(int(fields[at]), expected, bool(named))])
                target.write(block[done:start] + b"\n" * block.count(b"\n", start, end))
                done = end
            target.write(block[done:])
        target.flush()
        yield copy


@contextmanager
def _narrowed(text: TextFile, delimiter: str) -> Iterator[TextFile]:
    """A copy of a file with one character between fields instead of a longer delimiter."""
    with temporary_copy(text) as (copy, target):
        for line, block in text.blocks():
            if (at := block.find(_NARROW.encode())) >= 0:
                raise text.fault(line + block.count(b"\n", 0, at), "has the control character 0x1f", "remove it")
            target.write(block.replace(delimiter.encode(), _NARROW.encode()))
        target.flush()
        yield copy


def _first_line(text: TextFile) -> bytes:
    """The first line that is not blank."""
    with text.path.open("rb") as file:
        lines = iter(lambda: file.readline(LONGEST_LINE), b"")
        return next((line for line in lines if line.strip()), b"")


def _separator_of(text: TextFile, usual: str) -> str:
    """What separates the fields of the first line: the usual character, or another common one where it is lacking."""
    bare = re.sub(rb'"[^"]*"', b"", _first_line(text))  # a character in quotes separates nothing
    found = max(_OTHER_SEPARATORS, key=lambda each: bare.count(each.encode()))
    found = _NARROW if _NARROW.encode() in bare else found
    return found if usual.encode() not in bare and found.encode() in bare else usual


def _wide_separator(text: TextFile, usual: str) -> str:
    """:: where it is the first of the separators in the first line, and the usual one is lacking; otherwise nothing."""
    line = _first_line(text)
    first_field, found, _ = line.partition(b"::")
    narrow = usual.encode() in line or any(each.encode() in first_field for each in (*_OTHER_SEPARATORS, ","))
    return "::" if found and not narrow else ""


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


def _lines_of_rows(text: TextFile, separator: str, rows: Sequence[int], *, has_header: bool) -> list[str]:
    """The lines where rows begin, which are counted from 0 without header and blank lines. Slow: for messages only."""
    wanted, found = set(rows), dict[int, str]()
    with text.path.open(encoding="utf-8", newline="") as file:
        seen, start = -2 if has_header else -1, 1
        reader = csv.reader(file, delimiter=separator)
        for fields in reader:
            seen += bool(fields)
            if fields and seen in wanted:
                found[seen] = f"line {start}"
            start = reader.line_num + 1
    return [found.get(row, f"line {start}") for row in rows]
