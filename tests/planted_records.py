"""Records of runs that nobody trained: planted numbers, so that a test knows every cell of every table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from gated_run import gates_table, small_data

from hmlet.analysis.study import analyse
from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.ranking.evaluation import Evaluation
from hmlet.reproduction.plan import Choice, folder, identity
from hmlet.reproduction.records import SCORE_FILES, WALL_FILE, write_paired
from hmlet.runs.directory import RunDirectory
from lab.ablation import cells
from lab.noise import CLASSES, NOISY

METRICS = ("ndcg", "recall", "precision")


def named_data(name: str) -> Dataset:
    """The small random data set under a data set's name."""
    data = small_data()
    data.name = name
    return data


def plant(
    out: Path,
    data: Dataset,
    recipe: Recipe,
    scores: Sequence[float],
    *,
    strict: Sequence[float] | None = None,
    users: np.ndarray | None = None,
    probability: np.ndarray | None = None,
    noisy: Sequence[float] | None = None,
    seconds: float = 60.0,
) -> Path:
    """A record with these test scores (NDCG, Recall, Precision) and, where given, what the other tables need.

    `users` holds the three metrics by user (U × 3).
    """
    place = out / folder(data.name) / f"{recipe.model.name}_{identity(recipe)[:8]}_seed{recipe.seed}"
    run = RunDirectory.create(place, recipe, data, "cpu")
    run.write_text(
        "metrics.jsonl", json.dumps({"epoch": 1, "loss": 0.5, "seconds": 1.0, "valid": {"ndcg": 0.1}}) + "\n"
    )
    run.record = run.record.concluded(1, 1, None, 1.0)
    if probability is not None:
        generator = torch.Generator().manual_seed(1)
        sides = {"users": data.n_users, "items": data.n_items}
        run.write_tensors("factors.safetensors", {k: torch.randn(n, 4, generator=generator) for k, n in sides.items()})
        run.write_table("gates.parquet", gates_table(probability))
        run.write_record()
        analyse([run], data)
        nonlinear = (probability > 0.5).sum(axis=1)
        run.write_table(
            CLASSES,
            pa.table({"class": np.where(nonlinear == 2, 0, np.where(nonlinear == 0, 2, 1)).astype(np.int8)}),
        )
    if noisy is not None:
        run.write_json(NOISY, {"draws": len(noisy), "metrics": {name: list(noisy) for name in METRICS}})
    if users is not None:
        values = {name: users[:, at] for at, name in enumerate(METRICS)}
        write_paired(run, Evaluation("test", "train", 20, np.arange(len(users)), values, 0.5))
    run.write_json(WALL_FILE, {"wall_seconds": seconds})
    for mask, found in (("train+valid", strict or scores), ("train", scores)):
        about = {"split": "test", "mask": mask, "k": 20, "users": 57}
        run.write_json(SCORE_FILES[mask], {**about, "metrics": dict(zip(METRICS, found, strict=True))})
    run.write_record()
    return place


def arm(choice: Choice, group: str, label: str, seed: int) -> Recipe:
    """The recipe of one arm of the ablation."""
    (cell,) = (cell for cell in cells(choice) if (cell.group, cell.label) == (group, label))
    return choice.recipe(cell, seed)
