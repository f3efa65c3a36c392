"""Noise when ranking: it moves open gates and leaves decided ones, and a campaign records it before the weights go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gated_run import small_data
from planted import checkerboard

from hmlet.config import resolve
from hmlet.data import Dataset
from hmlet.graph import training_graph
from hmlet.ranking.evaluation import evaluate
from hmlet.reproduction.campaign import run_campaign
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import Records
from hmlet.training.loop import fit
from lab.noise import classes, noise, noisy_ranking, record_noise

TINY = ("train.epochs=4", "train.batch_size=256", "model.embedding_size=4", "train.validate_every=1")


def test_noise_moves_open_gates_and_leaves_decided_ones(tmp_path: Path) -> None:
    """With a bias of 10⁴ no noise turns a choice, so all draws are one; without, they differ."""
    data = small_data()
    recipe = resolve("hmlet-end", overrides=(*TINY, "model.gate_hidden=[8]"), seed=1)
    run = fit(data, recipe, tmp_path / "run", device="cpu")
    open_gates = noisy_ranking(run, data, torch.device("cpu"), draws=4)["metrics"]["ndcg"]
    assert len(set(open_gates)) > 1
    weights = dict(run.weights())
    for name in weights:
        if name.endswith(".bias") and weights[name].shape == (2,):
            weights[name] = torch.tensor([1e4, 0.0])
    run.write_tensors("model.safetensors", weights)
    decided = noisy_ranking(run, data, torch.device("cpu"), draws=4)["metrics"]["ndcg"]
    linear = all_linear(weights, data)
    assert decided == [pytest.approx(linear)] * 4


def all_linear(weights: dict[str, torch.Tensor], data: Dataset) -> float:
    """Test NDCG of the same e⁰ propagated linearly at every layer, by dense matrices."""
    graph = training_graph(data)
    dense = np.zeros((graph.n_nodes, graph.n_nodes))
    rows = np.repeat(np.arange(graph.n_nodes), np.diff(graph.indptr))
    dense[rows, graph.neighbours] = graph.scale()[rows] * graph.scale()[graph.neighbours]
    layers = [weights["embedding"].double().numpy()]
    for _ in range(4):
        layers.append(dense @ layers[-1])
    factors = torch.from_numpy(np.mean(layers, axis=0)).float()
    return evaluate((factors[: data.n_users], factors[data.n_users :]), data, "test", "train", 20).metrics["ndcg"]


def test_a_campaign_records_noise_and_classes_of_gated_runs(tmp_path: Path) -> None:
    data = checkerboard()
    choice = Choice(data.name, models=("hmlet-end", "bpr"), seeds=1, overrides=TINY)
    run_campaign(choice.runs(), {data.name: data}, tmp_path, device="cpu", also=record_noise)
    gated, plain = sorted(Records.read(tmp_path).all, key=lambda record: record.recipe.model.name, reverse=True)
    found, chosen = noise(gated), classes(gated)
    assert found is not None
    assert len(found["metrics"]["ndcg"]) == found["draws"] == 5
    assert chosen is not None
    assert len(chosen) == data.n_users + data.n_items
    assert (noise(plain), classes(plain)) == (None, None)
    assert not (gated.path / "factors.safetensors").exists()
