"""Text files that options name: what is read, and what is refused before it is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hmlet.cli import main
from hmlet.errors import ConfigError
from hmlet.system.outside import read_text


def test_text_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "ids").write_bytes("\ufeffZoë\n".encode())
    assert read_text(tmp_path / "ids", "ids", most=9) == "Zoë\n"
    with pytest.raises(ConfigError, match="larger than"):
        read_text(tmp_path / "ids", "ids", most=7)


def made(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "given"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path = Path("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "bytes":
        path.write_bytes(b"abc\xff")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "nul":
        path = Path("a\0b")
    return path


WORDS = {
    "missing": "No such file", "fifo": "not a regular file", "zero": "not a regular file", "huge": "larger than 1.0 MB",
    "directory": "not a regular file", "bytes": "not UTF-8 at byte 3", "loop": "symbolic links", "nul": "null",
}  # fmt: skip


@pytest.mark.parametrize("kind", WORDS)
def test_other_files_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=WORDS[kind]):
        read_text(made(tmp_path, kind), "a recipe")


OPTIONS: dict[str, Callable[[str], list[str]]] = {
    "allow": lambda path: ["recommend", "run", "--user", "u", "--allow", path],
    "deny": lambda path: ["recommend", "run", "--user", "u", "--deny", path],
    "users": lambda path: ["export", "run", "--out", "topn.csv", "--users", path],
    "token-file": lambda path: ["serve", "run", "--token-file", path],
    "config": lambda path: ["train", "debian", "--config", path, "--print-config"],
    "space": lambda path: ["tune", "debian", "--model", "lightgcn", "--out", "out", "--space", path],
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["fifo", "zero"])
def test_every_option_refuses_a_pipe_and_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hmlet.api.Run.open", lambda path, data=None: None)  # which the command opens first
    assert main(OPTIONS[option](str(made(tmp_path, kind)))) == 2
    assert "is not a regular file" in capsys.readouterr().err
