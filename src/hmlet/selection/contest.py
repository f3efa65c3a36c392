"""leaderboard(): train every model within a budget, and rank what finished.

Closed forms come first, because they take seconds. Then come the quick models, which most people ask about, and then
all others, the cheapest first. Each may take its share of the time that is left, and its schedule is shortened to fit.

The run directories are the only state. So a call that is stopped, or runs out of time, goes on when it is made again:
finished runs are kept, and an unfinished one is resumed.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from hmlet.config import Recipe, SettingsRequest, Shape, Target
from hmlet.config.listing import kind as model_kind
from hmlet.data import Dataset
from hmlet.data.catalog import known_name
from hmlet.data.inputs import DataLike, as_dataset
from hmlet.data.record import is_prepared, read_record
from hmlet.errors import ConfigError, HmletError, NothingHeldOut, RunError, TooLittleTime
from hmlet.graph import Sizes
from hmlet.models import FLOOR, MODELS, QUICK
from hmlet.runs.directory import RunDirectory
from hmlet.runs.finished import FinishedRun
from hmlet.runs.record import RECORD
from hmlet.selection.board import Entry, K, Leaderboard, rank
from hmlet.system.files import put
from hmlet.system.locks import held
from hmlet.system.progress import Advance, Progress, watching
from hmlet.system.spelling import option
from hmlet.system.threads import working_threads
from hmlet.system.units import duration
from hmlet.training.comparison import nominal_cost
from hmlet.training.floor import nominal_training_seconds
from hmlet.training.loop import choose_device, fit
from hmlet.training.trainer import EpochEvent, Interrupted, StopTraining
from hmlet.tuning.choice import choose

PAGE, RUNS, DATA, LOCK = "leaderboard.html", "runs", "data", "leaderboard.lock"
OVERRUN = 0.05  # of the budget: a model that is nearly done may end
PREFERENCE = 3.0  # how much more of its schedule a quick model gets than another
LEAST_SHARE = 0.1  # of the time that a model needs, below which its result would say little about it
LEAST_OF_EQUAL = 0.5  # of an equal share of the time, which every model may take: costs are rough
log = logging.getLogger(__name__)


def leaderboard(
    data: DataLike,
    out: Path | str,
    *,
    minutes: float = 15.0,
    models: Sequence[str] = (),
    device: str = "auto",
    progress: Progress | bool = True,
) -> Leaderboard:
    """Train every model, or those named, as `fit` does by default, and rank them by validation: `hmlet leaderboard`.

    Example: hmlet.leaderboard("debian", "board", minutes=10).best

    Closed forms run first, then the models of `hmlet try`, then all others. Each gets a share of the `minutes` that are
    left, and a schedule that fits. A model that fails, or has no time left, is a row with the reason. Call it again
    with the same `out` to go on: finished runs are kept, an unfinished one is resumed.
    """
    started, progress = time.monotonic(), watching(progress)
    if not 0 < minutes < math.inf:
        raise ConfigError(f"{option('minutes', minutes)} is not a positive number", f"use {option('minutes', 15)}, say")
    place = Path(out)
    _require_own(place)
    dataset = _loaded(data, progress)
    _require_same_data(dataset, place)
    kind = choose_device(device).type
    entering = contestants(dataset, models, kind)
    with held(place / LOCK, kind=RunError):
        dataset = _kept(dataset, place)
        contest = _Contest(dataset, place, device, started, 60 * minutes, entering)
        threads = working_threads() if kind == "cpu" else nullcontext()
        with progress(f"leaderboard on {dataset.name}") as advance, threads:
            contest.hold(advance)
        rows = rank(contest.entries, {name: model_kind(MODELS[name].Config) for name in MODELS}, contest.notes)
        return _with_page(Leaderboard(dataset.name, place, rows, place / PAGE))


@dataclass(frozen=True)
class Contestant:
    """A model, the recipes that `fit` would compare for the data, and a rough cost, which is 0 for a solved model."""

    name: str
    recipes: list[Recipe]
    cost: float  # seconds

    @property
    def weight(self) -> float:
        """What its share of the time is in proportion to."""
        return self.cost * (PREFERENCE if self.name in QUICK else 1.0)


def contestants(data: Dataset, models: Sequence[str], device: str) -> list[Contestant]:
    """The models to train, in order; the floor is always among them."""
    names = list(dict.fromkeys(models)) or list(MODELS)
    if FLOOR in MODELS and FLOOR not in names:
        names.append(FLOOR)
    found, target = [], Target(known_name(data), Shape.of(data), device)
    for name in names:
        recipes = SettingsRequest(name).alternatives(target)
        # A rough time orders the models. The first runs correct it.
        cost = 0.0 if MODELS[name].Config.solved else nominal_cost(data, recipes, device)
        found.append(Contestant(name, recipes, cost))

    def turn(each: Contestant) -> tuple[object, ...]:
        if not each.cost:
            return False, each.name != FLOOR, each.recipes[0].train.epochs
        return True, each.name not in QUICK, each.cost

    return sorted(found, key=turn)


class _Contest:
    """The models on their way: what finished, and why others did not."""

    def __init__(
        self,
        data: Dataset,
        out: Path,
        device: str,
        started: float,
        budget: float,
        contestants: Sequence[Contestant],
    ) -> None:
        self.data, self.out, self.device, self.contestants = data, out, device, contestants
        self.deadline, self.stop_at = started + budget, started + (1 + OVERRUN) * budget
        self.entries: dict[str, Entry] = {}
        self.notes: dict[str, str] = {}

    def hold(self, advance: Advance) -> None:
        for at, each in enumerate(self.contestants):
            advance(at, len(self.contestants), self._text(each.name))
            try:
                self._enter(each, at, advance)
            except Interrupted:
                raise
            except StopTraining:
                self.notes[each.name] = "stopped: the time is over; run the command again to go on"
            except TooLittleTime:
                self.notes[each.name] = "skipped: not enough time left for an epoch; run the command again to add it"
            except (HmletError, MemoryError, torch.OutOfMemoryError) as error:
                self.notes[each.name] = f"failed: {error or type(error).__name__}"
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        advance(len(self.contestants), len(self.contestants), self._text("done"))

    def _enter(self, each: Contestant, at: int, advance: Advance) -> None:
        """Train a model unless it has been, and evaluate it."""
        path = self.out / RUNS / each.name
        before = RunDirectory.open(path) if (path / RECORD).is_file() else None
        if before is None or not before.finished:
            if (reason := self._no_time_for(each)) is not None:
                self.notes[each.name] = reason
                return

            done = float(at)

            def show(what: str) -> None:
                advance(done, len(self.contestants), self._text(f"{each.name}, {what}"))

            def listen(event: EpochEvent) -> None:
                nonlocal done
                epoch, last = event["epoch"], event["epochs"]
                done = at + epoch / last
                show(f"epoch {epoch} of {last}")
                if epoch < last and time.monotonic() > self.stop_at:
                    raise StopTraining

            recipes = each.recipes if before is None else [before.recipe()]
            ends = time.monotonic() + self._allowance(each) if each.cost else None  # what is solved is never shortened
            how = choose(self.data, recipes, path, device=self.device, resume=True, deadline=ends, tell=show)
            fit(self.data, how, path, device=self.device, resume=True, deadline=ends, listener=listen, tell=show)
        run = FinishedRun.open(path)
        valid, test = (run.evaluate(part, k=K) for part in ("valid", "test"))
        wanted = {recipe.objective: recipe.train.epochs for recipe in each.recipes}
        self.entries[each.name] = Entry(run, valid, test, wanted.get(run.recipe.objective, 0))

    def _no_time_for(self, each: Contestant) -> str | None:
        """Why a model is not started, if so."""
        left, need = self.deadline - time.monotonic(), self._need(each)
        if left <= 0:
            return "skipped: no time left; run the command again to add it"
        if left < LEAST_SHARE * need:
            return (
                f"skipped: it needs about {duration(need)}, and {duration(left)} are left;"
                " run the command again to add it"
            )
        return None

    def _allowance(self, each: Contestant) -> float:
        """The seconds that a model may take: as large a part of those left as its weight is of all that are to come.

        A part that would say little about the model is made larger, at the expense of the models after it.
        """
        left = self.deadline - time.monotonic()
        to_come = [one for one in self.contestants if one.cost and one.name not in {*self.entries, *self.notes}]
        share = left * each.weight / sum(one.weight for one in to_come)
        return min(left, max(share, LEAST_SHARE * self._need(each), LEAST_OF_EQUAL * left / len(to_come)))

    def _need(self, each: Contestant) -> float:
        """The seconds of a model's comparison and whole schedule, by what the last one took; 0 before there is one."""
        trained = [one.name for one in self.contestants if one.cost and one.name in self.entries]
        if not trained:
            return 0.0
        last, sizes = self.entries[trained[-1]].run, Sizes.of(self.data)
        kind = choose_device(self.device).type
        nominal = nominal_training_seconds(last.recipe, sizes.users, sizes.items, sizes.edges, kind)
        nominal *= last.record.epochs / last.recipe.train.epochs
        return each.cost * last.record.timings.training_seconds / nominal

    def _text(self, doing: str) -> str:
        worth = {name: entry.valid.metrics["ndcg"] for name, entry in self.entries.items()}
        best = max(worth, key=lambda name: worth[name], default=None)
        return doing if best is None else f"{doing}  best so far {best} {worth[best]:.4f}"


