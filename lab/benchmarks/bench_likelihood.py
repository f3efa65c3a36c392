"""A step of the multinomial likelihood on a CPU, every user in it: scores in float32 beside scores in bfloat16.

Both are steps that `hmlet train` takes, in turns, with the same settings and numbers. The loss and its gradient are
compared with float64's. A processor without instructions for bfloat16 takes the same step twice, and the result says
so.

    python lab/benchmarks/bench_likelihood.py --dataset gowalla --dim 64 128 512 --json
    python lab/benchmarks/bench_likelihood.py --dim 8 --rounds 1 --json     (seconds)
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from harness import hardware, parsed, publish
from torch import Tensor

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.graph import Graph, training_graph
from hmlet.graph.kernels import multiplies_bfloat16
from hmlet.models import Scores, build
from hmlet.models.base import training_pass
from hmlet.system.allocation import keep_freed_memory
from hmlet.system.ranks import ALONE
from hmlet.training.steps import GradientSteps, make_operator

CPU = torch.device("cpu")
PRECISIONS = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--model", nargs="+", default=["lightgcn", "hmlet-end"])
    parser.add_argument("--dim", type=int, nargs="+", default=[128])
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each")
    options = parsed(parser)
    keep_freed_memory()  # as a training does
    data = load(options.dataset)
    graph = training_graph(data)
    rows = [row(model, dim, data, graph, options.rounds) for model in options.model for dim in options.dim]
    able = multiplies_bfloat16(CPU)
    result = {"dataset": data.name, "multiplies_bfloat16": able, "hardware": hardware(CPU), "rows": rows}
    publish("likelihood", result, options.json, options.record)


def row(model: str, dim: int, data: Dataset, graph: Graph, rounds: int) -> dict[str, Any]:
    """The median step of both, and how far each is from float64."""
    recipes = {precision: _recipe(model, dim, precision) for precision in PRECISIONS}
    steps = {precision: _steps(recipe, data, graph) for precision, recipe in recipes.items()}
    seconds: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    for at in range(1 + rounds):
        for precision, each in steps.items():
            began = time.perf_counter()
            each.take(at, 0)
            if at:  # the first one warms up
                seconds[precision].append(time.perf_counter() - began)
    medians = {precision: statistics.median(each) for precision, each in seconds.items()}
    return {
        "model": model,
        "dim": dim,
        "seconds": medians,
        "rounds": seconds,
        "times_as_fast": medians["float32"] / medians["bfloat16"],
        "relative_error": _errors(recipes, data, graph) if model == "lightgcn" else None,  # it draws nothing
    }


def _recipe(model: str, dim: int, precision: str) -> Recipe:
    """The default rule's likelihood with learned popularity; the gates are narrow up to 128 columns, as there."""
    settings = [
        "train.loss=multinomial", "train.draw=interaction", f"train.precision={precision}",
        f"model.embedding_size={dim}", f"train.batch_size={2**17}", "train.edge_dropout=0", "train.l2=0",
        "train.learning_rate=0.019",
        "loss.temperature=0.12", "loss.popularity_weight=0.12", "loss.popularity_learned=true",
    ]  # fmt: skip
    if model.startswith("hmlet"):
        settings += ["model.gate_warmup=0", *(["model.gate_hidden=[64, 32]"] if dim <= 128 else [])]
    return resolve(model, overrides=settings)


def _steps(recipe: Recipe, data: Dataset, graph: Graph) -> GradientSteps:
    model = build(recipe.model, graph, torch.Generator().manual_seed(recipe.seed)).train()
    scores = Scores.start(recipe.scoring, graph)
    return GradientSteps(recipe, model, scores, make_operator(recipe, model, graph, CPU), data, CPU, ALONE)


def _errors(recipes: dict[str, Recipe], data: Dataset, graph: Graph) -> dict[str, dict[str, float]]:
    """How far the loss and the gradient of e⁰ are from float64's, relative to these."""

    def found(recipe: Recipe, exact: bool) -> tuple[Tensor, Tensor]:
        steps = _steps(recipe, data, graph)
        model, loss = (steps.model.double(), steps.loss.double()) if exact else (steps.model, steps.loss)
        everyone = steps.sampler.sample(recipe.train.batch_size, steps.generator)
        if exact:
            whole = replace(everyone.whole, share_N=everyone.whole.share_N.double())
            everyone = everyone._replace(weight=everyone.weight.double(), whole=whole)
        layers = steps.scores(model.propagate(steps.operator, training_pass(model, 1.0, steps.generator)))
        value = loss(layers, everyone).value
        (gradient,) = torch.autograd.grad(value, model.embedding)
        return value.detach().double(), gradient.double()

    right, slope = found(recipes["float32"], exact=True)
    errors = {}
    for precision, recipe in recipes.items():
        value, gradient = found(recipe, exact=False)
        errors[precision] = {
            "loss": float((value - right).abs() / right.abs()),
            "gradient": float((gradient - slope).norm() / slope.norm()),
        }
    return errors


if __name__ == "__main__":
    main()
