"""The queue without Optuna: in order, resumable, and with the same answer as a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from searched import GRID, RECIPE, Fake, goodness, planted

from hmlet.config import Recipe
from hmlet.errors import MissingExtra, TrainingError
from hmlet.training.trainer import Interrupted
from hmlet.tuning import LocalQueue, Objective, TrialRecord, best_trial, tune
from hmlet.tuning.space import grid

POINTS = grid(GRID, RECIPE.seed)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr("hmlet.tuning.trial.fit", fake)
    return fake


@pytest.fixture
def objective() -> Objective:
    return Objective(planted(), RECIPE, "cpu")


def test_points_are_tried_in_order_and_saved_one_by_one(fake: Fake, objective: Objective, tmp_path: Path) -> None:
    saved: list[Sequence[TrialRecord]] = []
    queue = LocalQueue(POINTS, tmp_path / "run", save=lambda records: saved.append(list(records)))
    while queue.take(objective.train):
        assert not (tmp_path / "run").exists()  # after a trial its run directory is gone
    assert [record.params for record in queue.records()] == POINTS
    assert [record.value for record in queue.records()] == [goodness(objective.recipe(point)) for point in POINTS]
    assert [len(records) for records in saved] == list(range(1, len(POINTS) + 1))
    assert {record.state for record in queue.records()} == {"complete"}
    assert all(record.trained and record.trained.best_epoch == 4 for record in queue.records())
    assert all(record.seconds == 1.0 for record in queue.records())  # the training's, which is longer than the call


def test_both_queues_find_the_same_best_point(fake: Fake, objective: Objective, tmp_path: Path) -> None:
    queue = LocalQueue(POINTS, tmp_path / "run")
    while queue.take(objective.train):
        pass
    best = best_trial(queue.records())
    shared = tune(planted(), RECIPE, GRID, tmp_path / "out", device="cpu")
    assert best is not None
    assert (best.number, best.params, best.value) == (shared.best.number, shared.best.params, shared.best.value)
    assert [record.params for record in queue.records()] == [record.params for record in shared.trials]


def test_a_queue_goes_on_after_its_records(fake: Fake, objective: Objective, tmp_path: Path) -> None:
    first = LocalQueue(POINTS, tmp_path / "run")
    first.take(objective.train)
    second = LocalQueue(POINTS, tmp_path / "run", first.records())
    assert second.take(objective.train)
    assert [record.params for record in second.records()] == POINTS[:2]
    assert [record.number for record in second.records()] == [0, 1]


@pytest.mark.parametrize("stop", [Interrupted("stopped in epoch 2"), MissingExtra("BPR", "a library", "x")])
def test_a_trial_that_may_be_finished_later_stays_on_the_queue(
    fake: Fake, objective: Objective, tmp_path: Path, stop: Exception
) -> None:
    def before(recipe: Recipe, out: Path) -> None:
        if len(fake.calls) == 1:
            raise stop

    fake.before = before
    queue = LocalQueue(POINTS, tmp_path / "run")
    with pytest.raises(type(stop)):
        queue.take(objective.train)
    assert queue.records() == []
    assert (tmp_path / "run").is_dir()  # what was saved is resumed
    assert queue.take(objective.train)
    assert [(call[0], call[2]) for call in fake.calls] == [(objective.recipe(POINTS[0]), True)] * 2


def test_a_failed_trial_is_recorded_and_never_the_best(fake: Fake, objective: Objective, tmp_path: Path) -> None:
    def fail(recipe: Recipe, out: Path) -> None:
        raise TrainingError("the loss is not finite")

    fake.before = fail
    queue = LocalQueue(POINTS[:1], tmp_path / "run")
    assert queue.take(objective.train)
    (record,) = queue.records()
    assert (record.state, record.value, record.error) == ("failed", None, "the loss is not finite")
    assert best_trial(queue.records()) is None
    assert not queue.take(objective.train)
