"""Search a space around a recipe for the best validation NDCG@20, and write down every trial: `hmlet tune`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.errors import ConfigError, TrainingError
from hmlet.runs.directory import keep_only
from hmlet.system.files import put
from hmlet.system.spelling import call, option
from hmlet.training.trainer import Interrupted
from hmlet.tuning.space import Point, Space, grid
from hmlet.tuning.study import Pruning, Sampler, SharedStudy, quiet
from hmlet.tuning.trial import Objective, TrialRecord, best_trial

LOSERS_FILES = ("config.toml", "run.json", "metrics.jsonl", "run.lock")  # what a trial keeps that is not the best
DRAWN_TRIALS = 20  # of a sampler that is not told how many


@dataclass(frozen=True, repr=False)
class Tuning:
    """A finished search."""

    out: Path
    best: TrialRecord
    recipe: Recipe
    trials: tuple[TrialRecord, ...]

    def __repr__(self) -> str:
        point = ", ".join(f"{key} = {value}" for key, value in self.best.params.items())
        return f"<Tuning {self.out}: best of {len(self.trials)} trials, NDCG@20 {self.best.value:.4f} with {point}>"

    def as_json(self) -> dict[str, object]:
        states = [trial.state for trial in self.trials]
        return {
            "out": str(self.out),
            "config": str(self.out / "best.toml"),
            "best": self.best.as_json(),
            "trials": {state: states.count(state) for state in sorted(set(states))},
        }


def tune(
    data: Dataset,
    recipe: Recipe,
    space: Space,
    out: Path | str,
    *,
    sampler: Sampler = "grid",
    trials: int | None = None,
    pruning: Pruning | None = None,
    storage: str | None = None,
    keep: bool = False,
    device: str = "auto",
    listener: Callable[[Sequence[TrialRecord]], None] = lambda trials: None,
) -> Tuning:
    """Search a space around a recipe and write OUT/best.toml, OUT/trials.jsonl and a run directory a trial.

    "grid" tries every combination, in an order drawn from the recipe's seed, or the first `trials` of them; "tpe" and
    "random" try `trials` (20) points. By default samplers prune by the median and the grid does not prune. Called
    again with the same `out`, also by several processes at once, it continues with what is left. `storage` is any
    database URL that Optuna takes; by default it is OUT/study.db. Only the best trial keeps its weights, unless `keep`.
    The listener receives all trials whenever one ends. The test part is never read.
    """
    objective, out = Objective(data, recipe, device), Path(out)
    points = planned_points(objective, space, sampler, trials)
    pruning = pruning or ("none" if sampler == "grid" else "median")
    put(out / "base.toml", recipe.to_toml().encode())
    with quiet():
        study = SharedStudy.open(objective, space, out, storage, sampler, pruning)
        study.enqueue(points)
        return Search(objective, study, out, keep, listener).run()


def planned_points(objective: Objective, space: Space, sampler: str, trials: int | None) -> list[Point]:
    """Each trial's point for a grid, and nothing settled in advance for a sampler."""
    if sampler not in get_args(Sampler):
        raise ConfigError(f"there is no sampler {sampler!r}", f"use {', '.join(get_args(Sampler))}")
    if trials is not None and trials < 1:
        raise ConfigError(f"trials = {trials} is not positive", f"use {option('trials', 20)}, say")
    objective.check(space)
    if sampler != "grid":
        return [{} for _ in range(trials or DRAWN_TRIALS)]
    return grid(space, objective.base.seed)[:trials]


@dataclass(frozen=True)
class Search:
    """One process's part in a search, and the files in OUT."""

    objective: Objective
    study: SharedStudy
    out: Path
    keep: bool
    listener: Callable[[Sequence[TrialRecord]], None]

    def run(self) -> Tuning:
        """Train trials until none is left, here or in another process."""
        self.write()
        try:
            while self.study.take(self.objective.train):
                self.write()
        except Interrupted as stop:
            raise Interrupted(stop.message, f"go on with the same {call('tune', out=self.out)}") from stop
        return self._finish()

    def write(self) -> list[TrialRecord]:
        """Bring the files up to date with the study: all trials, the best recipe, and no weights of the others."""
        records = self.study.records()
        lines = "".join(json.dumps(record.as_json()) + "\n" for record in records)
        put(self.out / "trials.jsonl", lines.encode())
        best = best_trial(records)
        if best is not None:
            put(self.out / "best.toml", self.objective.recipe(best.params).to_toml().encode())
        for record in records:
            # Values never change, so a trial that has lost has lost for good, whatever others do meanwhile.
            ended = record.state in ("complete", "pruned") or record.error is not None
            if ended and record is not best and record.run is not None and not self.keep:
                keep_only(self.out / record.run, LOSERS_FILES)
        self.listener(records)
        return records

    def _finish(self) -> Tuning:
        """The result, once every trial has ended."""
        records = self.write()
        best = best_trial(records)
        if best is None:
            reasons = [record.error for record in records if record.error]
            raise TrainingError(
                f"none of {len(records)} trials finished; the first said: {reasons[0] if reasons else 'nothing'}",
                f"correct that, then choose another {option('out')}",
            )
        return Tuning(self.out, best, self.objective.recipe(best.params), tuple(records))
