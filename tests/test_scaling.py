"""docs/scaling.md says what lab/benchmarks/model_scaling.py computes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hmlet.config import resolve
from hmlet.graph import Sizes
from hmlet.training.planning import memory_plan

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_scaling", ROOT / "lab" / "benchmarks" / "model_scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model_scaling"] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def test_the_document_has_the_current_table(model: ModuleType) -> None:
    document = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert f"{model.BEGIN}\n{model.text()}\n{model.END}" in document, (
        "run lab/benchmarks/model_scaling.py --write and commit"
    )


def test_a_step_by_hand(model: ModuleType) -> None:
    """LightGCN, K = 2, D = 64 on 2 ranks, bfloat16: 32 columns of 2 bytes and 8 bytes beside them an entry."""
    settings = [*model.SETTINGS, "model.layers=2", "train.batch_size=99"]
    recipe, sizes = resolve("lightgcn", "hmlet", None, settings), Sizes(600, 400, 10_000)
    plan = memory_plan(recipe, sizes, "cuda")
    found = model.step(recipe, sizes, 2, plan, efficiency=0.5)
    assert found.product == pytest.approx(2 * 2 * 20_000 * (64 + 8) / 4.8e12 / 0.5)
    assert found.gate == 0.0
    assert found.state == pytest.approx((2 * plan.activations + 28 * 1000 * 32) / 4.8e12 / 0.5)
    assert found.link == pytest.approx(4 * 0.5 * 4 * 100 / 450e9)
    assert model.step(recipe, sizes, 64, plan).product == pytest.approx(2 * 2 * 20_000 * (32 + 8) / 4.8e12)  # a sector


@pytest.mark.parametrize("name", ["lightgcn", "hmlet-end"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_traffic_is_what_was_measured(name: str, ranks: int, model: ModuleType) -> None:
    """Bytes counted on debian (lab/benchmarks/bench_ranks.py), within one percent."""
    record = json.loads((ROOT / "lab" / "results" / "benchmarks" / "ranks_debian_d64_cpu2_2026-11-15.json").read_text())
    settings = [f"model.embedding_size={record['dim']}", f"train.batch_size={record['batch']}"]
    expected = record[name][str(ranks)]["sent_bytes"]
    found = model.traffic(resolve(name, "hmlet", None, settings), Sizes(3779, 1285, 47_398), ranks)
    assert found == pytest.approx(expected, rel=0.01)
