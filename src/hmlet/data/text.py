"""Text files made plain and checked before any reader sees them: compression, encoding, line ends. No Polars.

The check runs over whole blocks of bytes, so it takes seconds for gigabytes, and it knows the line of each fault.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from hmlet.errors import DataError
from hmlet.system.files import unfinished
from hmlet.system.outside import MAX_EXPANSION, is_utf8, most_decoded

LONGEST_LINE = 16 << 20
_BLOCK_BYTES = 32 << 20
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
PACKED_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
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
            while chunk := file.read(_BLOCK_BYTES):
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

    A file that needs changes is copied to a temporary file.
    """
    shown = str(path)
    start = _first_bytes(path)
    packing = next((name for name, magic in _MAGIC.items() if start.startswith(magic)), None)
    named = PACKED_SUFFIXES.get(path.suffix.lower())
    if named and packing is None:
        raise DataError(f"{shown} is named {path.suffix} but is not a {named} file", "rename it or pack it again")
    if packing is None and not start.startswith(_UTF8_BOM):
        yield TextFile(shown, path)
        return
    with unfinished(Path(tempfile.mkdtemp(prefix="hmlet-"))) as directory:
        plain = directory / "plain"
        _unpack(path, packing, plain)
        if plain.stat().st_size == 0:
            raise DataError(f"{shown} is empty", "give a file with interactions")
        yield TextFile(shown, plain)


@contextmanager
def temporary_copy(text: TextFile) -> Iterator[tuple[TextFile, BinaryIO]]:
    """A temporary file for a changed copy of a text file, empty and open; messages name the original."""
    with (
        unfinished(Path(tempfile.mkdtemp(prefix="hmlet-"))) as directory,
        (directory / "copy").open("wb") as target,
    ):
        yield TextFile(text.shown, directory / "copy"), target


def require_file(path: Path) -> None:
    """Refuse a path at which there is no file, and a name that no record and no library could hold."""
    if not is_utf8(str(path)):
        raise DataError(f"the name {str(path)!r} is not UTF-8", "rename the file or its folder")
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
    limit = most_decoded(path.stat().st_size)
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
                "set TMPDIR to a place with more space",
            ) from error
        raise DataError(
            f"{path} is a damaged or truncated {packing or 'text'} file ({error})", "download or pack it again"
        ) from error
