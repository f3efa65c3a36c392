"""The search: the same for every model, resumable, and blind to the test part."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from bare import run_bare
from planted import checkerboard

from hmlet.config import resolve
from hmlet.data import Csr, Dataset
from hmlet.errors import ConfigError
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.search import Trial, search, searched_models
from hmlet.reproduction.search_file import SearchFile, best_recipe
from hmlet.tuning import load_space

ROOT = Path(__file__).resolve().parents[2]
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


def test_a_search_goes_on_from_an_older_file_whose_recipe_lacks_a_key(data: Dataset, tmp_path: Path) -> None:
    (path,) = search(replace(CHOICE, models=("bpr",)), data, tmp_path, 1, device="cpu")
    record = read(tmp_path, "bpr")
    record["base"] = record["base"].replace('schedule = "constant"\n', "")
    path.write_text(json.dumps(record), encoding="utf-8")
    search(replace(CHOICE, models=("bpr",)), data, tmp_path, 2, device="cpu")
    assert len(read(tmp_path, "bpr")["trials"]) == 2


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
    assert list(trial) == ["params", "error", "seconds"]
    assert best_recipe(SearchFile.read(tmp_path / "search" / "checkerboard" / "bpr.json")) is None


def test_the_best_trial_becomes_the_recipe(tmp_path: Path) -> None:
    valid = [{"valid": {"ndcg": value}, "best_epoch": 5, "seconds": 130.0} for value in (0.1, 0.3, 0.2)]
    trials = [
        {"params": {}, **valid[0]},
        {"params": {"train.l2": 1e-5, "model.layers": 3, "train.learning_rate": 4e-3}, **valid[1]},
        {"params": {"train.l2": 1e-3, "model.layers": 4, "train.learning_rate": 8e-3}, **valid[2]},
        {"params": {"train.l2": 1e-3}, "error": "the loss became non-finite", "seconds": 0.0},
    ]
    base = resolve("lightgcn", overrides=["train.epochs=60", "train.l2=1e-2", "model.layers=2"])
    about = {
        "format_version": 1,
        "model": "lightgcn",
        "preset": "gpu",
        "data": {"name": "gowalla", "fingerprint": "abc"},
        "base": base.to_toml(),
        "space": {"train.l2": [1e-5, 1e-3], "model.layers": [3, 4], "train.learning_rate": [4e-3, 8e-3]},
        "selection": "validation ndcg@20",
        "hardware": {},
    }
    path = tmp_path / "search.json"
    path.write_text(json.dumps({**about, "trials": trials, "device_minutes": 6.5}), encoding="utf-8")
    record = SearchFile.read(path)
    text = best_recipe(record)
    assert text is not None
    assert tomllib.loads(text) == {"model": {"layers": 3}, "train": {"l2": 1e-5, "learning_rate": 4e-3}}
    longer = best_recipe(
        replace(record, trials=record.trials[:1]), {"train.epochs": 800, "model.gate_warmup": 9}
    )  # the base was best: its values are written out
    assert longer is not None
    assert tomllib.loads(longer)["train"] == {"l2": 1e-2, "learning_rate": 1e-3, "epochs": 800}
    alike = best_recipe(record, {"train.l2": 1e-3})  # the best trial has another λ
    assert alike is not None
    assert tomllib.loads(alike)["train"] == {"l2": 1e-3, "learning_rate": 8e-3}
    assert alike.startswith("# The best of 1 trials (of 4) of 60 epochs")
    assert best_recipe(record, {"train.l2": 0.5}) is None
    assert text.startswith("# The best of 4 trials of 60 epochs by validation NDCG@20 (0.3000), 6.5 device minutes:\n")
    assert "lab/results/search/gowalla/lightgcn.json" in text


@pytest.mark.parametrize(
    "path", sorted((ROOT / "lab" / "results" / "search").rglob("*.json")), ids=lambda path: path.stem
)
def test_a_recorded_search_is_read_and_written_as_it_was(path: Path, tmp_path: Path) -> None:
    SearchFile.read(path).write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"trials": [], "device_minutes": 0, "modell": ""}'])
def test_a_damaged_search_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bpr.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bpr\.json is not a search file"):
        SearchFile.read(path)


def test_a_space_with_a_strange_key_is_refused_before_anything_is_trained(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text('[space]\n"model.layers" = [2, 3]\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"no key model\.layers"):  # which bpr does not have
        search(CHOICE, data, tmp_path / "out", 2, space=tmp_path / "space.toml", device="cpu")
    assert not (tmp_path / "out").exists()


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
    done = run_bare(tmp_path, *command, "--search", "2")
    assert done.returncode == 0, done.stderr
    assert len(read(tmp_path / "out", "bpr")["trials"]) == 2
    done = run_bare(tmp_path, *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "matplotlib" in done.stderr
