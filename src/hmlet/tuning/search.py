"""Search over a recipe's space by validation NDCG@20, on a queue that any number of processes work off.

The queue is an Optuna study: an entry a trial, put there once and taken by one process at a time. A process that dies
stops its heartbeat; whoever looks next puts its entry back, and the trial goes on from its checkpoint.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from hmlet.config import Recipe, differences
from hmlet.data import Dataset
from hmlet.errors import ConfigError, HmletError, TrainingError
from hmlet.runs.directory import keep_only
from hmlet.system.files import put
from hmlet.training.loop import SELECTION, Interrupted, StopTraining, fit
from hmlet.tuning import backend
from hmlet.tuning.backend import Pruning, Sampler
from hmlet.tuning.space import Range, Space, as_json

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

RECORDS = ("config.toml", "run.json", "metrics.jsonl", "run.lock")  # what stays of a trial that lost


@dataclass(frozen=True)
class TrialRecord:
    """One trial: what was tried, what came of it, and where its run directory is."""

    number: int
    state: str  # complete, pruned, failed, running or waiting
    params: dict[str, Any]
    value: float | None  # best validation NDCG@20; of a pruned trial, up to there
    seconds: float | None
    run: str
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Tuning:
    """A finished search."""

    out: Path
    best: TrialRecord
    recipe: Recipe
    trials: tuple[TrialRecord, ...]

    def as_json(self) -> dict[str, Any]:
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
    again with the same `out`, also by several processes at once, it goes on with what is left. `storage` is any
    database URL that Optuna takes; by default it is OUT/study.db. Only the best trial keeps its weights, unless `keep`.
    The listener is told of all trials whenever one ends. The test part is never read.
    """
    search = Search(data, recipe, space, Path(out), keep, device, listener)
    entries = search.entries(sampler, trials)
    pruning = pruning or ("none" if sampler == "grid" else "median")
    put(search.out / "base.toml", recipe.to_toml().encode())
    with backend.quiet():
        study = search.open(storage, sampler, pruning)
        search.fill(study, entries)
        search.write(study)
        search.work(study)
    return search.finish(study)


