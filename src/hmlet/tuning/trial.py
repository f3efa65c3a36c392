"""One trial of a search: a point of the space trained to its validation value, and what is recorded of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.errors import ConfigError
from hmlet.training.loop import fit
from hmlet.training.trainer import SELECTION
from hmlet.tuning.space import Point, Range, Space

State = Literal["complete", "pruned", "failed", "running", "waiting"]


@dataclass(frozen=True)
class Task:
    """A trial that a queue hands out: the point to train, its run directory, and whom to tell of a validation.

    `report(epoch, value)` may raise StopTraining to prune the trial.
    """

    point: Point
    place: Path
    report: Callable[[int, float], None]


@dataclass(frozen=True)
class Trained:
    """What training a point gives: the validation metrics of its best epoch."""

    valid: Mapping[str, float]
    best_epoch: int
    seconds: float  # of training, over all calls that took part

    @property
    def value(self) -> float:
        """Validation NDCG@20, which a search maximizes."""
        return self.valid[SELECTION]


Train = Callable[[Task], Trained]


@dataclass(frozen=True)
class TrialRecord:
    """One trial: what was tried, the result, and where its run directory is."""

    number: int
    state: State
    params: Point
    value: float | None  # best validation NDCG@20; of a pruned trial, up to its end
    seconds: float | None
    run: str | None  # None where the queue keeps no run directories
    error: str | None = None
    trained: Trained | None = None  # None where the queue stores nothing but the value

    @property
    def ended(self) -> bool:
        return self.state not in ("waiting", "running")

    def as_json(self) -> dict[str, object]:
        """A line of trials.jsonl."""
        return {
            "number": self.number,
            "state": self.state,
            "params": dict(self.params),
            "value": self.value,
            "seconds": self.seconds,
            "run": self.run,
            "error": self.error,
        }


@dataclass(frozen=True)
class Objective:
    """What a search maximizes: the validation value of a base recipe with a point's values, on one data set."""

    data: Dataset
    base: Recipe
    device: str = "auto"

    def recipe(self, point: Point) -> Recipe:
        """The base recipe with a point's values."""
        return self.base.changed(f"{key}={json.dumps(value)}" for key, value in point.items())

    def train(self, task: Task) -> Trained:
        """Train a point on the training part, or resume it; the test part is never read."""

        def listen(event: Mapping[str, Any]) -> None:
            if "valid" in event:
                task.report(event["epoch"], event["valid"][SELECTION])

        recipe = self.recipe(task.point)
        record = fit(
            self.data, recipe, task.place, device=self.device, resume=True, listener=listen, keep_data=False
        ).record
        assert record.valid is not None  # `check` refuses data without a validation part
        return Trained(record.valid, record.best_epoch, record.timings.training_seconds)

    def check(self, space: Space) -> None:
        """Refuse data without a validation part, and a key or value that no recipe has, before anything is trained."""
        if not self.data.count("valid"):
            raise ConfigError(f"{self.data.name} has no validation part", "prepare it with a split that has one")
        for key, values in space.items():
            for value in (values.low, values.high) if isinstance(values, Range) else values:
                self.recipe({key: value})


def best_trial(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The complete trial with the highest value, the earliest of several."""
    complete = [record for record in records if record.state == "complete"]
    return max(complete, key=lambda record: record.value or 0.0, default=None)
