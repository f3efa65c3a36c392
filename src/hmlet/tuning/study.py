"""The trials of a search, kept by Optuna and shared by any number of processes that have OUT in common.

One process at a time takes a trial, under OUT/study.lock, and holds a lock of the trial's own while it trains. The
system frees that lock when the process ends, however it ends. So a running trial whose lock is free goes back to the
queue, and continues from its checkpoint. Optuna, an extra, is imported nowhere else.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from hmlet.config import Recipe, differences
from hmlet.errors import ConfigError, HmletError, MissingExtra
from hmlet.system.locks import held, is_held
from hmlet.system.spelling import option
from hmlet.training.trainer import Interrupted, StopTraining
from hmlet.tuning.space import Point, Range, Space, as_json
from hmlet.tuning.trial import Objective, State, Task, Train, TrialRecord

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

Sampler = Literal["grid", "tpe", "random"]
Pruning = Literal["none", "median", "halving"]
POLL_S = 1.0  # between two looks at the trials that other processes train
LOCK_S = 60.0  # that a process waits for another one to take its trial
BUSY_S = 20.0  # that an SQLite file may be locked
TRIAL_ATTEMPTS = 3  # of a trial whose process dies; then it has failed, since it may be what kills them
STATES: dict[str, State] = {
    "COMPLETE": "complete",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}


def library() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("tuning", "optuna", "tune") from error
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna without its log and its warnings about experimental parts: what matters is in trials.jsonl."""
    optuna = library()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)  # told twice after a resume
            yield
    finally:
        optuna.logging.set_verbosity(before)


class SharedStudy:
    """The trials of one search, with their run directories under OUT/trials."""

    def __init__(self, study: Study, space: Space, out: Path, sampler: str, seed: int) -> None:
        self.study, self.space, self.out, self.sampler, self.seed = study, space, out, sampler, seed

    @classmethod
    def open(
        cls, objective: Objective, space: Space, out: Path, storage: str | None, sampler: str, pruning: str
    ) -> SharedStudy:
        """The study of OUT, new or as it was left; a search over something else is refused."""
        pruner = _pruner(pruning, objective.base.train.epochs)
        about = {
            "data": objective.data.fingerprint,
            "recipe": objective.base.to_toml(),
            "space": as_json(space),
            "sampler": sampler,
        }
        with _alone(out):
            study: Study = library().create_study(
                storage=_storage(storage or f"sqlite:///{(out / 'study.db').resolve()}"),
                study_name=out.resolve().name,
                pruner=pruner,
                direction="maximize",
                load_if_exists=True,
            )
            _require_same(study.user_attrs, about, out)
            for key, value in about.items():
                study.set_user_attr(key, value)
        return cls(study, space, out, sampler, objective.base.seed)

    def enqueue(self, points: Sequence[Point]) -> None:
        """Queue the trials that are not there yet. A sampler settles what a point leaves open."""
        with _alone(self.out):
            known = sum("failed_trial" not in trial.system_attrs for trial in self._trials())
            for point in points[known:]:
                # A choice travels as JSON text: Optuna's categories know no lists and equate 1, 1.0 and true.
                self.study.enqueue_trial({key: json.dumps(value) for key, value in point.items()})

    def take(self, train: Train) -> bool:
        """Train the next trial, after waiting for one that another process may give back; False when none is left."""
        while (claimed := self._claim()) is None:
            if all(trial.state.is_finished() for trial in self._trials()):
                return False
            time.sleep(POLL_S)
        trial, lock = claimed
        with lock:
            self._train(trial, train)
        return True

    def records(self) -> list[TrialRecord]:
        """The trials, in the order of their numbers; attempts that were repeated are left out."""
        trials = self._trials()
        repeated = _repeated(trials)
        return [self._record(trial) for trial in trials if trial.number not in repeated]

    def _claim(self) -> tuple[Trial, AbstractContextManager[object]] | None:
        """The next trial with its lock, or None if none is waiting."""
        with _alone(self.out), ExitStack() as lock:
            self._recover()
            waiting = next((trial for trial in self._trials() if trial.state.name == "WAITING"), None)
            if waiting is None:
                return None
            lock.enter_context(held(self._lock(waiting), LOCK_S))
            self.study.sampler = _sampler(self.sampler, self.seed, waiting.number)
            return self.study.ask(), lock.pop_all()

    def _recover(self) -> None:
        """Put running trials back whose process is gone."""
        free = [trial.number for trial in self._running() if not is_held(self._lock(trial))]
        for trial in self._running():  # again: one that ended meanwhile has freed its lock after that
            if trial.number in free:
                deaths = trial.user_attrs["deaths"] = trial.user_attrs.get("deaths", 0) + 1
                self._put_back(trial, again=deaths < TRIAL_ATTEMPTS and trial.number not in _repeated(self._trials()))

    def _put_back(self, trial: FrozenTrial, again: bool = True) -> None:
        """End an attempt and queue the trial again, with its parameters and what it has reported."""
        optuna = library()
        if again:
            optuna.storages.RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)(self.study, trial)
        self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def _train(self, trial: Trial, train: Train) -> None:
        """Train a trial's point and record its value, or why it has none."""
        states = library().trial.TrialState

        def report(epoch: int, value: float) -> None:
            trial.report(value, epoch)
            if trial.should_prune():
                raise StopTraining

        point = {key: _suggest(trial, key, values) for key, values in self.space.items()}
        place = self.out / _directory(self._trials()[trial.number])
        try:
            self.study.tell(trial, train(Task(point, place, report)).value)
        except StopTraining:
            self.study.tell(trial, state=states.PRUNED)
        except BaseException as error:
            if isinstance(error, HmletError) and not isinstance(error, Interrupted):
                trial.set_user_attr("error", str(error))
                self.study.tell(trial, state=states.FAIL)
                return
            with _alone(self.out):
                self._put_back(self.study.get_trials()[trial.number])
            raise

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        state = STATES[trial.state.name]
        params = {
            key: value if isinstance(self.space[key], Range) else json.loads(value)
            for key, value in trial.params.items()
        }
        value = max(trial.intermediate_values.values(), default=None) if state == "pruned" else trial.value
        seconds = round(trial.duration.total_seconds(), 3) if trial.duration else None
        died = f"its process was killed {TRIAL_ATTEMPTS} times" if state == "failed" else None
        error = trial.user_attrs.get("error", died)
        return TrialRecord(trial.number, state, params, value, seconds, _directory(trial), error)

    def _lock(self, trial: FrozenTrial) -> Path:
        return self.out / f"{_directory(trial)}.lock"

    def _running(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.get_trials() if trial.state.name == "RUNNING"]

    def _trials(self) -> Sequence[FrozenTrial]:
        found: Sequence[FrozenTrial] = self.study.get_trials(deepcopy=False)
        return found


