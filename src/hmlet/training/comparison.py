"""Which of several losses to train with: a short training by each, compared on the validation part.

The best validation NDCG@20 wins. Where the users of the validation part are too few to tell two losses apart, the one
that trains faster wins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.system.ranks import ALONE, Ranks
from hmlet.training.floor import nominal_training_seconds
from hmlet.training.forecast import FORETOLD_AFTER, LONG, WARM_UP, Forecast, rehearse, saving_seconds, shortened
from hmlet.training.learner import Learner
from hmlet.training.steps import deterministic
from hmlet.training.trainer import SELECTION

SHARE = 0.25  # of the epochs, which a short training has at least, on the whole schedule
WORTH = {"cpu": 15.0, "cuda": 2.0}  # seconds that a short training is worth: small data is compared by whole trainings
LOOKS = 5  # validations of a short training, whose best one counts: a training keeps its best epoch, not its last
PerUser = npt.NDArray[np.float64]
Told = Callable[[float, float], None]
"""What is told once how long the comparison takes, and a whole training by the first recipe."""


class Compared(NamedTuple):
    """A recipe, and the validation NDCG@20 of the best epoch of a short training by it."""

    recipe: Recipe
    ndcg: float
    ndcg_U: PerUser  # of every user with something to find


def shares(data: Dataset, recipes: Sequence[Recipe], device: str) -> list[float]:
    """Which part of its epochs each recipe is compared by."""
    return [min(1.0, max(SHARE, WORTH[device] / whole)) for whole in _seconds(data, recipes, device)]


def nominal_cost(data: Dataset, recipes: Sequence[Recipe], device: str) -> float:
    """About the seconds of comparing recipes, if there are several, and of training by the slowest; nominal ones."""
    seconds = _seconds(data, recipes, device)
    comparing = sum(map(mul, seconds, shares(data, recipes, device))) if len(recipes) > 1 else 0.0
    return comparing + max(seconds)


def compare(
    data: Dataset,
    recipes: Sequence[Recipe],
    parts: Sequence[float],
    device: torch.device,
    ranks: Ranks = ALONE,
    told: Told | None = None,
) -> list[Compared]:
    """Every recipe after a part of its training, the one to go on with first, the others by their worth."""
    seconds = _seconds(data, recipes, device.type)
    comparing = sum(map(mul, seconds, parts)) / seconds[0]  # in whole trainings by the first recipe

    def tell(whole: float) -> None:
        if told is not None:
            told(whole * comparing, whole)

    found = [
        _after_short_training(data, recipe, part, device, ranks, None if at else tell)
        for at, (recipe, part) in enumerate(zip(recipes, parts, strict=True))
    ]
    best = max(found, key=lambda each: each.ndcg)
    equal = [(whole, each) for whole, each in zip(seconds, found, strict=True) if _as_good(each, best)]
    chosen = min(equal, key=lambda each: (each[0], -each[1].ndcg))[1]
    return sorted(found, key=lambda each: (each is not chosen, -each.ndcg))


def _as_good(other: Compared, best: Compared) -> bool:
    """Whether validation cannot tell two apart: they differ by no more than a standard error over the users."""
    less_U = best.ndcg_U - other.ndcg_U
    return bool(less_U.mean() <= less_U.std() / math.sqrt(len(less_U)))


def _after_short_training(
    data: Dataset,
    recipe: Recipe,
    part: float,
    device: torch.device,
    ranks: Ranks,
    told: Callable[[float], None] | None,
) -> Compared:
    """The best epoch of a short training. `told` is told after a few seconds how long a whole training would take."""
    epochs = math.ceil(part * recipe.train.epochs)
    looks = {math.ceil(epochs * look / LOOKS) for look in range(1, LOOKS + 1)}
    best = Compared(recipe, -1.0, np.empty(0))
    began = time.monotonic()
    with deterministic(recipe.train.deterministic):
        learner = Learner(data, shortened(recipe, epochs), device, ranks=ranks)
        learner.start()
        learner.model.train()
        per_epoch = learner.steps.per_epoch
        forecast = Forecast(recipe, per_epoch, 0, saving_seconds(learner))
        for taken in range(1, epochs * per_epoch + 1):
            learner.steps.take(taken - 1, (taken - 1) // per_epoch)
            late = time.monotonic() - began > FORETOLD_AFTER
            if taken == WARM_UP or (late and told is not None and taken > WARM_UP):
                learner.synchronize()
                forecast.stretch(taken)
            if late and told is not None and forecast.warm:
                if forecast.left() > LONG and ranks.size == 1:
                    rehearse(learner, forecast)
                told(time.monotonic() - began + forecast.left())
                told = None
            epoch, rest = divmod(taken, per_epoch)
            if rest == 0 and epoch in looks:
                learner.synchronize()
                forecast.stretch(taken)
                ndcg_U = _validated(learner, epoch, forecast)
                best = max(best, Compared(recipe, float(ndcg_U.mean()), ndcg_U), key=lambda each: each.ndcg)
    return best


def _validated(learner: Learner, epoch: int, forecast: Forecast) -> PerUser:
    began = time.monotonic()
    evaluation, _ = learner.evaluate(epoch)
    forecast.validated(time.monotonic() - began)
    return evaluation.per_user[SELECTION]


def _seconds(data: Dataset, recipes: Sequence[Recipe], device: str) -> list[float]:
    sizes = data.n_users, data.n_items, data.count("train")
    return [nominal_training_seconds(recipe, *sizes, device) for recipe in recipes]
