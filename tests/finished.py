"""Finished runs to ask things of: every model, trained for a moment on a checkerboard that the run keeps itself."""

from __future__ import annotations

import json
from pathlib import Path

from planted import checkerboard

from hmlet.api import Run, fit
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.models import MODELS

NAMES = tuple(MODELS)
SMALL = ["train.epochs=4", "train.batch_size=128", "model.embedding_size=8", "train.learning_rate=0.02"]


def finished(model: str, out: Path, *overrides: str, data: Dataset | None = None) -> Run:
    """A run of a model on a small checkerboard, or on other small data."""
    gates = ["model.gate_hidden=[8]", "model.gate_warmup=0"] if model.startswith("hmlet") else []
    return fit(data or checkerboard(), resolve(model, overrides=[*SMALL, *gates, *overrides]), out, device="cpu")


def as_options(recipe: Recipe) -> list[str]:
    """A whole recipe as `--set` options: a command that has them depends on no default."""
    return [word for key, value in recipe.flat().items() for word in ("--set", f"{key}={json.dumps(value)}")]
