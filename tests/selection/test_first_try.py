"""A first try of a file: from its rows to recommendations, and nothing left behind where that fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from planted import checkerboard

import hmlet
from hmlet import FirstTry, Run
from hmlet.cli import main
from hmlet.errors import DataError
from hmlet.models import MODELS
from hmlet.selection import first_try

QUICK = "lightgcn"


@pytest.fixture(autouse=True)
def _one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_try, "QUICK", (QUICK, "not registered"))


def board_file(path: Path, blocks: int = 2) -> Path:
    """A checkerboard as somebody might have it: a title for each item, a rating, other names."""
    data = checkerboard(blocks)
    rows = [
        f"u{user},{5000 + item},Song {item},{1 + (user + item) % 5}"
        for user, item in zip(data.user, data.item, strict=True)
    ]
    path.write_text("\n".join(["listener,trackId,trackName,stars", *rows]) + "\n", encoding="utf-8")
    return path


def test_a_file_becomes_recommendations(tmp_path: Path) -> None:
    file = board_file(tmp_path / "plays.csv")
    tried = hmlet.try_file(file, tmp_path / "out", device="cpu")
    assert tried.guess.chosen() == {
        "user": "listener",
        "item": "trackId",
        "rating": "stars",
        "item_name": "trackName",
    }
    assert tried.data.provenance.columns == tried.guess.chosen()  # for what is added later
    assert tried.board.best == QUICK
    assert len(tried.examples) == 3
    for example in tried.examples:
        colour = int(str(example.user)[1:]) % 2
        items = example.recommended["items"]
        assert all(int(str(name).removeprefix("Song ")) % 2 == colour for name in example.has)
        assert items[0]["name"] == f"Song {int(items[0]['item']) - 5000}"
    assert tried.data.fingerprint == Run.open(tried.board.rows[0].run).data.fingerprint
    assert re.match(r"<FirstTry of .*plays.csv: <Dataset plays: 48 users, 24 items", repr(tried))


def test_the_command_tells_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = board_file(tmp_path / "plays.csv")
    monkeypatch.chdir(tmp_path)
    assert main(["try", str(file), "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    for line in (
        r"plays.csv: 48 users, 24 items, 576 interactions",
        r"item name  trackName  by its name",
        r"--user COLUMN --item COLUMN",
        r"--min-rating 4",
        r"and may like Song \d+, Song \d+",
        r"hmlet leaderboard plays-hmlet/data --out plays-hmlet",
    ):
        assert re.search(line, told), line
    run = tmp_path / "plays-hmlet" / "runs" / QUICK / "run.json"
    before = run.stat().st_mtime_ns
    assert main(["try", str(file), "--device", "cpu", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert run.stat().st_mtime_ns == before
    assert said["columns"]["user"] == "listener"
    assert said["leaderboard"]["best"] == QUICK
    assert [len(each["items"]) for each in said["recommendations"]] == [5, 5, 5]
    assert main(["leaderboard", "plays-hmlet/data", "--out", "plays-hmlet", "--model", QUICK, "--device", "cpu"]) == 0


def test_the_chosen_users_are_typical(tmp_path: Path) -> None:
    """Of users with few, more and very many items, those in the middle are shown."""
    sizes = [6, 6, 10, 6, 10, 28, 10, 28, 28]
    pairs = [(user, (user + at) % 30) for user, size in enumerate(sizes) for at in range(size)]
    lines = ["user,item", *(f"u{user},i{item}" for user, item in pairs)]
    file = tmp_path / "file.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tried: FirstTry = hmlet.try_file(file, tmp_path / "out", device="cpu")
    assert sorted(str(example.user) for example in tried.examples) == ["u2", "u4", "u6"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"user,item\n", "has a header and no rows"),
        (b"user,item\nann,jazz\nann,\n", "the item is empty"),
        (b"user,item\nann,jazz\nbob\n", "line 3: has 1 field"),
        (b"1,2,3\n2,3,4\n", "looks like data"),
        (b"user,item\nann,jazz\n\xff\xfe,pop\n", "is not UTF-8"),
        (b"user,item\nann,jazz\nbob,pop\n", "has nothing in the valid part"),
    ],
)
def test_a_bad_file_leaves_nothing_behind(content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=problem):
        hmlet.try_file(file, tmp_path / "out", device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["file.csv"]


def test_nothing_of_the_users_is_overwritten(tmp_path: Path) -> None:
    file = board_file(tmp_path / "plays.csv")
    mine = tmp_path / "out" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for place in (mine.parent, file):
        with pytest.raises(DataError, match="exists already"):
            hmlet.try_file(file, place, device="cpu")
    assert [path.name for path in mine.parent.iterdir()] == ["mine.txt"]


def test_the_quick_models_are_models() -> None:
    from hmlet.models import QUICK as names

    assert {"lightgcn", "hmlet-end"} <= {name for name in names if name in MODELS}
