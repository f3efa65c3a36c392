"""Bytes from outside become checked objects here: files, JSON, records. `tables` does the same for Parquet.

A file is read once, into memory of this process, and hashed and parsed there. Overwriting, truncating or replacing it
afterwards changes nothing (decision 0015). Every failure names the file, what is wrong with it and the fix.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from hmlet.errors import ConfigError, HmletError
from hmlet.system.units import readable

SMALL_TEXT = 1 << 20  # bytes: more than any recipe or token needs
MOST_RECORD = 16 << 20  # bytes of a record or a recipe
MOST_METRICS = 64 << 20  # bytes of metrics.jsonl, which has a line per epoch
# What is compressed may grow to 200 times its size (interaction files reach 10 to 30), and to 64 MiB in any case.
MAX_EXPANSION = 200
FREE_EXPANSION = 64 << 20
Checked = TypeVar("Checked")


def most_decoded(size: int) -> int:
    """How many bytes a compressed file of `size` bytes may become."""
    return max(FREE_EXPANSION, MAX_EXPANSION * size)


@dataclass(frozen=True)
class Origin:
    """Where bytes come from, for messages: the path, the kind of error, and what to do about a bad file."""

    path: Path
    kind: type[HmletError]
    fix: str

    def fault(self, what: str) -> HmletError:
        """The error that says what is wrong with the file: "PATH is damaged", "PATH: epochs: …"."""
        return self.kind(f"{self.path}{what if what.startswith(':') else f' {what}'}", self.fix)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file, open for reading; anything but a regular file is refused, so that a pipe cannot stall a command."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            raise self.kind(f"cannot read {self.path}: {getattr(error, 'strerror', error)}", self.fix) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise self.fault("is not a regular file")
        try:
            with os.fdopen(handle, "rb") as file:
                yield file
        except OSError as error:
            raise self.kind(f"cannot read {self.path}: {error}", f"check the disk, or {self.fix}") from error

    def read(self, most: int | None = None) -> Content:
        """The content of the file, of at most so many bytes."""
        with self.open() as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise self.fault(f"is larger than {readable(most)}")
            data = file.read(size + 1)
        if len(data) != size:
            raise self.fault("is damaged (it changed while it was read)")
        return Content(self, data)


@dataclass(frozen=True)
class Content:
    """The bytes of one file, in memory of this process."""

    origin: Origin
    data: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def text(self) -> str:
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.origin.fault(f"cannot be read (it is not UTF-8 at byte {error.start})") from error

    def json(self) -> object:
        """The JSON value, as the standard has it."""
        try:
            return parse_json(self.text())
        except ValueError as error:
            raise self.origin.fault(f"cannot be read ({error})") from error

    def json_lines(self) -> list[tuple[int, object]]:
        """The JSON value of each line that has one, with the line's number from 1."""
        found = []
        for number, line in enumerate(self.text().split("\n"), 1):
            try:
                if line.strip():
                    found.append((number, parse_json(line)))
            except ValueError as error:
                raise self.origin.fault(f"cannot be read (line {number}: {error})") from error
        return found

    def json_object(self) -> dict[str, object]:
        """The JSON object that the file has to be."""
        value = self.json()
        if not isinstance(value, dict):
            raise self.origin.fault(f"is a JSON {type(value).__name__}, not an object")
        return value


def read_text(path: Path, content: str, most: int = SMALL_TEXT) -> str:
    """The text of a file that an option names; `content` says in an error what it should hold."""
    return Origin(path, ConfigError, f"give a text file with {content}").read(most).text().removeprefix("\ufeff")


def is_utf8(text: str) -> bool:
    """Whether a text is made of characters alone; Python has bytes that are not UTF-8 as halves of surrogate pairs."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def first_line(error: BaseException) -> str:
    """The first line of an error that is not ours, short enough for a message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]


def parse_json(text: str) -> object:
    """A JSON value; what only a lenient parser reads is a ValueError: NaN, infinity, deep nesting.

    Of a key given twice the last counts. The time is linear in the length of the text, whatever it holds.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def checked(kind: type[Checked], value: object, origin: Origin, where: str = "") -> Checked:
    """A JSON value as a type, or the error that names the file, the field and what is wrong with it."""
    from pydantic import BaseModel, TypeAdapter, ValidationError  # not above: `hmlet --help` would import it

    try:
        if issubclass(kind, BaseModel):
            return kind.model_validate(value)
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)  # of values, dataclasses take no dict
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, [*([where] if where else []), *first["loc"]]))
        raise origin.fault(f": {field or 'the content'}: {first['msg']}") from error
