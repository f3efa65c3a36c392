"""`hmlet reproduce` as a user calls it: which data set and which recipes --dataset means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bare import run_bare
from planted import checkerboard

from hmlet.cli import main
from hmlet.data.catalog import load
from hmlet.reproduction import Choice


def planned(capsys: pytest.CaptureFixture[str], dataset: str) -> tuple[str, str]:
    """The name of the data set and of the one run that a table of one cell wants."""
    assert main(["reproduce", "--dataset", dataset, "--model", "lightgcn", "--seeds", "1", "--plan", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return run["dataset"], run["run"]


def recorded(dataset: str) -> str:
    """The run that a data set's own recipe makes."""
    (run,) = Choice(dataset, models=("lightgcn",), seeds=1).runs()
    return run.name


def test_a_directory_is_what_it_was_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the rule of `hmlet train`: one's own data is not set beside the paper's numbers, whatever it is called."""
    monkeypatch.chdir(tmp_path)
    load("debian").save("packages")
    board = checkerboard()
    board.name = "gowalla"  # as one that was prepared from gowalla.csv is
    for place in ("gowalla", "mine"):
        board.save(place)
    assert planned(capsys, "packages") == planned(capsys, "debian") == ("debian", recorded("debian"))
    assert planned(capsys, "gowalla") == planned(capsys, "mine") == ("own gowalla", recorded("checkerboard"))
    assert recorded("checkerboard") not in (recorded("gowalla"), recorded("debian"))


def test_two_data_sets_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second would take the place of the first, and both tables would be the second's."""
    both = [str(checkerboard(blocks=blocks).save(tmp_path / f"{blocks}")) for blocks in (2, 3)]
    assert main(["reproduce", "--dataset", both[0], "--dataset", both[1], "--plan"]) == 2
    assert capsys.readouterr().err == (
        "error: two data sets are called checkerboard: reproduce them separately, each with its own --out\n"
    )


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_minutes_are_more_than_none(minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board, out = str(checkerboard().save(tmp_path / "board")), tmp_path / "out"
    command = ["reproduce", "--dataset", board, "--model", "lightgcn", "--seeds", "1", "--out", str(out)]
    assert main([*command, "--minutes", minutes]) == 2
    assert f"--minutes {float(minutes)} is not positive: use --minutes 9" in capsys.readouterr().err
    assert not out.exists()


def test_without_matplotlib_nothing_is_trained_for_a_page(tmp_path: Path) -> None:
    checkerboard().save(tmp_path / "board")
    done = run_bare(tmp_path, "-m", "hmlet", "reproduce", "--dataset", "board", "--model", "bpr", "--out", "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "matplotlib" in done.stderr
    assert not (tmp_path / "out").exists()
