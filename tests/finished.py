"""Finished runs to ask things of: every model, trained for a moment on a checkerboard that the run keeps itself."""

from __future__ import annotations

import json
from pathlib import Path

from planted import checkerboard

from hmlet.api import Run, fit
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.models import MODELS, EmbeddingConfig

NAMES = tuple(name for name, model in MODELS.items() if issubclass(model.Config, EmbeddingConfig))
CLOSED = tuple(name for name in MODELS if name not in NAMES)  # one solution, nothing to learn step by step
SMALL = ["train.epochs=4", "train.batch_size=128", "train.learning_rate=0.02"]


def finished(model: str, out: Path, *overrides: str, data: Dataset | None = None) -> Run:
    """A run of a model on a small checkerboard, or on other small data."""
    size = ["model.embedding_size=8"] if model in NAMES else []
    gates = ["model.gate_hidden=[8]", "model.gate_warmup=0"] if model.startswith("hmlet") else []
    return fit(data or checkerboard(), resolve(model, overrides=[*SMALL, *size, *gates, *overrides]), out, device="cpu")


def as_options(recipe: Recipe) -> list[str]:
    """A whole recipe as `--set` options: a command that has them depends on no default."""
    return [word for key, value in recipe.flat().items() for word in ("--set", f"{key}={json.dumps(value)}")]
