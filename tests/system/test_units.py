"""Amounts of memory, written and read."""

from __future__ import annotations

import pytest

from hmlet.errors import ConfigError
from hmlet.system.units import parse_bytes, readable


def test_bytes_are_readable() -> None:
    counts = (0, 999, 1_500_000, 2 * 10**9, 3_210 * 10**9)
    assert [readable(count) for count in counts] == ["0.0 kB", "1.0 kB", "1.5 MB", "2.0 GB", "3.2 TB"]


@pytest.mark.parametrize(
    ("text", "count"), [("80GB", 80 * 10**9), ("1.5 TB", 1500 * 10**9), ("2gib", 2 << 30), ("1e3MB", 10**9), ("7B", 7)]
)
def test_a_size_is_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["much", "12", "1.2.3GB", "1e999GB", "-1GB", "3 apples"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size: write 80GB, say"):
        parse_bytes(text)
