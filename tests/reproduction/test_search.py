"""The search: the same for every model, resumable, and blind to the test part."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from bare import run_bare
from planted import checkerboard

from hmlet.config import resolve
from hmlet.data import Csr, Dataset
from hmlet.errors import ConfigError
from hmlet.models import MODELS
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.search import Trial, best_recipe, draw, search, searched_models
from hmlet.tuning.space import Range, load_space

TINY = ("train.epochs=2", "train.batch_size=256", "model.embedding_size=4", "train.validate_every=1")
CHOICE = Choice("checkerboard", models=("lightgcn", "bpr"), overrides=TINY)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A board that cries out when anyone asks for its test part."""
    plain = Dataset.csr

    def guarded(self: Dataset, *parts: str) -> Csr:
        assert "test" not in parts, "the search read the test part"
        return plain(self, *parts)

    monkeypatch.setattr(Dataset, "csr", guarded)
    return checkerboard()


def read(out: Path, model: str) -> dict:  # type: ignore[type-arg]
    return json.loads((out / "search" / "checkerboard" / f"{model}.json").read_text(encoding="utf-8"))


def test_every_model_gets_the_same_number_of_trials(data: Dataset, tmp_path: Path) -> None:
    told: list[Trial] = []
    files = search(CHOICE, data, tmp_path, 3, device="cpu", listener=told.append)
    assert [path.name for path in files] == ["lightgcn.json", "bpr.json"]
    assert [(trial.model, trial.number) for trial in told] == [
        (model, number) for number in (1, 2, 3) for model in ("lightgcn", "bpr")
    ]
    for model in ("lightgcn", "bpr"):
        record = read(tmp_path, model)
        assert len(record["trials"]) == 3
        assert record["trials"][0]["params"] == {}  # the recipe as it is
        space = load_space(None, model)
        assert all(trial["params"][key] in space[key] for trial in record["trials"][1:] for key in space)
        assert all(0 <= trial["valid"]["ndcg"] <= 1 for trial in record["trials"])
        assert "test" not in json.dumps(record)
        assert record["device_minutes"] >= 0
    assert not list((tmp_path / "search" / "checkerboard").glob("*.run"))


def test_a_search_goes_on_where_it_was(data: Dataset, tmp_path: Path) -> None:
    search(CHOICE, data, tmp_path / "cut", 2, device="cpu")
    before = read(tmp_path / "cut", "bpr")["trials"]
    search(CHOICE, data, tmp_path / "cut", 4, device="cpu")
    search(CHOICE, data, tmp_path / "whole", 4, device="cpu")
    cut, whole = (read(tmp_path / name, "bpr")["trials"] for name in ("cut", "whole"))
    assert cut[:2] == before
    assert [(trial["params"], trial["valid"]) for trial in cut] == [
        (trial["params"], trial["valid"]) for trial in whole
    ]


def test_no_trial_begins_after_the_deadline(data: Dataset, tmp_path: Path) -> None:
    assert search(CHOICE, data, tmp_path, 3, device="cpu", deadline=time.monotonic() - 1) == []


def test_another_search_in_the_same_place_is_refused(data: Dataset, tmp_path: Path) -> None:
    search(CHOICE, data, tmp_path, 1, device="cpu")
    other = Choice("checkerboard", models=("bpr",), overrides=(*TINY, "train.l2=0.5"))
    with pytest.raises(ConfigError, match="another base"):
        search(other, data, tmp_path, 1, device="cpu")


