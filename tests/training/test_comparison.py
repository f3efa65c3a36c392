"""The choice of a loss on validation: which recipes are compared, how, and what becomes of it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import checkerboard, dataset

import hmlet
from hmlet.api import requested
from hmlet.cli import main
from hmlet.config import Recipe, SettingsRequest, Shape, Target, resolve
from hmlet.config.fitting import POPULAR
from hmlet.data import Dataset
from hmlet.errors import RunError
from hmlet.ranking.evaluation import Evaluation
from hmlet.runs.directory import RunDirectory
from hmlet.training import comparison, loop
from hmlet.training.comparison import Compared, compare
from hmlet.training.forecast import Forecast, shortened
from hmlet.training.learner import Learner
from hmlet.training.steps import GradientSteps
from hmlet.training.trainer import Tell, untold
from hmlet.tuning import choice
from hmlet.tuning.choice import choose

SMALL = ["model.embedding_size=8", "train.epochs=8", "train.patience=0", "train.validate_every=2"]
CPU = torch.device("cpu")


class Clock:
    def __init__(self) -> None:
        self.now, self.taken = 100.0, list[tuple[int, int]]()

    def __call__(self) -> float:
        return self.now


def recipe(loss: str, *overrides: str) -> Recipe:
    return resolve("lightgcn", overrides=[*SMALL, f"train.loss={loss}", *overrides])


@pytest.fixture(scope="module")
def data() -> Dataset:
    return checkerboard()


# -- what is compared ---------------------------------------------------------------------------------------------


def losses(model: str, *overrides: str, preset: str = "hmlet", dataset: str | None = None) -> list[str]:
    shape = Shape(100, 80, 2000)
    found = SettingsRequest(model, preset, overrides=overrides).alternatives(Target(dataset, shape, "cpu"))
    assert found[0] == resolve(model, preset, overrides=overrides, dataset=dataset, shape=shape, device="cpu")
    return [each.objective for each in found]


def test_the_rule_leaves_the_loss_of_lightgcn_and_hmlet_to_validation() -> None:
    three = ["bpr", "multinomial", "popularity-aware multinomial"]
    assert losses("lightgcn") == losses("hmlet-end") == three
    assert losses("hmlet-end", "model.layers=2", preset="fitted", dataset="debian") == three


def test_a_baseline_keeps_its_loss() -> None:
    assert losses("ngcf") == ["bpr"]
    assert len(losses("ease")) == 1


def test_whoever_sets_something_of_the_training_has_decided() -> None:
    assert losses("lightgcn", "train.loss=softmax") == ["softmax"]
    assert losses("lightgcn", "train.epochs=5") == ["bpr"]


def test_a_searched_recipe_is_not_compared() -> None:
    assert losses("lightgcn", dataset="debian") == ["bpr"]
    assert losses("hmlet-end", preset="paper") == ["bpr"]


def test_each_loss_has_its_own_settings() -> None:
    target = Target(shape=Shape(100, 80, 2000), device="cpu")
    bpr, multinomial, popular = SettingsRequest("lightgcn").alternatives(target)
    assert (bpr.train.edge_dropout, multinomial.train.edge_dropout) == (0.4, 0.0)
    assert multinomial.train.batch_size == 100
    assert (multinomial.scoring.popularity_weight, popular.scoring.popularity_weight) == (0.0, POPULAR)
    learned = [f"loss.temperature={POPULAR}", f"loss.popularity_weight={POPULAR}", "loss.popularity_learned=true"]
    assert popular == multinomial.changed(learned)


# -- how ----------------------------------------------------------------------------------------------------------


def test_a_short_training_is_the_shortened_recipe(data: Dataset, tmp_path: Path) -> None:
    """What a run of a quarter of the epochs keeps, to the last bit."""
    recipes = [recipe("bpr"), recipe("multinomial")]
    found = {each.recipe.train.loss: each.ndcg for each in compare(data, recipes, [0.25, 0.25], CPU)}
    for each in recipes:
        run = loop.fit(data, shortened(each, 2).changed(["train.validate_every=1"]), tmp_path / each.train.loss)
        assert run.record.valid is not None
        assert found[each.train.loss] == run.record.valid["ndcg"]


def test_the_best_of_five_validations_counts(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training keeps its best epoch, so a loss that overfits at the end is not judged by its last."""
    worth = {2: 0.1, 4: 0.5, 5: 0.4, 7: 0.3, 8: 0.2}
    seen: list[int] = []

    def evaluate(self: Learner, epoch: int) -> tuple[Evaluation, None]:
        seen.append(epoch)
        return Evaluation("valid", "train", 20, np.zeros(1, int), {"ndcg": np.array([worth[epoch]])}, 1.0), None

    monkeypatch.setattr(Learner, "evaluate", evaluate)
    (found,) = compare(data, [recipe("bpr")], [1.0], CPU)
    assert seen == [2, 4, 5, 7, 8]
    assert found.ndcg == 0.5


