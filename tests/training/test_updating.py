"""An update goes on from a finished run: every model, new users and items, and an interruption."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from finished import CLOSED, finished
from planted import checkerboard
from pyarrow.csv import write_csv

import hmlet
from hmlet.api import Run
from hmlet.cli import main
from hmlet.config import resolve
from hmlet.data import Dataset
from hmlet.data.extension import extended, new_interactions
from hmlet.errors import ConfigError, RunError
from hmlet.models import MODELS
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import UpdatedFrom
from hmlet.training import updating
from hmlet.training.trainer import EpochEvent, StopTraining

# A new user with the board's even items, one with odd ones, and a new item that even users like.
NEW = [("even", f"i{n}") for n in range(0, 16, 2)]
NEW += [("odd", f"i{n}") for n in range(1, 16, 2)]
NEW += [(f"u{n}", "new") for n in range(0, 20, 2)]


def frame() -> pa.Table:
    return pa.table({"user": [user for user, _ in NEW], "item": [item for _, item in NEW]})


def origin(**changes: int | float) -> UpdatedFrom:
    values = {"epochs": 100, "learning_rate": 0.01, "interactions": 50, "users": 0, "items": 0, **changes}
    return UpdatedFrom.model_validate({"run": "run", "model": "0" * 64, "fingerprint": "f", **values})


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_updated(model: str, tmp_path: Path) -> None:
    """Newcomers are recommended what their likes like, the old run stays, and the record says where the new is from."""
    old = finished(model, tmp_path / "old", *([] if model in CLOSED else ["train.epochs=20"]))
    files = {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir() if file.is_file()}
    new = old.update(frame(), tmp_path / "new", device="cpu")
    assert {name: (tmp_path / "old" / name).read_bytes() for name in files} == files
    assert new.record.updated_from is not None
    assert new.record.updated_from.model == old.record.files["model.safetensors"][0]
    assert new.record.updated_from.users == 2
    assert (new.record.updated_from.interactions, new.record.updated_from.items) == (26, 1)
    assert new.directory.nodes == (old.data.n_users + 2, old.data.n_items + 1)
    opened = Run.open(tmp_path / "new")
    even, odd = opened.recommend(["even", "odd"], k=2)
    if model != "popularity":  # which has one ranking for everybody
        best = [{each["item"] for each in answer["items"]} for answer in (even, odd)]
        assert best[0] <= {f"i{n}" for n in range(0, 24, 2)} | {"new"}
        assert best[1] <= {f"i{n}" for n in range(1, 24, 2)}


def test_an_update_takes_the_options_of_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The function, the method and the command alike."""
    old = finished("popularity", tmp_path / "old")
    rows = pa.table({"who": ["new", None, "new"], "what": ["i0", "i1", "i2"], "points": [5, 5, 1]})
    write_csv(rows, tmp_path / "new.csv")
    options = {"user": "who", "item": "what", "rating": "points", "min_rating": 4, "skip_bad": True}
    for new in (old.update(rows, **options), hmlet.update(old, tmp_path / "new.csv", **options)):
        assert new.record.updated_from is not None
        assert (new.record.updated_from.interactions, new.record.updated_from.users) == (1, 1)
    command = "--user who --item what --rating points --min-rating 4 --skip-bad --json"
    assert main(["update", str(tmp_path / "old"), str(tmp_path / "new.csv"), *command.split()]) == 0
    (tmp_path / "bare.csv").write_text("new;i0;31.12.2024;4,5\n", encoding="utf-8")
    command = "--columns user,item,day,plays --decimal , --day-first --delimiter ; --weight plays"
    assert main(["update", str(tmp_path / "old"), str(tmp_path / "bare.csv"), *command.split()]) == 2
    assert "checkerboard has no weights: leave --weight out" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="there is no option `core`"):
        old.update(rows, core=3)  # type: ignore[call-arg]


