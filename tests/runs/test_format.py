"""Runs of every format version that there has been still load: tests/stored has one of each old version.

run-v1 was written by the hmlet of version 1 (hmlet-end, D = 4, six epochs on the checkerboard of planted.py); what it
said then is written down here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hmlet.api import Run
from hmlet.errors import RunError
from hmlet.graph import training_graph
from hmlet.graph.kernels import build_operator
from hmlet.models import NOISE_FREE, build
from hmlet.runs.record import FORMAT_VERSION, READABLE, json_checksum

STORED = Path(__file__).resolve().parents[1] / "stored"


@pytest.fixture
def old(tmp_path: Path) -> Run:
    """A copy of the stored run: evaluating writes into a run."""
    shutil.copytree(STORED / "run-v1", tmp_path / "run")
    return Run.open(tmp_path / "run")


def test_there_is_a_stored_run_of_every_old_version() -> None:
    stored = {json.loads(path.read_text())["format_version"] for path in STORED.glob("*/run.json")}
    assert stored == set(READABLE) - {FORMAT_VERSION}


def test_an_old_run_says_what_it_said(old: Run) -> None:
    (answer,) = old.recommend(["u5"], 3, "train+valid")  # as it was then by default
    assert [each["item"] for each in answer["items"]] == ["i7", "i14", "i22"]
    scores = [0.9655180206626071, -0.933756809023393, -0.9372431095373823]
    assert [each["score"] for each in answer["items"]] == pytest.approx(scores, abs=1e-12)
    metrics = old.evaluate("test", "train", 20).metrics
    assert metrics["ndcg"] == pytest.approx(0.8154648767857289, abs=1e-12)
    assert metrics["recall"] == 1.0
    assert Run.open(old.directory.path).evaluate("test", "train", 20).metrics == metrics


def test_evaluations_that_hold_k_in_32_bits_are_kept_beside_longer_lists(old: Run) -> None:
    first, stored = old.evaluate("test", "train", 20), old.directory.read_table("per_user.parquet", {})
    as_before = stored.set_column(stored.column_names.index("k"), "k", stored["k"].cast("int32"))
    old.directory.write_table("per_user.parquet", as_before)
    old.directory.write_record()
    again = Run.open(old.directory.path)
    longer = again.evaluate("test", "train", 3_000_000_000)
    assert longer.metrics["recall"] == 1.0
    assert longer.metrics["precision"] == pytest.approx(1 / 3_000_000_000)  # each user has one test item
    for k, found in ((20, first), (3_000_000_000, longer)):
        assert Run.open(old.directory.path).evaluate("test", "train", k).metrics == found.metrics


def test_an_old_models_weights_give_its_stored_layers_and_gates(old: Run) -> None:
    graph = training_graph(old.data)
    model = build(old.recipe.model, graph, torch.Generator())
    model.load_state_dict(old.directory.weights())
    operator = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale())
    with torch.no_grad():
        layers = model.eval().propagate(operator, NOISE_FREE)
    stored = old.directory.read_tensors("layers.safetensors")
    for at, layer in enumerate(layers.embeddings_ND):
        torch.testing.assert_close(layer, stored[str(at)], rtol=1e-5, atol=1e-6)
    probability = np.concatenate([layers.gates[layer].numpy() for layer in sorted(layers.gates)])
    np.testing.assert_allclose(probability, old.gates["probability"].to_numpy(), atol=1e-5)
    biases = [name for name in old.directory.read_tensors("model.safetensors") if name.endswith(".bias.0")]
    assert len(biases) == 2, "the stored run has what version 2 dropped"


def test_an_old_run_folds_in_and_explains(old: Run) -> None:
    fold = old.fold_in
    torch.testing.assert_close(fold.user_with(5, []), old.factors[0][5], rtol=1e-5, atol=1e-6)
    assert len(old.recommend_new([["i0", "i2"]], 3)[0]["items"]) == 3
    parts = old.explain("u5", "i7")
    assert sum(layer["contribution"] for layer in parts["layers"]) == pytest.approx(0.9655180206626071, abs=1e-6)


def test_a_version_from_the_future_is_refused(old: Run) -> None:
    record = {**old.record.as_json(), "format_version": FORMAT_VERSION + 1}
    path = old.directory.path / "run.json"
    path.write_text(json.dumps({**record, "checksum": json_checksum(record)}))
    with pytest.raises(RunError, match=f"has format version {FORMAT_VERSION + 1}, and this hmlet reads 1 and 2"):
        Run.open(old.directory.path)
