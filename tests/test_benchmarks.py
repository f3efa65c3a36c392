"""Every benchmark of speed at a tiny size: it runs, its sides agree, and its record says what it has to."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import crowd_and_ring

from hmlet.cli import main
from hmlet.graph import training_graph
from hmlet.losses import LOSSES
from hmlet.models import MODELS, build

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = (ROOT / "lab" / "benchmarks", ROOT / "benchmarks")
Bench = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def quick_rates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {"COPY_BYTES": 1 << 16, "MATRIX": 16, "CACHED_BYTES": 1 << 12, "GATHERS": 1 << 8}.items():
            patch.setattr(f"hmlet.training.floor.{name}", {"cpu": size})
        for folder in BENCHMARKS:
            patch.syspath_prepend(folder)
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tiny") / "data"
    crowd_and_ring(1)[0].save(directory)
    return str(directory)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """A call `bench("epoch", "--dim", "8")`: what the script printed as JSON, which its record has to be too."""

    def call(name: str, *arguments: str) -> dict[str, Any]:
        record = tmp_path / "record.json"
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--json", "--record", str(record)])
        importlib.import_module(f"bench_{name}").main()
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert printed == json.loads(record.read_text(encoding="utf-8"))
        assert printed["benchmark"] == name
        return printed

    return call


def test_update(bench: Bench, tiny: str) -> None:
    found = bench("update", "--dataset", tiny, "--model", "lightgcn", "--new-nodes", "--set", "train.epochs=4")
    assert found["new"]["users"] > 0
    assert found["new"]["items"] > 0
    (row,) = found["seeds"]
    assert row["update"]["epochs"] < row["retrain"]["epochs"] == 4
    assert found["ndcg_share"] == pytest.approx(row["update"]["ndcg"] / row["retrain"]["ndcg"])
    assert {"ndcg", "ndcg_new_users", "seconds"} <= row["update"].keys()


def test_startup(bench: Bench, tiny: str) -> None:
    found = bench("startup", "--dataset", tiny, "--model", "popularity", "--rounds", "1", "--warm-up", "0")
    (ours,) = found["popularity"]
    assert ours["other_seconds"] + ours["training_seconds"] == pytest.approx(ours["wall_seconds"])
    assert ours["other_seconds"] > 0.0
    assert len(found["trees"]) == 1


def test_step(bench: Bench, tiny: str) -> None:
    sizes = ["--dim", "8", "--batch", "64", "--steps", "1", "--rounds", "1", "--model", "lightgcn"]
    found = bench("step", "--dataset", tiny, *sizes)
    assert found["models"]["lightgcn"]["seconds"] == found["models"]["lightgcn"]["rounds"][0] > 0.0
    assert {"product", "optimizer"} <= {part["part"] for part in found["models"]["lightgcn"]["parts"]}
    assert found["bfloat16"]["product"].keys() == {"float32", "bfloat16"}


def test_likelihood(bench: Bench, tiny: str) -> None:
    found = bench("likelihood", "--dataset", tiny, "--dim", "8", "--rounds", "1")
    linear, gated = found["rows"]
    assert linear["times_as_fast"] == pytest.approx(linear["seconds"]["float32"] / linear["seconds"]["bfloat16"])
    assert linear["relative_error"]["float32"]["loss"] < 1e-5
    assert linear["relative_error"]["float32"]["gradient"] < 1e-4
    assert linear["relative_error"]["bfloat16"]["loss"] < 1e-3
    assert linear["relative_error"]["bfloat16"]["gradient"] < 3e-2
    assert gated["model"] == "hmlet-end"
    assert len(gated["rounds"]["bfloat16"]) == 1


def test_export() -> None:
    assert importlib.import_module("bench_export").measure(users=30, items=200, dim=4, k=5)["rows"] == 30 * 5


def test_trees(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice this tree; of a script's answer the values that a case names are taken."""
    trees = importlib.import_module("bench_trees")
    case = trees.Case("export", ("--users", "20", "--items", "100", "--dim", "4"), {"users": ("users",)})
    monkeypatch.setattr(trees, "CASES", [case])
    found = bench("trees", "--tree", str(ROOT), "--tree", str(ROOT), "--rounds", "1")
    assert len(found["trees"]) == 2
    assert found["values"] == {"export users": {"medians": [20.0, 20.0], "rounds": [[20.0], [20.0]], "change": 0.0}}


