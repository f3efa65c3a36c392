"""Files replaced whole or not at all, whatever fails on the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from hmlet.errors import ConfigError, HmletError
from hmlet.system.files import put, replacing, temporary_for


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_has_its_new_content_and_no_company(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "file"
    for content in (b"first", b"second"):
        assert put(path, content).read_bytes() == content
    assert names(path.parent) == ["file"]


def test_nothing_changes_before_the_end_and_the_name_on_the_way_is_known_as_temporary(tmp_path: Path) -> None:
    put(tmp_path / "file", b"old")
    with replacing(tmp_path / "file") as temporary:
        temporary.write_bytes(b"new")
        assert (tmp_path / "file").read_bytes() == b"old"
        assert {name: temporary_for(name) for name in names(tmp_path)} == {temporary.name: "file", "file": None}
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), SafetensorError("full"), KeyError("ours")], ids=repr)
def test_a_failure_leaves_the_old_file_and_nothing_else(error: Exception, tmp_path: Path) -> None:
    put(tmp_path / "file", b"old")
    expected = KeyError if isinstance(error, KeyError) else ConfigError

    def fail() -> None:
        with replacing(tmp_path / "file", ConfigError) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(expected):
        fail()
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_what_fails_after_writing_leaves_the_old_file_too(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "file", b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(HmletError, match="file: Input/output error"):
        put(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "free some space"), (errno.EROFS, "choose another place")],
)
def test_the_hint_fits_the_reason(number: int, hint: str, tmp_path: Path) -> None:
    with pytest.raises(HmletError) as refused, replacing(tmp_path / "file"):
        raise OSError(number, os.strerror(number))
    assert refused.value.message == f"cannot write {tmp_path / 'file'}: {os.strerror(number)}"
    assert refused.value.hint.startswith(hint)


def test_a_file_in_the_way_of_a_directory_is_not_the_disks_fault(tmp_path: Path) -> None:
    put(tmp_path / "file", b"old")
    with pytest.raises(HmletError, match=r"cannot write .*choose another place"):
        put(tmp_path / "file" / "below", b"new")