def test_an_update_of_an_update_goes_by_the_first_training(tmp_path: Path) -> None:
    first = finished("lightgcn", tmp_path / "run", "train.epochs=40", "train.patience=0")
    second = first.update(frame(), device="cpu")
    assert second.directory.path == tmp_path / "run-2"
    third = second.update(pa.table({"user": ["even"], "item": ["new"]}), device="cpu")
    assert third.directory.path == tmp_path / "run-2-2"
    for run in (second, third):
        assert run.record.updated_from is not None
        assert run.record.updated_from.epochs == first.record.epochs
        assert run.recipe.train.learning_rate == pytest.approx(first.recipe.train.learning_rate * updating.STEP_SHARE)


def test_epochs_follow_the_share_of_what_is_new() -> None:
    recipe = resolve("lightgcn", overrides=["train.validate_every=5"])

    def epochs(new: int, trained: int = 100) -> int:
        return updating.update_recipe(recipe, trained, origin(interactions=new, epochs=trained), 1000).train.epochs

    assert epochs(50) == 10
    assert epochs(100) == 20
    assert epochs(1) == 5  # at least a twentieth
    assert epochs(900) == 100  # never more than the training itself
    assert epochs(1, trained=3) == 1


def test_an_update_validates_three_times_or_after_every_epoch() -> None:
    recipe = resolve("lightgcn", overrides=["train.validate_every=5"])
    for trained, every in ((300, 5), (100, 3), (15, 1)):  # of 30, 10 and 2 epochs
        assert updating.update_recipe(recipe, trained, origin(epochs=trained), 1000).train.validate_every == every


def test_schedules_go_on_where_the_training_ended() -> None:
    gated = resolve("hmlet-end", overrides=["model.gate_warmup=10", "train.epochs=80"])
    found = updating.update_recipe(gated, 80, origin(), 1000)
    assert (found.model.gate_warmup, found.model.temperature_from) == (0, 80)
    assert (found.train.schedule, found.train.learning_rate) == ("cosine", 0.01 * updating.STEP_SHARE)
    moving = resolve("lightgcn", overrides=["train.loss=softmax", "loss.temperature=0.2", "loss.temperature_end=0.1"])
    found = updating.update_recipe(moving, 80, origin(), 1000)
    assert (found.loss.temperature, found.loss.temperature_end) == (0.1, None)


def test_an_interrupted_update_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    """The run keeps a checkpoint from the first step on, since no other start would be the same."""
    old = finished("lightgcn", tmp_path / "old", "train.epochs=60", "train.patience=0")
    data, added = extended(old.data, new_interactions(frame(), old.data))

    def stop(event: EpochEvent) -> None:
        raise StopTraining

    said: list[str] = []
    with pytest.raises(StopTraining):
        updating.update(old.directory, data, added, tmp_path / "stopped", device="cpu", listener=stop, tell=said.append)
    with pytest.raises(RunError, match="resume"):
        updating.update(old.directory, data, added, tmp_path / "stopped", device="cpu")
    stopped = updating.update(old.directory, data, added, tmp_path / "stopped", device="cpu", resume=True)
    whole = updating.update(old.directory, data, added, tmp_path / "whole", device="cpu")
    assert whole.recipe().train.epochs > 1
    assert said == [f"{whole.recipe().train.epochs} epochs from {old.directory.path}"]
    assert all(torch.equal(a, b) for a, b in zip(stopped.factors(), whole.factors(), strict=True))


def test_an_update_without_its_first_checkpoint_is_not_begun_from_nothing(tmp_path: Path) -> None:
    data: Dataset = checkerboard()
    recipe = resolve("lightgcn", overrides=["model.embedding_size=8"])
    RunDirectory.create(tmp_path / "run", recipe, data, "cpu", origin=origin())
    with pytest.raises(RunError, match="has no checkpoint yet"):
        hmlet.fit(data, recipe, tmp_path / "run", device="cpu", resume=True)
