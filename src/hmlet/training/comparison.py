"""Which of several losses to train with: a short training by each, compared on the validation part."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from operator import mul
from typing import NamedTuple

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
Told = Callable[[float, float], None]
"""What is told once how long the comparison takes, and a whole training by the first recipe."""


class Compared(NamedTuple):
    """A recipe, and the validation NDCG@20 of a short training by it."""

    recipe: Recipe
    ndcg: float


def shares(data: Dataset, recipes: Sequence[Recipe], device: str) -> list[float]:
    """Which part of its epochs each recipe is compared by."""
    return [min(1.0, max(SHARE, WORTH[device] / whole)) for whole in _seconds(data, recipes, device)]


def compare(
    data: Dataset,
    recipes: Sequence[Recipe],
    parts: Sequence[float],
    device: torch.device,
    ranks: Ranks = ALONE,
    told: Told | None = None,
) -> list[Compared]:
    """Every recipe after a part of its training, the best first; of equals, the one that came first."""
    seconds = _seconds(data, recipes, device.type)
    comparing = sum(map(mul, seconds, parts)) / seconds[0]  # in whole trainings by the first recipe

    def tell(whole: float) -> None:
        if told is not None:
            told(whole * comparing, whole)

    found = [
        Compared(recipe, _after_short_training(data, recipe, part, device, ranks, None if at else tell))
        for at, (recipe, part) in enumerate(zip(recipes, parts, strict=True))
    ]
    return sorted(found, key=lambda each: -each.ndcg)


def _after_short_training(
    data: Dataset,
    recipe: Recipe,
    part: float,
    device: torch.device,
    ranks: Ranks,
    told: Callable[[float], None] | None,
) -> float:
    """Validation NDCG@20 at its end. `told` is told after a few seconds how long a whole training would take."""
    epochs = math.ceil(part * recipe.train.epochs)
    began = time.monotonic()
    with deterministic(recipe.train.deterministic):
        learner = Learner(data, shortened(recipe, epochs), device, ranks=ranks)
        learner.start()
        learner.model.train()
        per_epoch = learner.steps.per_epoch
        forecast = Forecast(recipe, per_epoch, 0, saving_seconds(learner))
        for step in range(epochs * per_epoch):
            learner.steps.take(step, step // per_epoch)
            late = time.monotonic() - began > FORETOLD_AFTER
            if step + 1 == WARM_UP or (late and told is not None and step + 1 > WARM_UP):
                learner.synchronize()
                forecast.stretch(step + 1)
            if late and told is not None and forecast.warm:
                if forecast.left() > LONG and ranks.size == 1:
                    rehearse(learner, forecast)
                told(time.monotonic() - began + forecast.left())
                told = None
        evaluation, _ = learner.evaluate(epochs)
    return evaluation.metrics[SELECTION]


def _seconds(data: Dataset, recipes: Sequence[Recipe], device: str) -> list[float]:
    sizes = data.n_users, data.n_items, data.count("train")
    return [nominal_training_seconds(recipe, *sizes, device) for recipe in recipes]