def test_small_data_is_compared_by_whole_trainings_and_large_data_by_a_quarter(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"bpr": 10.0, "softmax": 30.0, "multinomial": 1000.0}
    monkeypatch.setattr(comparison, "nominal_training_seconds", lambda recipe, *rest: seconds[recipe.train.loss])
    recipes = [recipe(loss) for loss in seconds]
    assert comparison.shares(data, recipes, "cpu") == [1.0, 0.5, 0.25]
    assert comparison.shares(data, recipes, "cuda") == [0.25, 0.25, 0.25]
    assert comparison.nominal_cost(data, recipes, "cpu") == 10.0 + 15.0 + 250.0 + 1000.0
    assert comparison.nominal_cost(data, recipes[1:2], "cpu") == 30.0


def order(
    monkeypatch: pytest.MonkeyPatch, data: Dataset, ndcg: dict[str, list[float]], seconds: dict[str, float]
) -> list[str]:
    """The losses as they come out of a comparison in which each user's NDCG and the nominal times are given."""

    def trained(data: Dataset, recipe: Recipe, *rest: object) -> Compared:
        ndcg_U = np.array(ndcg[recipe.train.loss])
        return Compared(recipe, float(ndcg_U.mean()), ndcg_U)

    monkeypatch.setattr(comparison, "_after_short_training", trained)
    monkeypatch.setattr(comparison, "nominal_training_seconds", lambda recipe, *rest: seconds[recipe.train.loss])
    found = compare(data, [recipe(loss) for loss in ndcg], [1.0] * len(ndcg), CPU)
    return [each.recipe.train.loss for each in found]


def test_the_best_comes_first_however_long_it_takes(monkeypatch: pytest.MonkeyPatch, data: Dataset) -> None:
    ndcg = {"bpr": [0.1, 0.3], "softmax": [0.3, 0.5], "multinomial": [0.2, 0.4]}  # everyone agrees
    seconds = {"bpr": 1.0, "softmax": 3.0, "multinomial": 2.0}
    assert order(monkeypatch, data, ndcg, seconds) == ["softmax", "multinomial", "bpr"]