def test_epoch(bench: Bench, tiny: str) -> None:
    sizes = ["--dim", "8", "--batch", "64", "--epochs", "1", "--plain-steps", "1", "--set", "model.gate_hidden=[8]"]
    found = bench("epoch", "--dataset", tiny, "--error-dataset", tiny, "--precision", "float32", *sizes)
    ours = found["precisions"]["float32"]
    step = ours["step"]
    assert ours["floor_epoch_seconds"] == pytest.approx(step["floor_seconds"] * step["steps_per_epoch"])
    assert ours["share_of_floor"] == pytest.approx(ours["floor_epoch_seconds"] / ours["epoch_seconds"])
    assert ours["speedup_over_plain"] == pytest.approx(found["plain_epoch_seconds"] / ours["epoch_seconds"])
    assert 0 < ours["loss_relative_error"] < 1e-6
    assert 0 < ours["gradient_relative_error"] < 1e-4
    assert {row["part"] for row in step["parts"]} >= {"product", "matrix products", "mixture", "optimizer"}
    assert not ours["inferred_from_some_steps"]


def test_softmax(bench: Bench, tiny: str) -> None:
    found = bench(
        "softmax", "--dataset", tiny, "--dim", "8", "--batch", "64", "--repeats", "2", "--precision", "float32"
    )
    del LOSSES["plain-softmax"]
    steps = found["steps"]
    assert steps["softmax"]["mean_loss"] == pytest.approx(steps["plain-softmax"]["mean_loss"], rel=1e-4)
    assert found["times_a_bpr_step"] == pytest.approx(steps["softmax"]["ms"] / steps["bpr"]["ms"])
    assert 0 <= found["loss_relative_error"] < 1e-6
    assert 0 < found["gradient_relative_error"] < 1e-4


def test_lightgcn_cpu(bench: Bench, tiny: str) -> None:
    found = bench("lightgcn_cpu", "--dataset", tiny, "--dim", "8", "--batch", "64", "--steps", "2")
    assert found["speedup_over_torch_coo"] > 0
    assert found["torch_csr_mean_loss"] == pytest.approx(found["hmlet_mean_loss"], rel=1e-5)  # with dropped edges
    assert found["edge_dropout"] > 0
    assert found["inferred_from_some_steps"]


def test_lightgcn_cpu_refuses_sides_that_do_another_training() -> None:
    script = importlib.import_module("bench_lightgcn_cpu")
    script._require_agreement({"hmlet": 0.5, "torch_coo": 0.5 + 1e-7})
    with pytest.raises(SystemExit, match="not the same training"):
        script._require_agreement({"hmlet": 0.5, "torch_coo": 0.5001})


def test_evaluation(bench: Bench, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("bench_evaluation"), "PAUSE", 0.0)
    found = bench("evaluation", "--dataset", tiny, "--dim", "8", "--users", "50", "--repeats", "1")
    assert (found["users"], found["numpy_loop_users"]) == (240, 50)
    assert found["largest_difference_of_a_users_metric"] <= 1e-12
    assert found["speedup_over_numpy_loop"] == found["numpy_loop_seconds"] / found["hmlet_seconds"]


def test_linear_cost(bench: Bench) -> None:
    found = bench("linear_cost", "--edges", "1000", "4000", "--dim", "8", "--batch", "16", "--repeats", "1")
    for row in found["sizes"]:
        assert row["graph_bytes"] == 8 * (row["nodes"] + 1) + 2 * 2 * 4 * row["edges"]
    first, last = found["sizes"]
    slope = math.log(last["graph_seconds"] / first["graph_seconds"]) / math.log(last["edges"] / first["edges"])
    assert found["exponent"]["graph"] == pytest.approx(slope)
    assert set(found["exponent"]) == {"graph", "operator", "product", "lightgcn_step", "hmlet-end_step"}


