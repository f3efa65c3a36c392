"""Cost by size: building the graph, a product and a training step on synthetic power-law graphs of growing size.

The graphs are synthetic.power_law_edges's, with about as many items a user as Gowalla has. The table has time and
memory for each edge; `exponent` is the slope of log time over log edges (1 is linear). Memory of building the graph is
traced in NumPy; that of a step is the device's, or on CPU what the process grew by at the most. Gates have one hidden
layer of D: the paper's sizes, made for D = 512, would be nearly all that is measured.

    python lab/benchmarks/bench_linear_cost.py --device cuda --edges 1e6 3e6 1e7 3e7 1e8 --json
    python lab/benchmarks/bench_linear_cost.py --edges 1e5 3e5 1e6 3e6 1e7 --threads 2 --json
    python lab/benchmarks/bench_linear_cost.py --edges 1e4 3e4 --repeats 1 --json     (seconds)
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import hardware, median_seconds, parsed, publish
from synthetic import Synthetic, power_law_edges

from hmlet.config import resolve
from hmlet.graph import Graph
from hmlet.graph.kernels import Operator, build_operator
from hmlet.models import Scores, build
from hmlet.system.ranks import ALONE
from hmlet.training.steps import GradientSteps

MODELS = ("lightgcn", "hmlet-end")
ONCE = 20_000_000  # edges from which on the graph is built once: that takes seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=float, nargs="+", default=[1e5, 3e5, 1e6])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    options = parsed(parser)
    device = torch.device(options.device)
    _measure(power_law_edges(5000, device), device, options)  # libraries are loaded and kernels compiled
    rows = [_measure(power_law_edges(int(edges), device), device, options) for edges in options.edges]
    timed = [name for name in rows[0] if name.endswith("_seconds")]
    result: dict[str, Any] = {"dim": options.dim, "batch": options.batch, "precision": options.precision}
    result |= {"hardware": hardware(device), "sizes": rows}
    result["exponent"] = {name.removesuffix("_seconds"): _exponent(rows, name) for name in timed}
    publish("linear_cost", result, options.json, options.record)
    if not options.json:
        _print_table(rows, timed)


def _measure(data: Synthetic, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """One size: seconds and bytes of each kind of work."""
    repeats = options.repeats if len(data.train.items) < ONCE else 1
    building, peaks, graphs = zip(*(built(data) for _ in range(repeats)), strict=True)
    graph, peak = graphs[-1], max(peaks)
    size = graph.indptr.nbytes + graph.neighbours.nbytes + graph.edges.nbytes
    row: dict[str, Any] = {"edges": graph.n_edges, "nodes": graph.n_nodes, "largest_degree": int(graph.degree.max())}
    row |= {"graph_seconds": statistics.median(building), "graph_bytes": size, "graph_peak_bytes": peak}
    storage = torch.bfloat16 if options.precision == "bfloat16" else None
    arrays = graph.indptr, graph.neighbours, graph.edges, graph.scale()
    operator = build_operator(*arrays, device, storage=storage)
    row["operator_seconds"] = _seconds(lambda: build_operator(*arrays, device, storage=storage), device)
    row["product_seconds"] = _product_seconds(operator, device, options)
    for name in MODELS:
        row |= _step(name, data, graph, operator, device, options)
    return row


def built(data: Synthetic) -> tuple[float, int, Graph]:
    """The graph, after the seconds that building it takes and the bytes at the most, the graph included."""
    tracemalloc.start()
    began = time.perf_counter()
    graph = Graph.from_csr(data.train, data.n_items)
    seconds = time.perf_counter() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, peak, graph


def _product_seconds(operator: Operator, device: torch.device, options: argparse.Namespace) -> float:
    x_ND = torch.randn(operator.n_nodes, options.dim, device=device)
    return median_seconds(lambda: operator.product(x_ND), device, options.repeats, 1)


def _step(
    name: str, data: Synthetic, graph: Graph, operator: Operator, device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    sizes = [f"model.embedding_size={options.dim}", f"train.batch_size={options.batch}", "model.layers=4"]
    gates = ["model.gate_warmup=0", f"model.gate_hidden=[{options.dim}]"] if name.startswith("hmlet") else []
    recipe = resolve(name, overrides=[*sizes, *gates, f"train.precision={options.precision}"])
    gc.collect()
    before = _reset_peak(device)
    model = build(recipe.model, graph, torch.Generator().manual_seed(1)).to(device)
    steps = GradientSteps(recipe, model, Scores.start(recipe.scoring, graph), operator, data, device, ALONE)  # type: ignore[arg-type]
    taken = iter(range(10**9))
    seconds = median_seconds(lambda: steps.take(next(taken), 0), device, options.repeats, 6 if steps.on_cuda else 1)
    return {f"{name}_step_seconds": seconds, f"{name}_step_peak_bytes": _peak(device) - before}


def _seconds(work: Callable[[], object], device: torch.device | None = None) -> float:
    began = time.perf_counter()
    work()
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _reset_peak(device: torch.device) -> int:
    """The memory in use now, from which the peak is counted."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with suppress(OSError):  # where /proc may not be written, the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")
    return _peak(device)


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def _exponent(rows: list[dict[str, Any]], name: str) -> float | None:
    """The slope of log seconds over log edges."""
    if len(rows) < 2:
        return None
    return float(np.polyfit(np.log([row["edges"] for row in rows]), np.log([row[name] for row in rows]), 1)[0])


def _print_table(rows: list[dict[str, Any]], timed: list[str]) -> None:
    print("\nns an edge" + "".join(f"{name.removesuffix('_seconds'):>16}" for name in timed))
    for row in rows:
        print(f"{row['edges']:>10}" + "".join(f"{1e9 * row[name] / row['edges']:>16.2f}" for name in timed))
    memory = [name for name in rows[0] if name.endswith("_bytes")]
    print("\nbytes an edge" + "".join(f"{name.removesuffix('_bytes'):>22}" for name in memory))
    for row in rows:
        print(f"{row['edges']:>13}" + "".join(f"{row[name] / row['edges']:>22.1f}" for name in memory))


if __name__ == "__main__":
    main()
