"""Which recipe a training takes: the best of several on validation, shortened to a budget."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.errors import ConfigError, OutOfMemory
from hmlet.runs.directory import RunDirectory, require_new
from hmlet.runs.record import RECORD
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.spelling import enumerated
from hmlet.system.units import duration
from hmlet.training.comparison import compare, shares
from hmlet.training.forecast import measure_pace, shortened, within_budget
from hmlet.training.loop import Chosen, compile_ahead, require_possible, use_device
from hmlet.training.steps import deterministic
from hmlet.training.trainer import Tell, untold


def choose(
    data: Dataset,
    recipes: Sequence[Recipe],
    out: Path | str,
    *,
    device: str = "auto",
    resume: bool = False,
    deadline: float | None = None,
    ranks: Ranks = ALONE,
    tell: Tell = untold,
) -> Chosen:
    """The recipe that `fit` trains in `out`, and what its choice took.

    With `resume`, a run that is there keeps the recipe that it began with. Otherwise a short training run by each of
    several recipes decides on the validation part; the first recipe has to be possible, and others that are not are
    left out. With a `deadline` (of time.monotonic), each recipe has only as many of its epochs as fit, on the whole
    schedule, comparison included.
    """
    path = Path(out)
    if resume and (path / RECORD).is_file():
        return Chosen(_as_begun(path, recipes, shorter=deadline is not None))
    if len(recipes) == 1 and deadline is None:
        return Chosen(recipes[0])
    place, tell = use_device(device, ranks), untold if ranks.rank else tell
    kernels = compile_ahead(recipes, data, place, ranks)
    recipes = _possible(data, recipes, place, ranks)
    require_new(path)
    parts = shares(data, recipes, place.type) if len(recipes) > 1 else []
    if deadline is not None:
        now = time.monotonic()  # the comparison takes its part of the time
        ends = now + (deadline - now) / (1 + sum(parts))
        recipes = [_fitted_in(data, each, place, ranks, ends, tell) for each in recipes]
    if len(recipes) == 1:
        return Chosen(recipes[0], kernels=kernels)
    began = time.monotonic()
    kernels.wait()
    recipe, scores = _best(data, recipes, parts, place, ranks, tell)
    return Chosen(recipe, scores, time.monotonic() - began, kernels)


def _as_begun(path: Path, recipes: Sequence[Recipe], shorter: bool) -> Recipe:
    """The recipe that a run was started with, if it is one of these, or one of these with fewer epochs."""
    own = RunDirectory.open(path).recipe()
    for recipe in recipes:
        if own == (shortened(recipe, min(own.train.epochs, recipe.train.epochs)) if shorter else recipe):
            return own
    return recipes[0]


def _possible(data: Dataset, recipes: Sequence[Recipe], device: torch.device, ranks: Ranks) -> list[Recipe]:
    """The first recipe, which has to be possible, and those of the others that are, if there is a validation part."""
    first, *others = recipes
    require_possible(data, first, device, ranks)
    possible = [first]
    for recipe in others if data.count("valid") else ():
        try:
            require_possible(data, recipe, device, ranks)
        except (ConfigError, OutOfMemory):
            continue
        possible.append(recipe)
    return possible


def _fitted_in(
    data: Dataset, recipe: Recipe, device: torch.device, ranks: Ranks, deadline: float, tell: Tell
) -> Recipe:
    """The recipe with as many of its epochs as fit before the deadline."""
    with deterministic(recipe.train.deterministic):
        pace, per_epoch = measure_pace(data, recipe, device, ranks)
    left = deadline - time.monotonic()
    epochs = ranks.first(lambda: within_budget(recipe, pace, per_epoch, left).train.epochs)
    shorter = shortened(recipe, epochs)
    takes = duration(pace.total(shorter, per_epoch))
    tell(f"{epochs} of {recipe.train.epochs} epochs fit into the budget: about {takes}")
    return shorter


def _best(
    data: Dataset, recipes: Sequence[Recipe], parts: Sequence[float], device: torch.device, ranks: Ranks, tell: Tell
) -> tuple[Recipe, Mapping[str, float]]:
    """The recipe that short trainings by several speak for, with what these gave by loss."""
    losses = enumerated([each.objective for each in recipes])
    tell(f"comparing the losses {losses} on the validation part, by short trainings")

    def told(comparing: float, training: float) -> None:
        first = recipes[0].objective
        tell(f"the comparison takes about {duration(comparing)}, training with {first} another {duration(training)}")

    compared = compare(data, recipes, parts, device, ranks, told)
    worths = {each.recipe.objective: each.ndcg for each in compared}
    chosen = compared[0]
    why = "" if chosen.ndcg == max(worths.values()) else ", which trains faster; the difference may be chance"
    reached = ", ".join(f"{loss} {ndcg:.4f}" for loss, ndcg in worths.items())
    tell(f"NDCG@20: {reached}; going on with {chosen.recipe.objective}{why}")
    return chosen.recipe, worths
