"""Optuna, an extra that is imported nowhere else: its storage, samplers and pruners as a search needs them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

from hmlet.errors import ConfigError, MissingExtra
from hmlet.system.spelling import option

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

Sampler = Literal["grid", "tpe", "random"]
Pruning = Literal["none", "median", "halving"]
HEARTBEAT_S = 10
GRACE_S = 60  # without a heartbeat, after which a trial's process counts as dead
POLL_S = 1.0  # between two looks at what other processes do
LOCK_S = 5  # that an SQLite file may be locked when a search starts
BUSY_S = 60  # that it may be locked later: other processes of the search write to it
TRIAL_ATTEMPTS = 3  # of a trial whose process dies; then it is left alone, since it may be what kills them


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


def connect(url: str) -> Any:
    """The storage behind a URL. Two processes that create the tables at one moment disturb each other: look again."""
    optuna = library()

    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    sqlite = url.startswith("sqlite")
    options = {
        "engine_kwargs": {"connect_args": {"timeout": BUSY_S}} if sqlite else {},
        "heartbeat_interval": HEARTBEAT_S,
        "grace_period": GRACE_S,
        "heartbeat_stale_trial_callback": retry(TRIAL_ATTEMPTS - 1),
    }
    for left in (2, 1, 0):
        try:
            if sqlite:
                _require_unlocked(url)
            return _one_writer_at_a_time(optuna.storages.RDBStorage(url, **options))
        except (ArgumentError, ImportError) as error:
            reason: Exception = error
            break
        except SQLAlchemyError as error:
            reason = error
            if left:
                time.sleep(POLL_S)
    # The URL may hold a password, so the message repeats neither it nor what the database said of it.
    raise ConfigError(
        f"the storage cannot be opened ({type(reason).__name__})",
        f"check {option('storage')}, for example sqlite:///study.db",
    ) from reason


def _require_unlocked(url: str) -> None:
    """Refuse an SQLite file that another process keeps locked."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import OperationalError

    engine = create_engine(url, connect_args={"timeout": LOCK_S})
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as error:
        if "locked" not in str(error.orig):
            raise
        raise ConfigError(
            f"the storage has been locked by another process for {LOCK_S} seconds",
            f"stop that process, or choose another {option('storage')} or {option('out')}",
        ) from error
    finally:
        engine.dispose()


def _one_writer_at_a_time(storage: Any) -> Any:
    """The storage, with every transaction of an SQLite file locked from its beginning.

    Optuna reads a trial's state and then writes it, counting on row locks, which SQLite has not: two processes would
    read "waiting" at one moment and both take the trial.
    """
    from sqlalchemy import event

    if storage.engine.dialect.name == "sqlite":
        storage.engine.dispose()  # the connections that were opened before the listeners were there

        @event.listens_for(storage.engine, "connect")
        def leave_transactions_to_us(connection: Any, record: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(storage.engine, "begin")
        def lock(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return storage


def watch(study: Study, running: Sequence[FrozenTrial], watched: set[int]) -> None:
    """Start the clock of each running trial once: a process that died before its first heartbeat has none."""
    for trial in running:
        if trial.number not in watched:
            study._storage.record_heartbeat(trial._trial_id)
            watched.add(trial.number)


def retry(times: int | None = None) -> Any:
    """A call that puts an ended trial back on the queue, with its parameters and what it has reported."""
    return library().storages.RetryHeartbeatStaleTrialCallback(times, inherit_intermediate_values=True)


def make_sampler(name: str, seed: int) -> Any:
    """A sampler whose draws depend on the seed and the trial's number only, whichever process asks."""
    optuna = library()

    def fresh(number: int) -> Any:
        kind = optuna.samplers.TPESampler if name == "tpe" else optuna.samplers.RandomSampler
        return kind(seed=(seed * 1_000_003 + number) % 2**32)

    base: Any = optuna.samplers.BaseSampler

    class Numbered(base):  # type: ignore[misc]
        inner = fresh(0)

        def before_trial(self, study: Study, trial: FrozenTrial) -> None:
            self.inner = fresh(trial.number)
            self.inner.before_trial(study, trial)

        def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Any:
            return self.inner.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Any) -> Any:
            return self.inner.sample_relative(study, trial, search_space)

        def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
            return self.inner.sample_independent(study, trial, param_name, param_distribution)

        def after_trial(self, study: Study, trial: FrozenTrial, state: Any, values: Any) -> None:
            self.inner.after_trial(study, trial, state, values)

    return Numbered()


def make_pruner(name: str, epochs: int) -> Any:
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