def _require_own(place: Path) -> None:
    """Refuse a directory that holds something else."""
    names = set(os.listdir(place)) if place.is_dir() else set()
    if names and not names & {RUNS, DATA, LOCK}:
        raise RunError(f"{place} is neither empty nor a leaderboard", f"choose another {option('out')}")


def _loaded(data: DataLike, progress: Progress) -> Dataset:
    """The data set, which has something to select on and something to test on."""
    if isinstance(data, Dataset):
        dataset = data
    else:
        with progress(f"loading {data}" if isinstance(data, Path | str) else "reading") as advance:
            dataset = as_dataset(data, advance)
    for part in ("valid", "test"):
        if not dataset.count(part):
            raise NothingHeldOut(
                f"{dataset.name} has nothing in the {part} part, which a leaderboard needs",
                "prepare it with a split that holds some interactions out",
            )
    return dataset


def _kept(data: Dataset, place: Path) -> Dataset:
    """The data set at a place where every run finds it again: in-memory data is saved once, next to the runs."""
    if data.reference is not None:
        return data
    if not (place / DATA).exists():
        data.save(place / DATA)
    return Dataset.load(place / DATA)


def _require_same_data(data: Dataset, place: Path) -> None:
    """Refuse a directory that has other data, or runs on it."""
    runs = [RunDirectory.open(record.parent) for record in sorted((place / RUNS).glob(f"*/{RECORD}"))]
    before = {run.record.data.fingerprint for run in runs}
    if is_prepared(place / DATA):
        before.add(read_record(place / DATA).fingerprint)
    for fingerprint in before - {data.fingerprint}:
        raise RunError(
            f"{place} is for another data set ({fingerprint[:12]} there, {data.fingerprint[:12]} here)",
            f"choose another {option('out')}",
        )


def _with_page(board: Leaderboard) -> Leaderboard:
    """The leaderboard with its page written, or without one where the plotting library is missing."""
    try:
        from hmlet.selection.page import render
    except ImportError as error:
        log.warning("no leaderboard page was written (%s is not installed): pip install 'hmlet[report]'", error.name)
        return Leaderboard(board.data, board.out, board.rows, None)
    assert board.page is not None
    put(board.page, render(board).encode())
    return board