@dataclass(frozen=True)
class Search:
    """What one process needs to take part in a search."""

    data: Dataset
    base: Recipe
    space: Space
    out: Path
    keep: bool
    device: str
    listener: Callable[[Sequence[TrialRecord]], None]

    # -- the queue ------------------------------------------------------------------------------------------------

    def entries(self, sampler: str, trials: int | None) -> list[dict[str, str]]:
        """The queue: for each trial the parameters settled in advance, all of a grid's and none of a sampler's.

        A choice travels as JSON text: Optuna's categories know no lists and take 1, 1.0 and true for one value.
        """
        if sampler not in get_args(Sampler):
            raise ConfigError(f"there is no sampler {sampler!r}", f"use {', '.join(get_args(Sampler))}")
        if not self.data.count("valid"):
            raise ConfigError(f"{self.data.name} has no validation part to choose by", "prepare it with a --split")
        if trials is not None and trials < 1:
            raise ConfigError(f"trials = {trials} is not positive", "use --trials 20, say")
        self._check_ends()
        if sampler != "grid":
            return [{} for _ in range(trials or 20)]
        for key, values in self.space.items():
            if isinstance(values, Range):
                raise ConfigError(f"a grid cannot try the range of {key}", "list its values, or use --sampler tpe")
        points = [
            dict(zip(self.space, map(json.dumps, point), strict=True))
            for point in itertools.product(*self.space.values())
        ]
        order = np.random.default_rng(self.base.seed).permutation(len(points))
        return [points[at] for at in order[:trials]]

    def _check_ends(self) -> None:
        """Refuse a space with a key or value that no recipe has, before anything is trained."""
        for key, values in self.space.items():
            for value in (values.low, values.high) if isinstance(values, Range) else values:
                self.recipe({key: value})

    def open(self, storage: str | None, sampler: str, pruning: str) -> Study:
        """The study, new or as it was left, once it is known to be about the same thing."""
        url = storage or f"sqlite:///{(self.out / 'study.db').resolve()}"
        study: Study = backend.library().create_study(
            storage=backend.connect(url),
            study_name=self.out.resolve().name,
            sampler=backend.make_sampler(sampler, self.base.seed),
            pruner=backend.make_pruner(pruning, self.base.train.epochs),
            direction="maximize",
            load_if_exists=True,
        )
        about = {
            "data": self.data.fingerprint,
            "recipe": self.base.to_toml(),
            "space": as_json(self.space),
            "sampler": sampler,
        }
        for key, value in about.items():
            before = study.user_attrs.get(key, value)
            if before != value:
                words = _differing(key, before, value)
                raise ConfigError(f"{self.out} holds a search with another {key}: {words}", "choose another --out")
            study.set_user_attr(key, value)
        return study

    def fill(self, study: Study, entries: Sequence[dict[str, str]]) -> None:
        """Put every entry on the queue that is neither there nor settled; interrupted trials go back to it."""
        attempts: dict[int, list[FrozenTrial]] = {}
        for trial in study.get_trials(deepcopy=False):
            if _is_entry(trial):
                attempts.setdefault(trial.user_attrs["entry"], []).append(trial)
        for at, params in enumerate(entries):
            before = attempts.get(at)
            if before is None:
                study.enqueue_trial(dict(params), user_attrs={"entry": at})
            elif not any(_counts(trial) for trial in before):
                backend.retry()(study, before[-1])

    def work(self, study: Study) -> None:
        """Take trials until none is left, here or in another process."""
        optuna = backend.library()
        states = optuna.trial.TrialState
        watched: set[int] = set()
        while True:
            optuna.storages.fail_stale_trials(study)
            trials = study.get_trials(deepcopy=False)
            backend.watch(study, [trial for trial in trials if trial.state == states.RUNNING], watched)
            left = {trial.state for trial in trials}
            if states.WAITING in left:
                try:
                    study.optimize(self.attempt, n_trials=1, catch=(_NoValue,))
                except (optuna.exceptions.UpdateFinishedTrialError, ValueError) as error:
                    # This process slept past the grace: the trial was given to another one, which has told it.
                    if isinstance(error, ValueError) and "Cannot tell" not in str(error):
                        raise
                    continue
                self.write(study)
            elif states.RUNNING in left:
                time.sleep(backend.POLL_S)
            else:
                return

    # -- one trial ------------------------------------------------------------------------------------------------

    def attempt(self, trial: Trial) -> float:
        """Train one point; returns its best validation NDCG@20."""
        frozen = trial.study.get_trials(deepcopy=False)[trial.number]
        if _is_surplus(frozen, trial.study):
            trial.set_user_attr("surplus", True)
            raise _NoValue
        params = {key: self._suggest(trial, key, values) for key, values in self.space.items()}

        def listen(event: dict[str, Any]) -> None:
            if "valid" in event:
                trial.report(event["valid"][SELECTION], event["epoch"])
                if trial.should_prune():
                    raise StopTraining

        place = self.out / _directory(frozen)
        try:
            recipe = self.recipe(params)
            run = fit(self.data, recipe, place, device=self.device, resume=place.exists(), listener=listen)
        except StopTraining:
            raise backend.library().TrialPruned from None
        except Interrupted as stop:
            raise Interrupted(stop.message, f"go on with the same hmlet tune … --out {self.out}") from stop
        except HmletError as error:
            trial.set_user_attr("error", str(error))
            raise _NoValue from error
        assert run.record.valid is not None  # `entries` refuses data without a validation part
        return run.record.valid[SELECTION]

    def _suggest(self, trial: Trial, key: str, values: tuple[Any, ...] | Range) -> Any:
        if not isinstance(values, Range):
            return json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in values]))
        if isinstance(values.low, int) and isinstance(values.high, int):
            return trial.suggest_int(key, values.low, values.high, log=values.log)
        return trial.suggest_float(key, values.low, values.high, log=values.log)

    def recipe(self, params: Mapping[str, Any]) -> Recipe:
        """The base recipe with a point's values."""
        overrides = [f"{key}={json.dumps(value)}" for key, value in params.items()]
        return self.base.changed(overrides)

    # -- what is written ------------------------------------------------------------------------------------------

    def records(self, study: Study) -> list[TrialRecord]:
        """The trials of the queue, in the order of their numbers; an attempt that was taken up again is left out."""
        trials = [trial for trial in study.get_trials(deepcopy=False) if _is_entry(trial)]
        retried = {number for trial in trials for number in trial.system_attrs.get("retry_history", ())}
        return [self._record(trial) for trial in trials if trial.number not in retried]

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        state = {"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower())
        params = {
            key: value if isinstance(self.space[key], Range) else json.loads(value)
            for key, value in trial.params.items()
        }
        value = max(trial.intermediate_values.values(), default=None) if state == "pruned" else trial.value
        return TrialRecord(
            trial.number,
            state,
            params,
            value,
            round(trial.duration.total_seconds(), 3) if trial.duration else None,
            _directory(trial),
            trial.user_attrs.get("error"),
        )

    def write(self, study: Study) -> list[TrialRecord]:
        """Bring the files up to date with the study: all trials, the best recipe, and no weights of the others."""
        records = self.records(study)
        lines = "".join(json.dumps(record.as_json()) + "\n" for record in records)
        put(self.out / "trials.jsonl", lines.encode())
        best = _best(records)
        if best is not None:
            put(self.out / "best.toml", self.recipe(best.params).to_toml().encode())
        for record in records:
            # Values never change, so a trial that has lost has lost for good, whatever others do meanwhile.
            ended = record.state in ("complete", "pruned") or record.error is not None
            if ended and record is not best and not self.keep:
                keep_only(self.out / record.run, RECORDS)
        self.listener(records)
        return records

    def finish(self, study: Study) -> Tuning:
        """The result, once every trial of the queue has ended."""
        records = self.write(study)
        best = _best(records)
        if best is None:
            reasons = [record.error for record in records if record.error]
            raise TrainingError(
                f"none of {len(records)} trials finished; the first said: {reasons[0] if reasons else 'nothing'}",
                "mend that, then choose another --out",
            )
        return Tuning(self.out, best, self.recipe(best.params), tuple(records))


def _differing(key: str, before: Any, now: Any) -> str:
    """In words, how a search that stands at OUT differs from the one that is asked for."""
    if key == "recipe":
        before, now = (Recipe.from_toml(each).flat() for each in (before, now))
    elif key != "space":
        before, now = {key: before}, {key: now}
    return differences(before, now)


class _NoValue(Exception):
    """Ends a trial that failed, or that is not wanted; the search goes on."""


def _is_entry(trial: FrozenTrial) -> bool:
    return "entry" in trial.user_attrs and "surplus" not in trial.user_attrs


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial settles its entry or still may: one that was interrupted does not, one that failed does."""
    return trial.state.name != "FAIL" or "error" in trial.user_attrs


def _is_surplus(trial: FrozenTrial, study: Study) -> bool:
    """Whether a trial is one too many: two processes reached for the last entry, or filled the queue at one moment."""
    if "entry" not in trial.user_attrs:
        return True
    earlier = (other for other in study.get_trials(deepcopy=False) if other.number < trial.number and _is_entry(other))
    return any(other.user_attrs["entry"] == trial.user_attrs["entry"] and _counts(other) for other in earlier)


def _directory(trial: FrozenTrial) -> str:
    """Where a trial's run lies in OUT: under the number of its first attempt, whose checkpoint later ones take up."""
    return f"trials/{trial.system_attrs.get('failed_trial', trial.number):04d}"


def _best(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The complete trial with the highest value, the earliest of several."""
    complete = [record for record in records if record.state == "complete" and record.value is not None]
    return max(complete, key=lambda record: record.value or 0.0, default=None)
