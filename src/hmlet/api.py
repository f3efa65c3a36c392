"""The Python twin of the command line: a finished run, and what one asks of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.data.catalog import known_name, load
from hmlet.errors import DataError
from hmlet.recommend.recommender import Recommender
from hmlet.training import loop as training


def fit(data: Dataset | Path | str, recipe: Recipe | str = "hmlet-end", out: Path | str = "run", **options: Any) -> Run:
    """Train a recipe (or a model by its name, with its recipe for this data) and open the run: `hmlet train`.

    Data is a data set, or what DATA is to a command: a prepared directory or a named set.
    """
    if isinstance(data, str | Path):
        data = load(data)
    if not isinstance(data, Dataset):
        raise DataError(f"cannot train on a {type(data).__name__}", "make a data set of it: Dataset.from_frame(…)")
    chosen = resolve(recipe, dataset=known_name(data)) if isinstance(recipe, str) else recipe
    return Run(training.fit(data, chosen, out, **options))


class Run(Recommender):
    """A finished run: its data, its factors, and what they recommend."""
