"""A search whose best point is known, and a training that only says how good it would be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset, Interactions, Vocabulary
from hmlet.tuning import Space

GRID: Space = {"train.learning_rate": (1e-3, 1e-2, 1e-1), "train.l2": (0.0, 1e-4)}
RECIPE = resolve("bpr", overrides=["train.epochs=4", "train.validate_every=1", "model.embedding_size=8"])


def planted(size: int = 16) -> Dataset:
    """Two groups of users, each with the items of its own colour; a validation and a test item a user."""
    pairs = [(user, item) for user in range(size) for item in range(size) if (user + item) % 2 == 0]
    user, item = (np.array(side, dtype=np.int32) for side in zip(*pairs, strict=True))
    place = np.array([(item - user) % size for user, item in pairs])
    part = np.select([place == 0, place == 2], [1, 2], 0).astype(np.uint8)
    vocabularies = (Vocabulary(kind, pa.array(range(size))) for kind in ("user", "item"))
    return Dataset("planted", Interactions(user, item, *vocabularies), part)


def goodness(recipe: Recipe) -> float:
    """A stand-in for NDCG: best at learning rate 1e-2 without l2."""
    return 1.0 - abs(float(np.log10(recipe.train.learning_rate)) + 2) / 10 - recipe.train.l2


class Fake:
    """A training that writes what a run directory holds and reports its goodness, epoch by epoch.

    It takes the place of `hmlet.tuning.trial.fit`, where every search trains.
    """

    def __init__(self, before: Callable[[Recipe, Path], None] = lambda recipe, out: None) -> None:
        self.before = before
        self.calls: list[tuple[Recipe, Path, bool]] = []

    def __call__(
        self, data: Dataset, recipe: Recipe, out: Path, *, device: str, resume: bool, listener: Any, keep_data: bool
    ) -> Any:
        assert not keep_data  # a search has one data set and many runs
        self.calls.append((recipe, out, resume))
        out.mkdir(parents=True, exist_ok=True)
        for name in ("config.toml", "run.json", "metrics.jsonl", "factors.safetensors", "checkpoint.safetensors"):
            (out / name).write_text(recipe.to_toml() if name == "config.toml" else "")
        self.before(recipe, out)
        for epoch in range(1, recipe.train.epochs + 1):
            listener({"epoch": epoch, "epochs": recipe.train.epochs, "loss": 1.0})
            listener({"epoch": epoch, "epochs": 4, "loss": 1.0, "valid": {"ndcg": goodness(recipe) * epoch / 4}})
        timings = SimpleNamespace(training_seconds=1.0)
        record = SimpleNamespace(valid={"ndcg": goodness(recipe)}, best_epoch=4, timings=timings)
        return SimpleNamespace(record=record)
