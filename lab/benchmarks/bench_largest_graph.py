"""An epoch of training on a synthetic graph as large as a device takes: time and memory, beside the memory plan.

The graph is synthetic.power_law_edges's, drawn on the device. From there on everything is what `hmlet train` does: the
graph is built in the host's memory, the operator and the sampler are made of it, and steps are taken; where an epoch
has more than --steps of them, its time is inferred from so many.

    python lab/benchmarks/bench_largest_graph.py --device cuda --edges 2e8 --json
    python lab/benchmarks/bench_largest_graph.py --edges 2e4 --batch 4096 --json     (seconds)
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from harness import hardware, parsed, publish
from synthetic import Synthetic, power_law_edges

from hmlet.config import resolve
from hmlet.graph import Graph, Sizes
from hmlet.graph.kernels import Operator, build_operator
from hmlet.models import Scores, build
from hmlet.system.ranks import ALONE
from hmlet.training.planning import memory_plan
from hmlet.training.steps import WARM_UP, GradientSteps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=float, default=2e4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1 << 20)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--models", nargs="+", default=["lightgcn", "hmlet-end"])
    parser.add_argument("--steps", type=int, default=50, help="at most so many steps are timed")
    parser.add_argument("--device", default="cpu")
    options = parsed(parser)
    device = torch.device(options.device)
    spent: dict[str, float] = {}
    data = _timed(spent, "drawing", lambda: power_law_edges(int(options.edges), device))
    graph = _timed(spent, "graph", lambda: Graph.from_csr(data.train, data.n_items))
    storage = torch.bfloat16 if options.precision == "bfloat16" and device.type == "cuda" else None
    arrays = graph.indptr, graph.neighbours, graph.edges, graph.scale()
    operator = _timed(spent, "operator", lambda: build_operator(*arrays, device, storage=storage))
    result: dict[str, Any] = {"hardware": hardware(device), "edges": graph.n_edges, "nodes": graph.n_nodes}
    result |= {"dim": options.dim, "batch": options.batch, "precision": options.precision, "preparing_seconds": spent}
    result["models"] = {name: _epoch(name, data, graph, operator, device, options) for name in options.models}
    publish("largest_graph", result, options.json, options.record)


def _epoch(
    name: str, data: Synthetic, graph: Graph, operator: Operator, device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """An epoch's seconds, and the memory that training takes beside the plan's."""
    gates = ["model.gate_warmup=0", f"model.gate_hidden=[{options.dim}]"] if name.startswith("hmlet") else []
    settings = [f"model.embedding_size={options.dim}", "model.layers=4", f"train.batch_size={options.batch}"]
    recipe = resolve(name, overrides=[*settings, *gates, f"train.precision={options.precision}"])
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    model = build(recipe.model, graph, torch.Generator().manual_seed(1)).to(device)
    steps = GradientSteps(recipe, model, Scores.start(recipe.scoring, graph), operator, data, device, ALONE)  # type: ignore[arg-type]
    for step in range(WARM_UP + 1):
        steps.take(step, 0)
    count = min(options.steps, steps.per_epoch)
    began = _now(device)
    for step in range(count):
        steps.take(step, 1)
    steps.mean_loss()
    seconds = _now(device) - began
    plan = memory_plan(recipe, Sizes(data.n_users, data.n_items, graph.n_edges), device.type)
    return {
        "steps_per_epoch": steps.per_epoch,
        "timed_steps": count,
        "epoch_seconds": seconds * steps.per_epoch / count,
        "ns_an_edge_and_step": 1e9 * seconds / count / graph.n_edges,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "plan": plan.as_json(),
        "recipe": recipe.to_toml(),
    }


def _timed(spent: dict[str, float], name: str, work: Any) -> Any:
    began = time.perf_counter()
    made = work()
    spent[name] = time.perf_counter() - began
    return made


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
