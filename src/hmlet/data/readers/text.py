"""Text files, made plain and checked for shape before any reader sees them: compression, encoding, lines, fields.

The check runs over whole blocks of bytes, so it costs seconds for gigabytes, and it knows the line of each fault.
After it, a reader can trust that every row has as many fields as the header.
"""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hmlet.errors import DataError

# A compressed file may grow to 200 times its size (interaction files reach 10 to 30), small ones to 64 MiB in any case.
MAX_EXPANSION = 200
FREE_EXPANSION = 64 << 20
LONGEST_LINE = 16 << 20
OTHER_SEPARATORS = (";", "\t", "|")  # of files that are called CSV
_BLOCK = 32 << 20
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
_QUOTE, _NEWLINE, _RETURN = 0x22, 0x0A, 0x0D
_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextFile:
    """A file whose bytes lie uncompressed at `path`; messages call it `shown`, the name that the user gave."""

    shown: str
    path: Path

    def fault(self, line: int, what: str, fix: str) -> DataError:
        """The error for one line, counted from 1."""
        return DataError(f"{self.shown}, line {line}: {what}", fix)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Runs of whole lines, each with the number of its first line; valid UTF-8 without NUL."""
        line, rest = 1, b""
        with self.path.open("rb") as file:
            while chunk := file.read(_BLOCK):
                end = chunk.rfind(b"\n") + 1
                block, rest = (rest + chunk[:end], chunk[end:]) if end else (b"", rest + chunk)
                if len(rest) > LONGEST_LINE:
                    raise self.fault(
                        line + block.count(b"\n"),
                        "is longer than 16 MiB",
                        "check that this is a text file with one row a line",
                    )
                if block:
                    self._check_bytes(block, line)
                    yield line, block
                    line += block.count(b"\n")
        if rest:
            self._check_bytes(rest, line)
            yield line, rest

    def _check_bytes(self, block: bytes, line: int) -> None:
        if line == 1 and block[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise self.fault(1, "is UTF-16, not UTF-8", f"convert it: iconv -f UTF-16 -t UTF-8 {self.shown}")
        if (at := block.find(b"\0")) >= 0:
            raise self.fault(
                line + block.count(b"\n", 0, at),
                "has a NUL byte",
                "save the file as UTF-8 text (UTF-16 and binary files have such bytes)",
            )
        if not block.isascii():
            try:
                block.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.fault(
                    line + block.count(b"\n", 0, error.start),
                    f"has the byte 0x{block[error.start]:02x}, which is not UTF-8",
                    "save the file as UTF-8; if it is Latin-1: iconv -f LATIN1 -t UTF-8",
                ) from None
        if block.count(b"\r") != block.count(b"\r\n"):
            at = next(re.finditer(rb"\r(?!\n)", block)).start()
            raise self.fault(
                line + block.count(b"\n", 0, at),
                "has a carriage return without a line feed",
                "end lines with \\n or \\r\\n",
            )


@contextmanager
def open_text(path: Path) -> Iterator[TextFile]:
    """The file ready to read: gzip and zstd, known by their first bytes, unpacked, and a byte-order mark taken off.

    What had to be changed lies in a temporary file meanwhile.
    """
    shown = str(path)
    start = _first_bytes(path)
    packing = next((name for name, magic in _MAGIC.items() if start.startswith(magic)), None)
    named = _SUFFIXES.get(path.suffix.lower())
    if named and packing is None:
        raise DataError(f"{shown} is named {path.suffix} but is not a {named} file", "rename it or pack it again")
    if packing is None and not start.startswith(_UTF8_BOM):
        yield TextFile(shown, path)
        return
    with tempfile.TemporaryDirectory(prefix="hmlet-") as directory:
        plain = Path(directory) / "plain"
        _unpack(path, packing, plain)
        if plain.stat().st_size == 0:
            raise DataError(f"{shown} is empty", "give a file with interactions")
        yield TextFile(shown, plain)


def require_file(path: Path) -> None:
    """Refuse a path at which there is no file."""
    if path.is_dir():
        raise DataError(f"{path} is a directory", "name the interaction files in it")
    if not path.exists():
        raise DataError(f"{path} does not exist", "check the path")
    if not path.is_file():
        raise DataError(f"{path} is not a regular file", "write its content to a file first")


def _first_bytes(path: Path) -> bytes:
    require_file(path)
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", "check its permissions") from error
    if not start:
        raise DataError(f"{path} is empty", "give a file with interactions")
    return start


def _unpack(path: Path, packing: str | None, plain: Path) -> None:
    limit = max(FREE_EXPANSION, MAX_EXPANSION * path.stat().st_size)
    try:
        with pa.input_stream(str(path), compression=packing) as source, plain.open("wb") as target:
            target.write(source.read(1 << 20).removeprefix(_UTF8_BOM))
            while chunk := source.read(1 << 20):
                if target.tell() + len(chunk) > limit:
                    raise DataError(
                        f"{path} unpacks to more than {MAX_EXPANSION} times its size",
                        "if you trust it, unpack it yourself and give the plain file",
                    )
                target.write(chunk)
    except OSError as error:
        if error.errno:  # of the temporary file's disk; what pyarrow finds in the stream has no errno
            raise DataError(
                f"{path} cannot be unpacked into {plain.parent.parent} ({error.strerror})",
                "set TMPDIR to a roomier place",
            ) from error
        raise DataError(
            f"{path} is a damaged or cut-off {packing or 'text'} file ({error})", "download or pack it again"
        ) from error


@dataclass(frozen=True)
class Layout:
    """The shape of a delimited file: its header, the lines before the first row, the rows and the blank lines."""

    header: list[str]
    lines_before: int
    rows: int
    blank: int


def check_delimited(text: TextFile, separator: str) -> Layout:
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
    return Layout(header, lines_before, rows, blank)


def separator_of(text: TextFile, usual: str) -> str:
    """What separates the header's fields: the usual character, or another common one where the header lacks it."""
    with text.path.open("rb") as file:
        lines = iter(lambda: file.readline(LONGEST_LINE), b"")
        header = next((line for line in lines if line.strip()), b"")
    bare = re.sub(rb'"[^"]*"', b"", header)  # what stands in quotes separates nothing
    found = max(OTHER_SEPARATORS, key=lambda each: bare.count(each.encode()))
    return found if usual.encode() not in bare and found.encode() in bare else usual


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
        elif len(pending) > 2 * _BLOCK + LONGEST_LINE:
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
    length = np.diff(ends, prepend=-1) - 1
    empty = (length == 0) | ((length == 1) & (data[ends - 1] == _RETURN))
    return ends, np.diff(last_marks, prepend=-1), empty


def _check_quotes(
    text: TextFile, block: bytes, line: int, data: npt.NDArray[np.uint8], quotes: npt.NDArray[np.int64], separator: str
) -> None:
    """Quotes stand at both ends of a field or doubled inside one; anything else would be read in two ways."""
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


def line_of_row(text: TextFile, separator: str, row: int) -> int:
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
