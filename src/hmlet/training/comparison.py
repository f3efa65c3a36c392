"""Which of several losses to train with: a short training by each, compared on the validation part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.system.ranks import ALONE, Ranks
from hmlet.training.forecast import shortened
from hmlet.training.learner import Learner
from hmlet.training.steps import deterministic

SHARE = 4  # a short training has this fraction of the epochs, on the whole schedule
SELECTION = "ndcg"


class Compared(NamedTuple):
    """A recipe, and the validation NDCG@20 of a short training by it."""

    recipe: Recipe
    ndcg: float


def compare(data: Dataset, recipes: Sequence[Recipe], device: torch.device, ranks: Ranks = ALONE) -> list[Compared]:
    """Every recipe after a short training, the best first; of equals, the one that came first."""
    found = [Compared(recipe, _after_short_training(data, recipe, device, ranks)) for recipe in recipes]
    return sorted(found, key=lambda each: -each.ndcg)


def _after_short_training(data: Dataset, recipe: Recipe, device: torch.device, ranks: Ranks) -> float:
    epochs = -(-recipe.train.epochs // SHARE)
    with deterministic(recipe.train.deterministic):
        learner = Learner(data, shortened(recipe, epochs), device, ranks=ranks)
        learner.start()
        learner.model.train()
        per_epoch = learner.steps.per_epoch
        for step in range(epochs * per_epoch):
            learner.steps.take(step, step // per_epoch)
        evaluation, _ = learner.evaluate(epochs)
    return evaluation.metrics[SELECTION]