def test_of_two_within_a_standard_error_the_faster_comes_first(monkeypatch: pytest.MonkeyPatch, data: Dataset) -> None:
    """Softmax leads by 0.1 on average over four users; their differences deviate by 0.3, so the error is 0.15."""
    ndcg = {"bpr": [0.5, 0.5, 0.1, 0.1], "softmax": [0.9, 0.3, 0.5, -0.1]}
    assert order(monkeypatch, data, ndcg, {"bpr": 1.0, "softmax": 2.0}) == ["bpr", "softmax"]
    assert order(monkeypatch, data, ndcg, {"bpr": 2.0, "softmax": 1.0}) == ["softmax", "bpr"]
    ndcg["softmax"] = [0.8, 0.5, 0.4, 0.1]  # leads by 0.15, and the differences deviate by as much: the error is 0.075
    assert order(monkeypatch, data, ndcg, {"bpr": 1.0, "softmax": 2.0}) == ["softmax", "bpr"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Each step takes a second. Softmax takes three times as long as BPR on a common device."""
    clock = Clock()
    sound = GradientSteps.take

    def take(self: GradientSteps, step: int, epoch: int) -> None:
        sound(self, step, epoch)
        clock.now += 1.0
        clock.taken.append((step, epoch))

    seconds = {"bpr": 1.0, "softmax": 3.0}
    monkeypatch.setattr(GradientSteps, "take", take)
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(comparison, "Forecast", partial(Forecast, clock=clock))
    monkeypatch.setattr(comparison, "nominal_training_seconds", lambda recipe, *rest: seconds[recipe.train.loss])
    monkeypatch.setattr(comparison, "saving_seconds", lambda learner: 0.0)
    return clock


def test_the_time_of_the_comparison_is_told(data: Dataset, clock: Clock) -> None:
    """A whole training by the first recipe has 60 steps. A quarter of it and of the second take as long as one, since
    the second nominally takes three times as long. It is told after more than five seconds."""
    told: list[tuple[float, float, float]] = []
    recipes = [recipe(loss, f"train.epochs={epochs}", "train.batch_size=240") for loss, epochs in
               (("bpr", 30), ("softmax", 16))]  # fmt: skip
    compare(data, recipes, [0.25, 0.25], CPU, told=lambda *both: told.append((*both, clock.now - 100)))
    assert told == [(60 * (0.25 + 3 * 0.25), 60, 6)]
    assert clock.taken == [(step, step // 2) for steps in (16, 8) for step in range(steps)]


@pytest.mark.parametrize(("epochs", "rehearsed"), [(33, 0), (34, 1)])
def test_a_long_training_is_rehearsed_before_its_time_is_told(
    epochs: int, rehearsed: int, data: Dataset, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 60 seconds are left of 68 after the first six, and no more than that of 66."""
    seen: list[Learner] = []
    monkeypatch.setattr(comparison, "rehearse", lambda learner, forecast: seen.append(learner))
    long = recipe("bpr", f"train.epochs={epochs}", "train.batch_size=240")
    compare(data, [long], [0.25], CPU, told=lambda *both: None)
    assert len(seen) == rehearsed


# -- what becomes of it -------------------------------------------------------------------------------------------


def fit(data: Dataset, recipes: list[Recipe], out: Path, tell: Tell = untold, **options: Any) -> RunDirectory:
    """A run by the recipe that is chosen, as `hmlet.fit` makes it."""
    return loop.fit(data, choose(data, recipes, out, tell=tell, **options), out, tell=tell, **options)


@pytest.fixture
def multinomial_wins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A comparison without a training, which counts how often it was made."""
    made: list[int] = []

    def found(data: Dataset, recipes: list[Recipe], *rest: object) -> list[Compared]:
        made.append(len(recipes))
        return [Compared(recipes[1], 0.5, np.array([0.5])), Compared(recipes[0], 0.25, np.array([0.25]))]

    monkeypatch.setattr(choice, "compare", found)
    return made


def test_the_best_is_trained_and_the_record_says_why(
    data: Dataset, tmp_path: Path, multinomial_wins: list[int]
) -> None:
    said: list[str] = []
    run = fit(data, [recipe("bpr"), recipe("multinomial")], tmp_path / "run", tell=said.append)
    assert run.recipe() == recipe("multinomial")
    record = RunDirectory.open(run.path).record
    assert record.compared == {"multinomial": 0.5, "bpr": 0.25}
    assert record.compared_seconds > 0
    assert "comparing the losses bpr and multinomial on the validation part, by short trainings" in said
    assert "NDCG@20: multinomial 0.5000, bpr 0.2500; going on with multinomial" in said
    assert multinomial_wins == [2]


def test_a_resumed_run_keeps_its_loss(data: Dataset, tmp_path: Path, multinomial_wins: list[int]) -> None:
    recipes = [recipe("bpr"), recipe("multinomial")]
    first = fit(data, recipes, tmp_path / "run")
    again = fit(data, recipes, tmp_path / "run", resume=True)
    assert again.record == first.record
    assert multinomial_wins == [2]
    with pytest.raises(RunError, match="another recipe"):
        fit(data, [recipe("softmax")], tmp_path / "run", resume=True)


def test_one_recipe_needs_no_comparison(data: Dataset, tmp_path: Path, multinomial_wins: list[int]) -> None:
    run = fit(data, [recipe("bpr")], tmp_path / "run")
    assert not multinomial_wins
    assert not {"compared", "compared_seconds"} & run.record.as_json().keys()


def test_without_a_validation_part_the_first_is_trained(tmp_path: Path, multinomial_wins: list[int]) -> None:
    without = dataset(4, 4, "without", train=[(user, item) for user in range(4) for item in range(4) if user != item])
    run = fit(without, [recipe("bpr"), recipe("multinomial")], tmp_path / "run")
    assert run.recipe().train.loss == "bpr"
    assert not multinomial_wins


def test_a_budget_counts_the_comparison(
    data: Dataset, tmp_path: Path, multinomial_wins: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two comparisons of a quarter each and a whole training: it may take two thirds of the time."""
    ends: list[float] = []

    def fitted(data: Dataset, recipe: Recipe, device: object, ranks: object, deadline: float, tell: object) -> Recipe:
        ends.append(deadline - time.monotonic())
        return recipe

    monkeypatch.setattr(choice, "_fitted_in", fitted)
    monkeypatch.setattr(choice, "shares", lambda *rest: [0.25, 0.25])
    fit(data, [recipe("bpr"), recipe("multinomial")], tmp_path / "run", deadline=time.monotonic() + 300)
    assert ends == pytest.approx([200, 200], abs=1)


def test_the_command_compares(data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.save(tmp_path / "data")
    assert main(["train", str(tmp_path / "data"), "--print-config"]) == 0
    assert "losses bpr, multinomial, popularity-aware multinomial on validation" in capsys.readouterr().err
    recipes = requested(tmp_path / "data", SettingsRequest("hmlet-end"))
    run = hmlet.fit(tmp_path / "data", "hmlet-end", tmp_path / "run")
    assert run.record.compared.keys() == {"bpr", "multinomial", "popularity-aware multinomial"}
    assert run.recipe in recipes
