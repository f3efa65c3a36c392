"""Progress of Python functions: a bar where a person can see it, and nothing elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import checkerboard

import hmlet
from hmlet.system.progress import hidden, shown, silent, watching


def test_fit_shows_a_bar_in_a_terminal_unless_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hmlet.fit(checkerboard(), "bpr", tmp_path / "file", device="cpu", epochs=2, embedding_size=8)
    assert capsys.readouterr() == ("", "")  # standard error is not a terminal
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich takes any stream for a terminal
    monkeypatch.setenv("COLUMNS", "200")
    hmlet.fit(checkerboard(), "bpr", tmp_path / "terminal", device="cpu", epochs=2, embedding_size=8)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "training bpr" in shown.err
    assert "epoch 2 of 2" in shown.err
    hmlet.fit(checkerboard(), "bpr", tmp_path / "quiet", device="cpu", progress=False, epochs=2, embedding_size=8)
    assert capsys.readouterr() == ("", "")


def test_only_the_first_process_of_torchrun_shows_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    for rank, speaks in (("1", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        with shown("loading"):
            pass
        assert ("loading" in capsys.readouterr().err) is speaks


def test_what_the_argument_means() -> None:
    assert [watching(True), watching(False), watching(hidden)] == [shown, hidden, hidden]
    with hidden("x") as advance:
        assert advance is silent
