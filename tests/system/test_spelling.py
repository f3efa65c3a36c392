"""One message, named for whoever reads it: Python arguments in Python, options on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import hmlet
from hmlet.cli import main
from hmlet.errors import ConfigError
from hmlet.system.spelling import call, in_shell, option, override

SPELLINGS = [
    (lambda: option("minutes"), "`minutes`", "--minutes"),
    (lambda: option("min_rating", 4.5), "min_rating=4.5", "--min-rating 4.5"),
    (lambda: option("device", "cpu"), 'device="cpu"', "--device cpu"),
    (lambda: option("delimiter", " "), 'delimiter=" "', "--delimiter ' '"),
    (lambda: option("resume", True), "resume=True", "--resume"),
    (lambda: option("overwrite", True), "overwrite=True", "--force"),
    (lambda: option("k", 20), "k=20", "-k 20"),
    (lambda: override("train.epochs=1"), "epochs=1", "--set train.epochs=1"),
    (lambda: override("model.a=[1]", "loss.b=x"), 'a=[1], loss_b="x"', "--set model.a=[1] --set loss.b=x"),
    (
        lambda: override("train.deterministic=true", "seed=3"),
        "deterministic=True, seed=3",
        "--set train.deterministic=true --set seed=3",
    ),
    (lambda: call("fit", resume=True), "`hmlet.fit(…, resume=True)`", "`hmlet train … --resume`"),
    (lambda: call("finish"), "`hmlet.finish(…)`", "`hmlet finish …`"),
]


@pytest.mark.parametrize(("spell", "python", "shell"), SPELLINGS)
def test_a_setting_has_two_spellings(spell: type[str], python: str, shell: str) -> None:
    assert spell() == python
    with in_shell():
        assert spell() == shell
    assert spell() == python


def test_an_error_speaks_the_language_of_its_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"^minutes=-1 is not a positive number: use minutes=15, say$"):
        hmlet.leaderboard("debian", tmp_path / "out", minutes=-1)
    assert main(["leaderboard", "debian", "--out", str(tmp_path / "out"), "--minutes", "-1"]) == 2
    assert capsys.readouterr().err == "error: --minutes -1.0 is not a positive number: use --minutes 15, say\n"
    with pytest.raises(ConfigError, match=r"use minutes=15, say$"):  # the command has left nothing behind
        hmlet.leaderboard("debian", tmp_path / "out", minutes=-1)