def _alone(out: Path) -> AbstractContextManager[None]:
    """The right to open the study, and to move trials between its states, for one process at a time."""
    return held(out / "study.lock", LOCK_S)


def _storage(url: str) -> Any:
    """Optuna's storage behind a database URL."""
    optuna = library()

    from sqlalchemy.exc import SQLAlchemyError

    # A transaction that may write takes SQLite's lock at its beginning: two that upgrade theirs would fail at once.
    options = {"connect_args": {"timeout": BUSY_S, "isolation_level": "IMMEDIATE"}} if url.startswith("sqlite") else {}
    try:
        return optuna.storages.RDBStorage(url, engine_kwargs=options)
    except (SQLAlchemyError, ImportError) as error:
        if "locked" in str(getattr(error, "orig", "")):
            raise ConfigError(
                f"the storage has been locked by another process for {BUSY_S:g} seconds",
                f"stop that process, or choose another {option('storage')} or {option('out')}",
            ) from error
        # The URL may hold a password, so the message repeats neither it nor what the database said of it.
        raise ConfigError(
            f"the storage cannot be opened ({type(error).__name__})",
            f"check {option('storage')}, for example sqlite:///study.db",
        ) from error


def _require_same(before: Mapping[str, object], now: Mapping[str, object], out: Path) -> None:
    """Refuse to continue a search over something else."""
    for key, value in now.items():
        there, here = _compared(key, before.get(key, value)), _compared(key, value)
        if there != here:
            words = differences(there, here)
            raise ConfigError(f"{out} holds a search with another {key}: {words}", f"choose another {option('out')}")


def _compared(key: str, value: object) -> dict[str, object]:
    """What a study remembers under a key, as the values whose differences are named one by one.

    A recipe that an older version stored has its defaults for the keys that came later.
    """
    if key == "recipe":
        return Recipe.from_toml(str(value)).flat()
    return value if isinstance(value, dict) else {key: value}


def _sampler(name: str, seed: int, number: int) -> Any:
    """A sampler whose draws depend on the seed and the trial's number only, whichever process asks."""
    samplers = library().samplers
    kind = samplers.TPESampler if name == "tpe" else samplers.RandomSampler
    return kind(seed=(seed * 1_000_003 + number) % 2**32)


def _pruner(name: str, epochs: int) -> Any:
    """Which trials are stopped early, by their validations so far; none before a fifth of the epochs."""
    pruners = library().pruners
    patience = max(1, epochs // 5)
    if name == "none":
        return pruners.NopPruner()
    if name == "median":
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=patience)
    if name == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=patience, reduction_factor=3)
    raise ConfigError(f"there is no pruning {name!r}", f"use {', '.join(get_args(Pruning))}")


def _suggest(trial: Trial, key: str, values: tuple[object, ...] | Range) -> object:
    if not isinstance(values, Range):
        return json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in values]))
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(key, values.low, values.high, log=values.log)
    return trial.suggest_float(key, values.low, values.high, log=values.log)


def _repeated(trials: Sequence[FrozenTrial]) -> set[int]:
    """The numbers of attempts that later ones repeat."""
    return {number for trial in trials for number in trial.system_attrs.get("retry_history", ())}


def _directory(trial: FrozenTrial) -> str:
    """A trial's run directory in OUT: that of its first attempt, whose checkpoint later attempts resume."""
    return f"trials/{trial.system_attrs.get('failed_trial', trial.number):04d}"
