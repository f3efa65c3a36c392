"""`hmlet data …`: the contract of CLI.md, on standard output and the disk."""

from __future__ import annotations

import json
from pathlib import Path

import polars
import pytest

from hmlet.cli import data as cli_data
from hmlet.cli import main
from hmlet.data import Dataset, splits
from hmlet.data.readers import FORMATS

RATINGS = "userId,movieId,rating,timestamp\n" + "".join(
    f"{user},{movie},{1 + (user * movie) % 5},{1000 * user + movie}\n"
    for user in range(1, 21)
    for movie in range(1, 16)
)


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    path = tmp_path / "ratings.csv"
    path.write_text(RATINGS + "1,1,5,7\n")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The standard output of a command that must succeed and say nothing else."""
    assert main(["data", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_prepare_says_what_became_of_the_rows(
    ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, "prepare", ratings, "--out", tmp_path / "out", "--min-rating", 2, "--core", 3)
    counted = {
        line[:22].strip(): line[22:].strip() for line in out.splitlines() if line[22:].strip().lstrip("-").isdigit()
    }
    assert counted["rows read"] == "301"
    dataset = Dataset.load(tmp_path / "out")
    assert sum(int(count) for label, count in counted.items() if label != "interactions") == len(dataset)
    assert dataset.fingerprint in out
    assert f"written to {tmp_path / 'out'}" in out


def test_an_empty_part_is_said_from_preparing_to_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.csv").write_text("user,item\n1,1\n1,2\n2,2\n2,3\n3,1\n")
    said = run(capsys, "prepare", tmp_path / "few.csv", "--out", tmp_path / "few", "--split", "ratio:1,0,0")
    assert "the valid part is empty: there is nothing to choose the best epoch by\n" in said
    assert "the test part is empty: there is nothing to measure the model on\n" in said
    place = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "few"), "--model", "bpr", "--out", place, "--set", "train.epochs=2"]) == 0
    assert "best epoch 2 of 2; no validation part: the last epoch is kept\n" in capsys.readouterr().out
    assert main(["evaluate", place]) == main(["compare", place, place]) == 2
    assert capsys.readouterr().err == 2 * (
        "error: no user of few has a held-out item in the test part: "
        "prepare it with a split that holds some interactions out\n"
    )
    assert main(["report", place, "--out", str(tmp_path / "report.html")]) == 0
    assert "the report has no test scores: no user of few" in capsys.readouterr().err


def test_prepare_and_stats_as_json(ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads(run(capsys, "prepare", ratings, "--out", tmp_path / "out", "--split", "leave-one-out", "--json"))
    assert (made["users"], made["items"], made["interactions"]) == (20, 15, 300)
    assert (made["train"], made["valid"], made["test"]) == (260, 20, 20)
    assert made["provenance"]["duplicates"] == 1
    stats = json.loads(run(capsys, "stats", tmp_path / "out", "--json"))
    assert set(stats) >= {"users", "items", "interactions", "density", "train", "valid", "test", "fingerprint"}
    assert stats == {key: made[key] for key in stats}


def test_names_of_columns_are_kept_for_what_is_added_later(
    ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "prepare", ratings, "--out", tmp_path / "out", "--item", "movieId", "--weight", "rating")
    assert Dataset.load(tmp_path / "out").provenance.columns == {"item": "movieId", "weight": "rating"}


def test_the_command_and_its_twin_split_alike(
    ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = json.loads(run(capsys, "prepare", ratings, "--out", tmp_path / "out", "--json"))
    frame = polars.read_csv(ratings)
    assert Dataset.from_frame(frame, user="userId", item="movieId").fingerprint == made["fingerprint"]


def test_leave_one_out_takes_the_newest(ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "prepare", ratings, "--out", tmp_path / "out", "--split", "leave-one-out")
    dataset = Dataset.load(tmp_path / "out")
    assert {dataset.items.id(int(item)) for item in dataset.item[dataset.slice("test")]} == {15}
    assert {dataset.items.id(int(item)) for item in dataset.item[dataset.slice("valid")]} == {14}


def test_the_same_command_twice_gives_the_same_data(
    ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prints = [
        json.loads(run(capsys, "prepare", ratings, "--out", tmp_path / str(n), "--seed", seed, "--json"))["fingerprint"]
        for n, seed in enumerate((5, 5, 6))
    ]
    assert prints[0] == prints[1] != prints[2]


def test_prepare_from_a_file_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("train.txt", "0 1 2\n1 2 3\n"), ("val.txt", "0 3\n"), ("test.txt", "1 1\n")):
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in ("train.txt", "val.txt", "test.txt")]
    made = json.loads(run(capsys, "prepare", *files, "--split", "files", "--out", tmp_path / "out", "--json"))
    assert (made["train"], made["valid"], made["test"]) == (4, 1, 1)


def test_force_replaces(ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "prepare", ratings, "--out", tmp_path / "out")
    assert main(["data", "prepare", str(ratings), "--out", str(tmp_path / "out")]) == 2
    assert "--force" in capsys.readouterr().err
    run(capsys, "prepare", ratings, "--out", tmp_path / "out", "--force", "--name", "second")
    assert Dataset.load(tmp_path / "out").name == "second"


def test_stats_of_the_embedded_set(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "stats", "debian")
    assert "61,020" in out
    assert "98.743 %" in out


def test_list_and_fetch(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMLET_CACHE", str(tmp_path))
    sets = {named["name"]: named for named in json.loads(run(capsys, "list", "--json"))["sets"]}
    assert list(sets) == ["debian", "gowalla", "yelp2018", "amazon-book", "amazon-book-29k"]
    assert (sets["debian"]["at_hand"], sets["gowalla"]["at_hand"]) == (True, False)
    assert "1,027,370" in run(capsys, "list")
    assert "embedded" in run(capsys, "fetch", "debian")


@pytest.mark.parametrize("command", ["list", "fetch", "prepare", "stats"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"Example: hmlet data {command}" in " ".join(run(capsys, command, "--help").split())


def test_help_names_what_the_data_room_has(capsys: pytest.CaptureFixture[str]) -> None:
    """The help is written out, because it must not import the room; here the two are compared."""
    said = " ".join(run(capsys, "prepare", "--help").replace("│", " ").split())
    *most, last = FORMATS
    assert f"{', '.join(most)} or {last}. Default: from the suffix" in said
    assert cli_data.DEFAULT_SPLIT == splits.DEFAULT_SPLIT


def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "stats", "debian", "--colour"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
