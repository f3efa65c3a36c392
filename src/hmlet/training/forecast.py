"""How long a training takes: foretold from the pace of its parts, and shortened to fit a budget."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from hmlet.config import Recipe
from hmlet.data import Dataset, Interactions, Vocabulary
from hmlet.errors import TooLittleTime
from hmlet.losses.sampling import eligible_users
from hmlet.models import GatedConfig
from hmlet.models.base import resting_epochs
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.spelling import option, override
from hmlet.system.units import duration
from hmlet.training.floor import inverse_rate, nominal_seconds, solving_seconds
from hmlet.training.learner import Learner
from hmlet.training.steps import GradientSteps

Clock = Callable[[], float]
WARM_UP = 4  # steps before the pace is taken: libraries choose algorithms, and on CUDA the step is captured
FORETOLD_AFTER = 5.0  # seconds until the forecast of the whole run is shown
LONG = 60.0  # seconds of training that are worth a rehearsal of what has not been timed yet
RECENT = 50  # stretches of steps whose mean is the pace
MEASURED_SECONDS, MEASURED_STEPS = 1.0, 20  # how long the pace of one kind of step is measured at most
SAVED_BYTES = 200e6  # bytes that are written, flushed and hashed a second, cautiously
RESERVE = 0.1  # of a budget, for a machine that becomes slower and for what comes before and after the training


@dataclass(frozen=True)
class Pace:
    """Seconds that each part of a training takes."""

    start: float  # the graph, the model and its start
    resting: float  # a step while every parameter but e⁰ rests
    step: float  # any other step
    validation: float
    saving: float  # of the finished model

    def total(self, recipe: Recipe, per_epoch: int) -> float:
        """Seconds of a whole training with `per_epoch` steps an epoch; early stopping aside."""
        return self.start + self.left(recipe, per_epoch, 0)

    def left(self, recipe: Recipe, per_epoch: int, taken: int, last: int | None = None) -> float:
        """Seconds from the moment that `taken` steps are done to the end of epoch `last`, or of all epochs."""
        epochs, every = recipe.train.last_epoch if last is None else last, recipe.train.validate_every
        steps, done = epochs * per_epoch, taken // per_epoch
        resting = max(0, min(resting_epochs(recipe.model), epochs) * per_epoch - taken)
        validations = -(-epochs // every) - done // every if done < epochs else 0
        trained = max(0, steps - taken) - resting
        return resting * self.resting + trained * self.step + validations * self.validation + self.saving


# -- while a model is trained -------------------------------------------------------------------------------------


class Forecast:
    """The pace of a training that is under way, and when it will end.

    Steps are timed in stretches, between two calls of `stretch`; the device has to be done with them by then.
    """

    def __init__(
        self, recipe: Recipe, per_epoch: int, taken: int, saving: float, clock: Clock = time.monotonic
    ) -> None:
        self.recipe, self.per_epoch, self.clock, self.saving = recipe, per_epoch, clock, saving
        self.validation: float | None = None  # seconds of the last one
        self.slowdown: float | None = None  # how many times as long as a resting step any other takes, if measured
        self._first = self._taken = taken
        self._since: float | None = None
        self._stretches: dict[bool, deque[tuple[int, float]]] = {kind: deque(maxlen=RECENT) for kind in (True, False)}

    @property
    def warm(self) -> bool:
        """Whether there is a pace yet."""
        return any(self._stretches.values())

    @property
    def rests(self) -> bool:
        """Whether no step has been seen yet of the kind that most steps are."""
        return not self._stretches[False]

    def stretch(self, taken: int) -> None:
        """Take note that `taken` steps are done by now; a stretch lies within one epoch."""
        now = self.clock()
        if taken - self._first < WARM_UP:
            return
        if self._since is not None and taken > self._taken:
            resting = self._taken < resting_epochs(self.recipe.model) * self.per_epoch
            self._stretches[resting].append((taken - self._taken, now - self._since))
        self._taken, self._since = taken, now

    def validated(self, seconds: float) -> None:
        """Take note of a validation, which just ended and was no step."""
        self.validation = seconds
        self.resume()

    def resume(self) -> None:
        """Take note that what happened since the last stretch was no step."""
        if self._since is not None:
            self._since = self.clock()

    def left(self, last: int | None = None) -> float:
        """Seconds from the last stretch to the end of the training, after epoch `last` or after all epochs."""
        seen = {kind: _mean(stretches) for kind, stretches in self._stretches.items() if stretches}
        resting = seen.get(True, seen.get(False, 0.0))
        step = seen.get(False, resting * (self.slowdown or 1.0))
        pace = Pace(0.0, resting, step, self.validation or 0.0, self.saving)
        return pace.left(self.recipe, self.per_epoch, self._taken, last)


def _mean(stretches: deque[tuple[int, float]]) -> float:
    return sum(seconds for _, seconds in stretches) / sum(count for count, _ in stretches)


def rehearse(learner: Learner, forecast: Forecast) -> None:
    """Time what the rest of a long training consists of and has not been seen yet; the model stays as it is."""
    if learner.validates and forecast.validation is None:
        drawn = learner.ranking_noise.get_state()
        began = time.monotonic()
        learner.evaluate(1)
        learner.synchronize()
        learner.ranking_noise.set_state(drawn)
        forecast.validated(time.monotonic() - began)
    # A captured step cannot be rehearsed.
    unseen = forecast.rests and forecast.slowdown is None
    if unseen and isinstance(learner.steps, GradientSteps) and not learner.steps.on_cuda:
        forecast.slowdown = learner.steps.slowdown()
        forecast.resume()


# -- before a model is trained ------------------------------------------------------------------------------------


def measure_pace(
    data: Dataset, recipe: Recipe, device: torch.device, ranks: Ranks = ALONE, clock: Clock = time.monotonic
) -> tuple[Pace, int]:
    """The pace of a training, from a few steps and one validation of a model that is thrown away; steps an epoch."""
    began = clock()
    learner = Learner(data, recipe, device, ranks=ranks)
    learner.start()
    learner.synchronize()
    start = clock() - began
    learner.model.train()
    resting = _seconds_of_a_step(learner, 0, clock)
    rested = resting_epochs(recipe.model)
    step = _seconds_of_a_step(learner, rested, clock) if rested else resting
    began = clock()
    if learner.validates:
        learner.evaluate(1)
    learner.synchronize()
    return Pace(start, resting, step, clock() - began, saving_seconds(learner)), learner.steps.per_epoch


def _seconds_of_a_step(learner: Learner, epoch: int, clock: Clock) -> float:
    steps, first = learner.steps, epoch * learner.steps.per_epoch
    warm_up = 0 if learner.recipe.model.solved else 1 if learner.device.type == "cpu" else WARM_UP
    for step in range(warm_up):
        steps.take(first + step, epoch)
    learner.synchronize()
    began = clock()
    for step in range(1, MEASURED_STEPS + 1):
        steps.take(first + step, epoch)
        learner.synchronize()
        if learner.ranks.any(clock() - began >= MEASURED_SECONDS)[0]:
            break
    return (clock() - began) / step


def saving_seconds(learner: Learner) -> float:
    """About how long the finished model takes to save: its parameters, its factors and its layers."""
    table, deep = learner.model.embedding, learner.recipe.model.depth if learner.recipe.train.save_layers else 0
    return learner.ranks.size * table.nbytes * (3 + deep) / SAVED_BYTES


def shortened(recipe: Recipe, epochs: int) -> Recipe:
    """A recipe for fewer epochs that goes through the same schedule: step size, resting gates, τ and validations."""
    train = recipe.train
    if epochs == train.epochs:
        return recipe
    share = epochs / train.epochs
    changes = {"epochs": epochs, "validate_every": max(1, round(train.validate_every * share))}
    model = recipe.model.over(share) if isinstance(recipe.model, GatedConfig) else recipe.model
    return recipe.model_copy(update={"train": train.model_copy(update=changes), "model": model})


def within_budget(recipe: Recipe, pace: Pace, per_epoch: int, seconds: float) -> Recipe:
    """The recipe with as many of its epochs as fit into so many seconds."""
    usable = seconds * (1 - RESERVE)
    for epochs in range(recipe.train.epochs, 0, -1):
        shorter = shortened(recipe, epochs)
        if pace.total(shorter, per_epoch) <= usable:
            return shorter
    needed = pace.total(shortened(recipe, 1), per_epoch) / (1 - RESERVE)
    half = recipe.model.columns // 2  # 0 if there is no embedding
    smaller = f", or make the model smaller with {override(f'model.embedding_size={half}')}" if half else ""
    raise TooLittleTime(
        f"the budget is too small: one epoch takes {duration(needed)} with everything around it, and"
        f" {duration(max(seconds, 0.0))} are left",
        f"raise {option('minutes')}{smaller}",
    )


# -- of sizes alone -----------------------------------------------------------------------------------------------

# Nodes and interactions of the graph that stands for a larger one: a second's work, and enough to fill the device.
STANDING_FOR = {"cpu": 100_000, "cuda": 5_000_000}


def seconds_of(recipe: Recipe, users: int, items: int, edges: int, device: torch.device) -> float:
    """About how long a training takes on data of these sizes: measured on random interactions, fewer where they are
    many, and extrapolated. A step and a solution grow as their bytes and operations do, ranking with users times items.

    Raises DataError for sizes so small that no loss can be computed.
    """
    share = min(1.0, STANDING_FOR[device.type] / (users + items + edges))
    batch = max(1, round(recipe.train.batch_size * share))
    small = recipe.model_copy(update={"train": recipe.train.model_copy(update={"batch_size": batch})})
    few_users, few_items, few_edges = (max(2, round(size * share)) for size in (users, items, edges))
    data = random_data(few_users, few_items, few_edges, recipe.seed)
    if not recipe.model.solved:
        eligible_users(data.csr("train"), data.n_items)
    pace, per_epoch = measure_pace(data, small, device)

    def growth(resting: bool) -> float:
        whole = nominal_seconds(recipe, users, items, edges, device.type, resting)
        return whole / nominal_seconds(small, few_users, few_items, few_edges, device.type, resting)

    if recipe.model.solved:
        step = resting = _solution(recipe, (users, items, edges), (few_users, few_items, few_edges), pace.step, device)
        propagated = 0.0
    else:
        resting, step = pace.resting * growth(resting=True), pace.step * growth(resting=False)
        propagated = min(pace.validation, pace.step)  # a pass over the graph, which is a part of either
    whole = Pace(
        start=pace.start / share,
        resting=resting,
        step=step,
        validation=propagated / share + (pace.validation - propagated) / share**2,
        saving=pace.saving / share,
    )
    return whole.total(recipe, per_epoch)


def _solution(
    recipe: Recipe, sizes: tuple[int, int, int], few: tuple[int, int, int], seconds: float, device: torch.device
) -> float:
    """Seconds of a solution for users, items and edges, from those that it took for few of them.

    An inverse grows with the cube of its size, and is a small part of a small solution. So its time is that of its
    operations at the rate that a small inverse shows, and only what is left of the time is extrapolated.
    """
    rate = inverse_rate(device) if solving_seconds(recipe, *sizes, device.type, 1.0)[0] else 1.0
    inverse, rest = solving_seconds(recipe, *sizes, device.type, rate)
    few_inverse, few_rest = solving_seconds(recipe, *few, device.type, rate)
    return inverse + max(seconds - few_inverse, 0.0) * rest / few_rest


def random_data(users: int, items: int, edges: int, seed: int) -> Dataset:
    """A data set of about these sizes: random pairs for training, of which a few items are much liked, and for every
    user one to validate on."""
    rng = np.random.default_rng(seed)
    user = np.concatenate([rng.integers(0, users, edges), np.arange(users)])
    item = np.concatenate([(items * rng.random(edges) ** 2).astype(np.int64), rng.integers(0, items, users)])
    part = np.repeat([0, 1], [edges, users]).astype(np.uint8)  # train and valid, as in PARTS
    _, first = np.unique(user * items + item, return_index=True)
    pairs = Interactions(
        user[first].astype(np.int32),
        item[first].astype(np.int32),
        Vocabulary("user", pa.array(np.arange(users))),
        Vocabulary("item", pa.array(np.arange(items))),
    )
    return Dataset("random", pairs, part[first])
