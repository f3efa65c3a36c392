"""A finished run directory without any training: planted gates, random factors, a short history."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from hmlet.config import resolve
from hmlet.data import Dataset, Interactions, Vocabulary
from hmlet.runs.directory import RunDirectory


def small_data(n_users: int = 60, n_items: int = 40, seed: int = 0) -> Dataset:
    """Random interactions, split at random; names carry markup, which no page may take for its own."""
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random((n_users, n_items)) < rng.uniform(0.05, 0.6, n_items))
    interactions = Interactions(
        user=user.astype(np.int32),
        item=item.astype(np.int32),
        users=Vocabulary("user", pa.array([f"u{n}" for n in range(n_users)])),
        items=Vocabulary("item", pa.array(np.arange(n_items))),
    )
    return Dataset("small <b>&", interactions, rng.choice(3, len(user), p=[0.8, 0.1, 0.1]).astype(np.uint8))


def make_run(
    path: Path, data: Dataset, *, model: str = "hmlet-end", probability: np.ndarray | None = None, seed: int = 0
) -> RunDirectory:
    """A finished run whose gates at layers 3 and 4 chose by `probability` (N × 2), or one without gates."""
    recipe = resolve(model, overrides=[f"seed={seed}", "model.embedding_size=8"])
    run = RunDirectory.create(path, recipe, data, "cpu")
    generator = torch.Generator().manual_seed(seed)
    factors = {"users": data.n_users, "items": data.n_items}
    run.write_tensors("factors.safetensors", {k: torch.randn(n, 8, generator=generator) for k, n in factors.items()})
    if probability is not None:
        run.write_table("gates.parquet", gates_table(probability))
    rows = []
    for epoch in range(1, 5):
        row = {"epoch": epoch, "loss": 1 / epoch, "seconds": float(epoch), "valid": {"ndcg": 0.1 * epoch}}
        if probability is not None:
            row |= {"temperature": 0.7 * 0.9**epoch, "gate_share": {"3": 0.2 * epoch, "4": 0.5}}
        rows.append(row)
    for row in rows:
        run.append_metrics(row)
    run.write_bytes("metrics.jsonl", (path / "metrics.jsonl").read_bytes())
    run.record = run.record.concluded(4, 4, None, 4.0)
    run.write_record()
    return run


def gates_table(probability: np.ndarray, layers: tuple[int, ...] = (3, 4)) -> pa.Table:
    n = len(probability)
    return pa.table(
        {
            "node": pa.array(np.tile(np.arange(n, dtype=np.int32), len(layers))),
            "layer": pa.array(np.repeat(np.array(layers, dtype=np.int8), n)),
            "probability": pa.array(probability.T.ravel().astype(np.float32)),
            "nonlinear": pa.array(probability.T.ravel() > 0.5),
        }
    )
