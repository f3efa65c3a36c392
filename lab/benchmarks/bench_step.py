"""Milliseconds of one training step by part, beside the floor of this machine: LightGCN and HMLET(End) in one run.

The steps are those that `hmlet train` takes, with the gates trained. The floor is hmlet.training.floor's: bytes and
operations over the rates of a copy, of a sum of cached rows and of a matrix product, all measured in this run. What
bfloat16 would bring is measured on the two operations that a step spends its time in: the product Â x and the first
matrix product of a gate.

    python lab/benchmarks/bench_step.py --dataset gowalla --threads 2 --json
    python lab/benchmarks/bench_step.py --dim 8 --steps 2 --json     (seconds)
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import nullcontext
from typing import Any

import torch
from harness import hardware, median_seconds, parsed, publish

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.graph import Graph, training_graph
from hmlet.graph.kernels.torch_product import TorchOperator
from hmlet.models import Scores, build
from hmlet.system.ranks import ALONE
from hmlet.training.profiling import MEASURED, WARM_UP, MeasuredStep, WatchedSteps
from hmlet.training.steps import GradientSteps, make_operator

CPU = torch.device("cpu")


def main() -> None:
    options = _options()
    data = load(options.dataset)
    graph = training_graph(data)
    result: dict[str, Any] = {"dataset": data.name, "dim": options.dim, "batch": options.batch}
    result |= {"hardware": hardware(CPU), "capability": torch.backends.cpu.get_cpu_capability()}
    result["models"] = {}
    for model in options.model:
        rounds = [_step(_recipe(options, model), data, graph, options.steps) for _ in range(options.rounds)]
        seconds = [found["seconds"] or 0.0 for found in rounds]
        middle = rounds[seconds.index(statistics.median_low(seconds))]
        result["models"][model] = {"rounds": seconds, **middle}
    result["bfloat16"] = _bfloat16(_recipe(options, "hmlet-end"), graph, options.dim)
    publish("step", result, options.json, options.record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--model", nargs="+", default=["lightgcn", "hmlet-end"])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=MEASURED, help="timed in each round, and as many recorded")
    parser.add_argument("--rounds", type=int, default=5)
    return parsed(parser)


def _recipe(options: argparse.Namespace, model: str) -> Recipe:
    sizes = [f"model.embedding_size={options.dim}", f"train.batch_size={options.batch}"]
    gates = ["model.gate_warmup=0"] if model.startswith("hmlet") else []
    return resolve(model, overrides=[*sizes, *gates])


def _step(recipe: Recipe, data: Dataset, graph: Graph, wanted: int) -> MeasuredStep:
    """The median step and its parts, of as many steps after those to warm up."""
    model = build(recipe.model, graph, torch.Generator().manual_seed(recipe.seed))
    scores = Scores.start(recipe.scoring, graph)
    steps = GradientSteps(recipe, model, scores, make_operator(recipe, model, graph, CPU), data, CPU, ALONE)
    watched = WatchedSteps(steps, lambda name: nullcontext())
    watched.first, watched.wanted = WARM_UP, wanted
    for step in range(WARM_UP + 2 * wanted):
        watched.take(step, 0)
    return watched.as_json()


def _bfloat16(recipe: Recipe, graph: Graph, columns: int) -> dict[str, dict[str, float]]:
    """Seconds of the two operations in both types."""
    model = build(recipe.model, graph, torch.Generator().manual_seed(recipe.seed))
    operator = make_operator(recipe, model, graph, CPU)
    assert isinstance(operator, TorchOperator)
    found: dict[str, dict[str, float]] = {"product": {}, "matrix_product": {}}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        table_ND = torch.ones(operator.n_nodes, columns, dtype=dtype)
        inputs_NF, weights_FH = table_ND.repeat(1, 2), torch.ones(2 * columns, 512, dtype=dtype)
        found["product"][name] = median_seconds(lambda: operator.product(table_ND), CPU)  # noqa: B023 - called here
        found["matrix_product"][name] = median_seconds(lambda: inputs_NF @ weights_FH, CPU)  # noqa: B023
    return found


if __name__ == "__main__":
    main()
