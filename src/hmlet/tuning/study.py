"""An Optuna study as a queue that any number of processes share.

Each trial has one entry, put on the queue once and taken by one process at a time. A process that dies stops its
heartbeat; the next one to look puts its entry back, and the trial goes on from its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hmlet.config import Recipe, differences
from hmlet.errors import ConfigError, HmletError
from hmlet.system.spelling import option
from hmlet.training.trainer import Interrupted, StopTraining
from hmlet.tuning import backend
from hmlet.tuning.queue import Train
from hmlet.tuning.space import Point, Range, Space, as_json
from hmlet.tuning.trial import Objective, State, Task, TrialRecord

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

STATES: dict[str, State] = {
    "COMPLETE": "complete",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}


class StudyQueue:
    """The trials of one search in a study, with their run directories under OUT/trials."""

    def __init__(self, study: Study, space: Space, out: Path) -> None:
        self.study, self.space, self.out = study, space, out
        self._watched: set[int] = set()

    @classmethod
    def open(
        cls, objective: Objective, space: Space, out: Path, storage: str | None, sampler: str, pruning: str
    ) -> StudyQueue:
        """The queue of OUT, new or as it was left; a search over something else is refused."""
        study: Study = backend.library().create_study(
            storage=backend.connect(storage or f"sqlite:///{(out / 'study.db').resolve()}"),
            study_name=out.resolve().name,
            sampler=backend.make_sampler(sampler, objective.base.seed),
            pruner=backend.make_pruner(pruning, objective.base.train.epochs),
            direction="maximize",
            load_if_exists=True,
        )
        about = {
            "data": objective.data.fingerprint,
            "recipe": objective.base.to_toml(),
            "space": as_json(space),
            "sampler": sampler,
        }
        for key, value in about.items():
            before, now = _compared(key, study.user_attrs.get(key, value)), _compared(key, value)
            if before != now:
                words = differences(before, now)
                raise ConfigError(
                    f"{out} holds a search with another {key}: {words}", f"choose another {option('out')}"
                )
            study.set_user_attr(key, value)
        return cls(study, space, out)

    def fill(self, entries: Sequence[Point]) -> None:
        """Put every entry on the queue that is neither there nor settled; interrupted trials go back to it."""
        attempts: dict[int, list[FrozenTrial]] = {}
        for trial in self._trials():
            if _is_entry(trial):
                attempts.setdefault(trial.user_attrs["entry"], []).append(trial)
        for at, point in enumerate(entries):
            before = attempts.get(at)
            if before is None:
                self.enqueue(at, point)
            elif not any(_counts(trial) for trial in before):
                backend.retry()(self.study, before[-1])

    def enqueue(self, entry: int, point: Point) -> None:
        """Add an entry. A choice travels as JSON text: Optuna's categories know no lists and equate 1, 1.0 and true."""
        settled = {key: json.dumps(value) for key, value in point.items()}
        self.study.enqueue_trial(settled, user_attrs={"entry": entry})

    def take(self, train: Train) -> bool:
        """Train the next trial, after waiting for one that another process may give back; False when none is left."""
        optuna = backend.library()
        states = optuna.trial.TrialState
        while True:
            optuna.storages.fail_stale_trials(self.study)
            trials = self._trials()
            running = [trial for trial in trials if trial.state == states.RUNNING]
            backend.watch(self.study, running, self._watched)
            if any(trial.state == states.WAITING for trial in trials):
                try:
                    self.study.optimize(self.attempt(train), n_trials=1, catch=(_NoValue,))
                except (optuna.exceptions.UpdateFinishedTrialError, ValueError) as error:
                    # This process slept past the grace period, and another one has finished the trial.
                    if isinstance(error, ValueError) and "Cannot tell" not in str(error):
                        raise
                    continue
                return True
            if not running:
                return False
            time.sleep(backend.POLL_S)

    def attempt(self, train: Train) -> Callable[[Trial], float]:
        """The function that Optuna calls with a trial: it trains the trial's point and returns its value."""

        def attempt(trial: Trial) -> float:
            trials = self._trials()
            frozen = trials[trial.number]
            if _is_surplus(frozen, trials):
                trial.set_user_attr("surplus", True)
                raise _NoValue

            def report(epoch: int, value: float) -> None:
                trial.report(value, epoch)
                if trial.should_prune():
                    raise StopTraining

            point = {key: _suggest(trial, key, values) for key, values in self.space.items()}
            try:
                return train(Task(point, self.out / _directory(frozen), report)).value
            except StopTraining:
                raise backend.library().TrialPruned from None
            except Interrupted:
                raise
            except HmletError as error:
                trial.set_user_attr("error", str(error))
                raise _NoValue from error

        return attempt

    def records(self) -> list[TrialRecord]:
        """The trials of the queue, in the order of their numbers; attempts that were retried are left out."""
        trials = [trial for trial in self._trials() if _is_entry(trial)]
        retried = {number for trial in trials for number in trial.system_attrs.get("retry_history", ())}
        return [self._record(trial) for trial in trials if trial.number not in retried]

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        state = STATES[trial.state.name]
        params = {
            key: value if isinstance(self.space[key], Range) else json.loads(value)
            for key, value in trial.params.items()
        }
        value = max(trial.intermediate_values.values(), default=None) if state == "pruned" else trial.value
        seconds = round(trial.duration.total_seconds(), 3) if trial.duration else None
        return TrialRecord(
            trial.number, state, params, value, seconds, _directory(trial), trial.user_attrs.get("error")
        )

    def _trials(self) -> Sequence[FrozenTrial]:
        found: Sequence[FrozenTrial] = self.study.get_trials(deepcopy=False)
        return found


class _NoValue(Exception):
    """Ends a trial that failed, or that is not wanted; the search goes on."""


def _compared(key: str, value: object) -> dict[str, object]:
    """What a study remembers under a key, as the values whose differences are named one by one.

    A recipe that an older version stored has its defaults for the keys that came later.
    """
    if key == "recipe":
        return Recipe.from_toml(str(value)).flat()
    return value if isinstance(value, dict) else {key: value}


def _suggest(trial: Trial, key: str, values: tuple[object, ...] | Range) -> object:
    if not isinstance(values, Range):
        return json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in values]))
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(key, values.low, values.high, log=values.log)
    return trial.suggest_float(key, values.low, values.high, log=values.log)


def _is_entry(trial: FrozenTrial) -> bool:
    return "entry" in trial.user_attrs and "surplus" not in trial.user_attrs


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial settles its entry or still may: one that was interrupted does not, one that failed does."""
    return trial.state.name != "FAIL" or "error" in trial.user_attrs


def _is_surplus(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> bool:
    """Whether a trial is one too many: two processes reached for the last entry, or filled the queue at one moment."""
    if "entry" not in trial.user_attrs:
        return True
    earlier = (other for other in trials if other.number < trial.number and _is_entry(other))
    return any(other.user_attrs["entry"] == trial.user_attrs["entry"] and _counts(other) for other in earlier)


def _directory(trial: FrozenTrial) -> str:
    """A trial's run directory in OUT: that of its first attempt, whose checkpoint later attempts resume."""
    return f"trials/{trial.system_attrs.get('failed_trial', trial.number):04d}"
