"""A refit trains the chosen epochs on everything, and says that nothing is left to test it on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from finished import finished
from planted import checkerboard

import hmlet
from hmlet.api import Run
from hmlet.cli import main
from hmlet.config import resolve
from hmlet.data.extension import everything_trains
from hmlet.errors import NothingHeldOut

SHORT = ["model.embedding_size=8", "train.batch_size=64", "train.validate_every=2", "train.epochs=6"]
RECIPE = [*SHORT, "train.schedule=cosine", "train.learning_rate=0.02"]


def options(*overrides: str) -> list[str]:
    return [word for each in overrides for word in ("--set", each)]


def test_it_is_the_chosen_epoch_of_the_same_schedule_on_all_data(tmp_path: Path) -> None:
    """The oracle is a whole training on all data that is asked for its parameters in that epoch."""
    recipe = resolve("lightgcn", overrides=RECIPE)
    chosen = hmlet.fit(checkerboard(), recipe, tmp_path / "chosen", device="cpu")
    refit = hmlet.refit(chosen, tmp_path / "refit", device="cpu")
    best = chosen.record.best_epoch
    assert refit.record.epochs == refit.record.best_epoch == best
    assert refit.data.count("train") == len(checkerboard())
    stopped = recipe.model_copy(update={"train": recipe.train.model_copy(update={"stop_after": best})})
    direct = hmlet.fit(everything_trains(checkerboard()), stopped, tmp_path / "direct", device="cpu")
    assert torch.equal(direct.factors[0], refit.factors[0])
    losses = [row["loss"] for row in refit.metrics]
    whole = hmlet.fit(everything_trains(checkerboard()), recipe, tmp_path / "whole", device="cpu")
    assert losses == [row["loss"] for row in whole.metrics][:best]
    origin = refit.record.refitted_from
    assert origin is not None
    assert origin.valid == chosen.record.valid
    assert origin.test == chosen.evaluate().metrics
    assert refit.record.valid is None
    with pytest.raises(NothingHeldOut):
        refit.evaluate()


def test_a_closed_form_is_refitted_too(tmp_path: Path) -> None:
    refit = hmlet.refit(finished("popularity", tmp_path / "run"), tmp_path / "refit", device="cpu")
    counts = torch.bincount(torch.from_numpy(checkerboard().item).long()).float()
    assert torch.equal(refit.factors[1][:, 0], counts)


def test_what_was_trained_on_everything_is_not_refitted(tmp_path: Path) -> None:
    whole = hmlet.fit(everything_trains(checkerboard()), resolve("popularity"), tmp_path / "run", device="cpu")
    with pytest.raises(NothingHeldOut, match="was already trained on all data"):
        hmlet.refit(whole, tmp_path / "refit", device="cpu")


def test_the_command_writes_both_runs_and_says_what_each_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(checkerboard().save(tmp_path / "data"))
    out = tmp_path / "production"
    command = ["train", data, "--model", "bpr", "--out", str(out), "--device", "cpu", "--refit-all", *options(*SHORT)]
    assert main([*command, "--evaluate"]) == 0
    said = capsys.readouterr().out
    assert f"{out}-selection: best epoch" in said
    assert "test @20: ndcg" in said
    assert "nothing is held out, so no test figures exist for it" in said
    assert main([*command, "--resume", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["run"] == str(out)
    assert answer["refitted_from"]["test"]["ndcg"] == Run.open(f"{out}-selection").evaluate().metrics["ndcg"]
    assert main([*command, "--extend"]) == 2


def test_a_refit_is_resumed_without_naming_the_recipe_again(tmp_path: Path) -> None:
    data, out = str(checkerboard().save(tmp_path / "data")), tmp_path / "production"
    command = ["train", data, "--out", str(out), "--device", "cpu", "--refit-all"]
    assert main([*command, "--model", "bpr", *options(*SHORT)]) == 0
    assert main([*command, "--resume"]) == 0
    shutil.rmtree(out)  # as if the refit had not begun
    assert main([*command, "--resume"]) == 0
    assert Run.open(out).recipe.train.batch_size == 64
