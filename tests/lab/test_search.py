"""The search: the same for every model, resumable, and blind to the test part."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import checkerboard

from hmlet.config import resolve
from hmlet.data import Csr, Dataset
from hmlet.errors import ConfigError
from hmlet.tuning.space import load_space
from lab.script import call
from lab.search import main, search, searched_models
from lab.search_file import SearchFile, best_recipe

ROOT = Path(__file__).resolve().parents[2]
TINY = ("train.epochs=2", "train.batch_size=256", "model.embedding_size=4", "train.validate_every=1")


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
    return json.loads((out / "checkerboard" / f"{model}.json").read_text(encoding="utf-8"))


def run(data: Dataset, out: Path, trials: int, **options: Any) -> list[Path]:
    return search(data, out, trials, models=("lightgcn", "bpr"), overrides=TINY, device="cpu", **options)


def test_every_model_gets_the_same_number_of_trials(data: Dataset, tmp_path: Path) -> None:
    files = run(data, tmp_path, 3)
    assert [path.name for path in files] == ["lightgcn.json", "bpr.json"]
    for model in ("lightgcn", "bpr"):
        record = read(tmp_path, model)
        assert len(record["trials"]) == 3
        space = load_space(None, model)
        assert all(trial["params"][key] in space[key] for trial in record["trials"] for key in space)
        assert all(0 <= trial["valid"]["ndcg"] <= 1 and trial["best_epoch"] >= 1 for trial in record["trials"])
        assert "test" not in json.dumps(record)
        assert record["device_minutes"] >= 0
        assert SearchFile.read(tmp_path / "checkerboard" / f"{model}.json").best == max(
            trial["valid"]["ndcg"] for trial in record["trials"]
        )


def test_a_search_goes_on_where_it_was(data: Dataset, tmp_path: Path) -> None:
    run(data, tmp_path, 2)
    before = read(tmp_path, "bpr")["trials"]
    run(data, tmp_path, 3)
    after = read(tmp_path, "bpr")["trials"]
    assert (len(after), after[:2]) == (3, before)


def test_a_space_can_be_given_for_all_models(data: Dataset, tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text('[space]\n"train.learning_rate" = [0.25, 0.5]\n', encoding="utf-8")
    run(data, tmp_path, 1, space=space)
    for model in ("lightgcn", "bpr"):
        assert read(tmp_path, model)["space"] == {"train.learning_rate": [0.25, 0.5]}


def test_a_trial_that_fails_is_written_down(data: Dataset, tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text('[space]\n"train.learning_rate" = [1e38, 0.01]\n', encoding="utf-8")
    run(data, tmp_path, 2, space=space)
    bad, good = sorted(read(tmp_path, "bpr")["trials"], key=lambda trial: "valid" in trial)
    assert "non-finite" in bad["error"]
    assert list(bad) == ["params", "error", "seconds"]
    assert good["params"] == {"train.learning_rate": 0.01}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = checkerboard().save(tmp_path / "data")
    settings = [word for override in TINY for word in ("--set", override)]
    arguments = [str(place), "--model", "bpr", "--trials", "1", *settings, "--out", str(tmp_path / "out"), "--json"]
    main([*arguments, "--device", "cpu"])
    (path,) = json.loads(capsys.readouterr().out)["searches"]
    assert len(SearchFile.read(Path(path)).trials) == 1
    assert call(main, [*arguments, "--trials", "0"]) == 2


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


def test_variants_share_one_search() -> None:
    assert searched_models() == [
        "hmlet-end",
        "lightgcn",
        "lr-gccf",
        "ngcf",
        "gc-mc",
        "pinsage",
        "bpr",
        "wrmf",
    ]
    assert searched_models(("hmlet-all",)) == ["hmlet-end"]