def test_building_a_graph_takes_at_most_three_times_its_size() -> None:
    script = importlib.import_module("bench_linear_cost")
    data = importlib.import_module("synthetic").power_law_edges(100_000, torch.device("cpu"))
    _, peak, graph = script.built(data)
    # A power law, and no pair stands twice.
    assert graph.degree.max() > 25 * graph.degree.mean()
    keys = np.repeat(np.arange(data.n_users), data.train.counts) * data.n_items + data.train.items
    assert (np.diff(keys) > 0).all()
    assert peak <= 3 * (graph.indptr.nbytes + graph.neighbours.nbytes + graph.edges.nbytes)


def test_largest_graph(bench: Bench) -> None:
    result = bench("largest_graph", "--edges", "5e3", "--dim", "8", "--batch", "512", "--steps", "2")
    assert result["edges"] <= 5e3
    for model in ("lightgcn", "hmlet-end"):
        found = result["models"][model]
        assert found["steps_per_epoch"] == math.ceil(result["edges"] / 512)
        assert found["timed_steps"] == 2
        assert found["ns_an_edge_and_step"] * 1e-9 * result["edges"] * found["steps_per_epoch"] == pytest.approx(
            found["epoch_seconds"]
        )
        assert found["plan"]["graph"] > 0


def test_time_to_accuracy(
    bench: Bench, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module("bench_time_to_accuracy")

    caches: list[tuple[str, list[Path]]] = []

    def in_process(kernels: Path, *arguments: str) -> dict[str, Any]:
        caches.append((arguments[0], list(kernels.iterdir())))
        (kernels / "kernel").touch()
        assert main([*arguments, "--json"]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    monkeypatch.setattr(script, "_hmlet", in_process)
    sizes = [f"--set={each}" for each in ("train.epochs=1", "model.embedding_size=8")]
    how = ["--model", "lightgcn", "--preset", "hmlet", "--device", "cpu", "--keep", str(tmp_path / "kept")]
    result = bench("time_to_accuracy", "--datasets", tiny, *how, *sizes)
    cold, run = result["runs"]
    (sides,) = result["sets"].values()
    assert sides["warm"] == {"seeds": 1, "seconds": run["seconds"], "slowest": run["seconds"], "test": run["test"]}
    assert [each["cache"] for each in result["runs"]] == list(sides) == ["cold", "warm"]
    assert [bool(found) for command, found in caches if command == "train"] == [False, True]
    assert (cold["test"], run["epochs"]) == (run["test"], 1)
    assert run["seconds"] > run["timings"]["training_seconds"]
    assert set(run["test"]) == {"ndcg", "recall", "precision"}
    assert "paper" not in run  # which has no number for this data set
    kept = {path.name for path in (tmp_path / "kept").rglob("*.*")}
    assert kept == {"config.toml", "run.json", "metrics.jsonl", "test_mask-train.json"}


def test_a_number_that_would_be_printed_like_the_papers_reaches_it() -> None:
    reached = importlib.import_module("bench_time_to_accuracy").reached
    paper = {"ndcg": 0.1231, "recall": 0.1908, "precision": 0.0293}
    assert reached({"ndcg": 0.12306, "recall": 0.19074, "precision": 0.03}, paper) == {
        "ndcg": True, "recall": False, "precision": True,
    }  # fmt: skip


def test_search_filters_scores_as_the_models_do() -> None:
    """A point's scores are the history times the W that the model of these settings solves."""
    search_filters = importlib.import_module("search_filters")
    data = crowd_and_ring(1)[0]
    train = data.csr("train")
    rows = torch.arange(data.n_users).repeat_interleave(torch.from_numpy(train.counts))
    items = torch.from_numpy(train.items.astype(np.int64))
    history_UI = torch.zeros(data.n_users, data.n_items)
    history_UI[rows, items] = 1.0
    points = search_filters.Filters(data, torch.device("cpu")).points(rows, items)
    chosen = {
        settings.pop("model"): (settings, scores_IB)
        for point, scores_IB in points
        if (settings := dict(point))["alpha"] == 0.2 and settings["vectors"] == 512
    }
    assert set(chosen) == {"cheby-cf", "gf-cf"}
    for name, (settings, scores_IB) in chosen.items():
        model = build(MODELS[name].Config(**settings), training_graph(data), torch.Generator().manual_seed(1))
        model.solve(train)
        torch.testing.assert_close(scores_IB.T, history_UI @ model.item_weights().values, rtol=1e-3, atol=1e-3)  # type: ignore[union-attr]
