"""`hmlet train` as a user calls it: which recipe it takes, and what it says at the end."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from planted import checkerboard, dataset

from hmlet import api
from hmlet.cli import main
from hmlet.config import Preset, Recipe, resolve
from hmlet.data.catalog import load
from hmlet.training import loop as training


class Asked(Exception):
    """Ends a training before it begins; carries its recipe."""


@pytest.fixture
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(data: object, chosen: training.Chosen, *arguments: Any, **options: Any) -> None:
        raise Asked(chosen.recipe)

    monkeypatch.setattr(training, "fit", fit)


@pytest.mark.usefixtures("_no_training")
def test_the_command_and_its_twin_take_one_recipe(tmp_path: Path) -> None:
    """Debian's own: by its name, and in a directory that was made from it, however that is called."""
    debian, copy = load("debian"), str(tmp_path / "packages")
    debian.save(copy)
    found = []
    for data in ("debian", copy):
        with pytest.raises(Asked) as asked:
            main(["train", data, "--model", "hmlet-end", "--out", str(tmp_path / "run")])
        found.append(asked.value.args[0])
        with pytest.raises(Asked) as asked:
            api.fit(load(data), "hmlet-end", tmp_path / "run")
        found.append(asked.value.args[0])
    assert found == [resolve("hmlet-end", dataset="debian")] * 4
    assert found[0] != resolve("hmlet-end")


def test_the_last_line_tells_validation_where_there_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [(0, 0), (0, 1), (1, 1), (2, 0)]
    dataset(3, 3, train=pairs).save(tmp_path / "all")
    dataset(3, 3, train=pairs, valid=[(1, 2)]).save(tmp_path / "held")
    short = ["--model", "bpr", "--set", "train.epochs=1", "--device", "cpu"]
    for name, end in (
        ("all", r"best epoch 1 of 1; no validation part: the last epoch is kept"),
        ("held", r"of 1; validation @20: ndcg \S+, recall \S+, precision \S+"),
    ):
        assert main(["train", str(tmp_path / name), *short, "--out", str(tmp_path / f"{name}-run")]) == 0
        assert re.search(f"{end}\n$", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("schedule", "rate", "best", "says"),
    [("constant", 0.02, 6, True), ("cosine", 0.02, 6, False), ("constant", 0.2, 3, False)],
)
def test_a_training_that_ends_too_soon_says_so(
    schedule: str, rate: float, best: int, says: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkerboard().save(tmp_path / "board")
    wanted = {"epochs": 6, "validate_every": 3, "learning_rate": rate, "schedule": schedule}
    plain = ["model.start=random", "model.embedding_size=64", "train.batch_size=2048", "train.beta2=0.999"]
    settings = [*(f"train.{key}={value}" for key, value in wanted.items()), *plain, "train.edge_dropout=0"]
    short = [part for setting in settings for part in ("--set", setting)]
    call = ["train", str(tmp_path / "board"), "--model", "bpr", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main([*call, *short]) == 0
    told = capsys.readouterr()
    assert f"best epoch {best} of 6" in told.out
    assert ("validation was still improving at the end" in told.err) == says


def test_a_directory_takes_no_recipe_by_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "gowalla", "--model", "lightgcn", "--preset", "gpu", "--print-config"]
    assert main(command) == 0  # the named set, which is not fetched to know it
    assert Recipe.from_toml(capsys.readouterr().out) == resolve("lightgcn", "gpu", dataset="gowalla")
    checkerboard().save("gowalla")
    assert main(command) == 0
    assert Recipe.from_toml(capsys.readouterr().out) == resolve("lightgcn", "gpu")


@pytest.mark.parametrize("command", ["train", "plan", "tune"])
def test_help_names_every_preset(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    (words,) = re.findall(r"Recipe to start from: (.*?)\.", " ".join(capsys.readouterr().out.split()))
    assert tuple(re.split(r", | or ", words)) == get_args(Preset)


def test_a_recipe_is_printed_as_toml_or_as_the_same_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "debian", "--model", "hmlet-end", "--print-config"]
    assert main(command) == main([*command, "--json"]) == 0
    *toml, answer = capsys.readouterr().out.splitlines()
    assert json.loads(answer) == tomllib.loads("\n".join(toml))