def test_a_space_can_be_given_for_all_models(data: Dataset, tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text('[space]\n"train.learning_rate" = [0.25]\n', encoding="utf-8")
    search(CHOICE, data, tmp_path, 2, space=space, device="cpu")
    for model in CHOICE.models:
        record = read(tmp_path, model)
        assert record["space"] == {"train.learning_rate": [0.25]}
        assert [trial["params"] for trial in record["trials"]] == [{}, {"train.learning_rate": 0.25}]


def test_a_trial_that_fails_is_written_down(data: Dataset, tmp_path: Path) -> None:
    broken = Choice("checkerboard", models=("bpr",), overrides=(*TINY, "train.learning_rate=1e38"))
    search(broken, data, tmp_path, 1, device="cpu")
    (trial,) = read(tmp_path, "bpr")["trials"]
    assert "non-finite" in trial["error"]
    assert best_recipe(read(tmp_path, "bpr")) is None


def test_the_best_trial_becomes_the_recipe() -> None:
    trials = [
        {"params": {}, "valid": {"ndcg": 0.1}, "seconds": 30.0},
        {"params": {"train.l2": 1e-5, "model.layers": 3, "train.learning_rate": 4e-3}, "valid": {"ndcg": 0.3}},
        {"params": {"train.l2": 1e-3, "model.layers": 4, "train.learning_rate": 8e-3}, "valid": {"ndcg": 0.2}},
        {"params": {"train.l2": 1e-3}, "error": "the loss became non-finite"},
    ]
    base = resolve("lightgcn", overrides=["train.epochs=60", "train.l2=1e-2", "model.layers=2"])
    space = {"train.l2": [1e-5, 1e-3], "model.layers": [3, 4], "train.learning_rate": [4e-3, 8e-3]}
    about = {"data": {"name": "gowalla"}, "model": "lightgcn", "device_minutes": 6.5, "space": space}
    record = {**about, "base": base.to_toml(), "trials": trials}
    text = best_recipe(record)
    assert text is not None
    assert tomllib.loads(text) == {"model": {"layers": 3}, "train": {"l2": 1e-5, "learning_rate": 4e-3}}
    longer = best_recipe(
        {**record, "trials": trials[:1]}, {"train.epochs": 800, "model.gate_warmup": 9}
    )  # the base was best: its values are written out
    assert longer is not None
    assert tomllib.loads(longer)["train"] == {"l2": 1e-2, "learning_rate": 1e-3, "epochs": 800}
    alike = best_recipe(record, {"train.l2": 1e-3})  # the best trial has another λ
    assert alike is not None
    assert tomllib.loads(alike)["train"] == {"l2": 1e-3, "learning_rate": 8e-3}
    assert alike.startswith("# The best of 1 trials (of 4) of 60 epochs")
    assert best_recipe(record, {"train.l2": 0.5}) is None
    assert text.startswith("# The best of 4 trials of 60 epochs by validation NDCG@20 (0.3000), 6.5 device minutes:\n")
    assert "results/search/gowalla/lightgcn.json" in text


def test_variants_share_one_search() -> None:
    assert searched_models(Choice("x")) == [
        "hmlet-end",
        "lightgcn",
        "lr-gccf",
        "ngcf",
        "gc-mc",
        "pinsage",
        "bpr",
        "wrmf",
    ]
    assert searched_models(Choice("x", models=("hmlet-all",))) == ["hmlet-end"]


def test_points_differ_and_lie_in_the_space() -> None:
    space = {"a": (1, 2), "b": Range(low=1, high=9), "c": Range(low=1e-4, high=1e-1, log=True)}
    points = draw(space, 30, 1, {})
    assert points[0] == {}
    assert points[:10] == draw(space, 10, 1, {})
    assert len({json.dumps(point) for point in points}) == 30
    assert all(point["a"] in (1, 2) and point["b"] in range(1, 10) for point in points[1:])
    exponents = np.log10([point["c"] for point in points[1:]])
    assert exponents.min() < -3
    assert exponents.max() > -2
    assert len(draw({"a": (1, 2)}, 5, 1, {})) == 5  # more trials than points
    assert draw({"a": (1, 2)}, 2, 1, {"a": 1}) == [{}, {"a": 2}]  # the first was at 1


@pytest.mark.parametrize("preset", ["hmlet", "gpu"])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_point_of_a_shipped_space_is_a_recipe(preset: str, model: str) -> None:
    base = resolve(model, preset)
    for key, values in load_space(None, model, preset).items():
        assert isinstance(values, tuple)
        for value in values:
            section, name = key.split(".")
            changed = base.changed([f"{key}={json.dumps(value)}"])
            assert getattr(getattr(changed, section), name) == value


def test_a_bare_machine_can_search(tmp_path: Path) -> None:
    """A GPU box has torch and little more: the search needs nothing else, and a page says beforehand what it needs."""
    checkerboard().save(tmp_path / "board")
    sizes = [word for override in TINY for word in ("--set", override)]
    command = [
        "-m",
        "hmlet",
        "reproduce",
        "--dataset",
        "board",
        "--model",
        "bpr",
        *sizes,
        "--device",
        "cpu",
        "--out",
        "out",
    ]
    done = run_bare(tmp_path, *command, "--search", "2", "--pack", "back.tar.gz")
    assert done.returncode == 0, done.stderr
    assert len(read(tmp_path / "out", "bpr")["trials"]) == 2
    assert (tmp_path / "back.tar.gz").is_file()
    done = run_bare(tmp_path, *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "matplotlib" in done.stderr
