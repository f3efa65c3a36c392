"""Files from outside: read once into our memory, regular files alone, and JSON as the standard has it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hmlet.errors import DataError
from hmlet.system.outside import Origin, parse_json


def origin(path: Path) -> Origin:
    return Origin(path, DataError, "make it again")


def test_what_was_read_does_not_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    content = origin(path).read()
    with path.open("r+b") as file:
        file.write(b"other")
        file.truncate(2)
    assert content.data == b"first"


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    size = os.fstat

    def longer(handle: int) -> os.stat_result:
        found = size(handle)
        with path.open("ab") as file:
            file.write(b" and more")
        return found

    monkeypatch.setattr(os, "fstat", longer)
    with pytest.raises(DataError, match="changed while it was read"):
        origin(path).read()


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(3 << 20))
    for path, what in (
        (tmp_path / "pipe", "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "large", "is larger than 2.1 MB"),
    ):
        with pytest.raises(DataError, match=what) as refused:
            origin(path).read(2 << 20)
        assert str(path) in refused.value.message
        assert refused.value.hint.endswith("make it again")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("NaN", "malformed"),
        ('{"a": -Infinity}', "invalid"),
        ("1e999", "out of range"),
        ("[" * 100_000, "too deeply"),
        ("9" * 5000, "out of range"),
        ("", "truncated"),
        ("{} {}", "trailing"),
    ],
)
def test_what_only_a_lenient_parser_reads_is_refused(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_json(text)


def test_json_within_the_bounds_is_read() -> None:
    assert parse_json('{"a": [1, 2.5, null, {"b": "é"}]}') == {"a": [1, 2.5, None, {"b": "é"}]}
    assert parse_json("[" * 32 + "]" * 32) is not None


def test_reading_takes_linear_time_whatever_repeats() -> None:
    """A forged run.json of 1 MB once took three minutes, because each key was looked up in a list."""
    text = "{" + ",".join(f'"{key % 109_000:x}":0' for key in range(109_001)) + "}"
    started = time.process_time()
    assert len(parse_json(text)) == 109_000  # type: ignore[arg-type]
    assert time.process_time() - started < 5


def test_errors_name_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n\n{"a": NaN}\n')
    with pytest.raises(
        DataError,
        match=r"lines\.jsonl cannot be read \(line 3: JSON is malformed: invalid character \(byte 6\)\): make it again",
    ):
        origin(path).read().json_lines()
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="not UTF-8 at byte 0"):
        origin(path).read().json()
