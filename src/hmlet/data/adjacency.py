"""LightGCN's adjacency text, one line a user: `user item item …`, whole numbers from 0. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmlet.data.text import TextFile
from hmlet.errors import DataError
from hmlet.system.spelling import call, option

Numbers = npt.NDArray[np.int64]

_ALLOWED = np.zeros(256, dtype=bool)
_ALLOWED[list(b"0123456789 \t\r\n")] = True
_DIGIT = np.zeros(256, dtype=bool)
_DIGIT[list(b"0123456789")] = True
_ROW = ("user", "item", "rating", "timestamp")
_LONGEST_NUMBER = 18  # digits that surely fit in 64 bits


@dataclass(frozen=True)
class Adjacency:
    """The pairs of one file, line by line, and how many numbers each line has."""

    user: Numbers
    item: Numbers
    lengths: Numbers

    @property
    def columns(self) -> Sequence[str]:
        """The columns that the file seems to have, if it looks like rows of a user, an item and a rating instead.

        In such rows users repeat. Adjacency text has a line for each user, and lines of many lengths.
        """
        length = int(self.lengths[0])
        if length not in (3, 4) or (self.lengths != length).any():
            return ()
        users = self.user[:: length - 1]
        return _ROW[:length] if len(np.unique(users)) < len(users) else ()


def read_adjacency(text: TextFile) -> Adjacency:
    """The pairs of an adjacency file. Blank lines, repeated lines of a user and users without items are welcome."""
    parts = [_block_pairs(text, line, block) for line, block in text.blocks()]
    user = np.concatenate([part.user for part in parts])
    item = np.concatenate([part.item for part in parts])
    if len(user) == 0:
        raise DataError(f"{text.shown} has no interactions", "give a file with lines of `user item item …`")
    return Adjacency(user, item, np.concatenate([part.lengths for part in parts]))


def refuse_rows(text: TextFile, found: Adjacency) -> None:
    """Refuse a file that looks like rows of a user, an item and a rating, which would become an item."""
    if columns := found.columns:
        reading = call("Dataset.from_file", format="csv", delimiter=" ", columns=",".join(columns))
        raise DataError(
            f"{text.shown} looks like rows of {', '.join(columns)}: "
            f"each line has {len(columns)} numbers, and users repeat",
            f"read it with {reading}, or pass {option('format', 'adjacency')} if each line is a user's items",
        )


def _block_pairs(text: TextFile, line: int, block: bytes) -> Adjacency:
    data = np.frombuffer(block, dtype=np.uint8)
    allowed = _ALLOWED[data]
    if not allowed.all():
        raise _fault(text, line, block, int(np.argmin(allowed)))
    digit = _DIGIT[data]
    edges = np.flatnonzero(np.diff(digit.view(np.int8), prepend=0, append=0))
    starts, ends = edges[::2], edges[1::2]
    too_long = np.flatnonzero(ends - starts > _LONGEST_NUMBER)
    if len(too_long):
        raise _fault(text, line, block, int(starts[too_long[0]]))
    value = _numbers(data, starts, ends)
    line_of = np.searchsorted(np.flatnonzero(data == ord("\n")), starts)
    is_user = np.diff(line_of, prepend=-1) != 0
    owner = value[is_user][np.cumsum(is_user) - 1] if len(value) else value
    return Adjacency(owner[~is_user], value[~is_user], np.diff(np.flatnonzero(is_user), append=len(value)))


def _numbers(data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers) -> Numbers:
    """The value of each run of digits, one decimal place of all runs at a time."""
    value = np.zeros(len(starts), dtype=np.int64)
    for place in range(int((ends - starts).max(initial=0))):
        at = starts + place
        has = at < ends
        value[has] = value[has] * 10 + (data[at[has]] - ord("0"))
    return value


def _fault(text: TextFile, line: int, block: bytes, at: int) -> DataError:
    start = max(block.rfind(space, 0, at) for space in (b" ", b"\t", b"\n")) + 1
    words = block[start : at + 40].split(maxsplit=1)
    word = words[0].decode("utf-8", "replace")
    return text.fault(
        line + block.count(b"\n", 0, at),
        f"{word!r} is not a whole number from 0 to 10^{_LONGEST_NUMBER} - 1",
        "adjacency text is `user item item …` in such numbers; "
        f"if the file has columns, pass {option('format', 'csv')}, "
        f"and {option('delimiter', ' ')} for spaces between them",
    )
