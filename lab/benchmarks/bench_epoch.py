"""Seconds an epoch of HMLET(End), sampling included, beside the floor, beside plain PyTorch, with the error to float64.

A whole epoch goes through the GradientSteps that `hmlet train` uses; the median of several after those to warm up. The
floor is hmlet.training.floor's: bytes and operations over the rates that this device shows in this run. Plain PyTorch
(plain.py) takes some steps of the same model, and its epoch is inferred from their median.

    python lab/benchmarks/bench_epoch.py --dataset gowalla --dim 512 --device cuda --json
    python lab/benchmarks/bench_epoch.py --dataset debian --dim 16 --steps 4 --plain-steps 2 --epochs 1 --json (seconds)
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from harness import hardware, parsed, publish, relative_error
from plain import PlainSteps

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.graph import Graph, training_graph
from hmlet.graph.kernels import build_operator, draw_key
from hmlet.losses.base import penalty, row_norms
from hmlet.losses.bpr import bpr, margins
from hmlet.models import NOISE_FREE, Model, Scores, build
from hmlet.models.base import training_pass
from hmlet.ranking.evaluation import evaluate
from hmlet.system.ranks import ALONE
from hmlet.training.profiling import MEASURED, WatchedSteps
from hmlet.training.steps import GradientSteps, make_operator

EXACT = ["model.gate_noise=false", "model.gate_dropout=0.0"]  # what float64 would draw otherwise


def main() -> None:
    options = _options()
    warnings.filterwarnings("ignore", message=".*[Ss]parse.*")  # PyTorch's, of every sparse CSR tensor
    device = torch.device(options.device)
    data = load(options.dataset)
    graph = training_graph(data)
    result: dict[str, Any] = {"dataset": data.name, "model": options.model, "dim": options.dim}
    result |= {"layers": options.layers, "batch": options.batch, "hardware": hardware(device), "precisions": {}}
    for precision in options.precision:
        recipe = _recipe(options, precision)
        found = _ours(recipe, data, graph, device, options)
        found |= _error(recipe, load(options.error_dataset), device)
        result["precisions"][precision] = found
    result["edge_dropout"] = recipe.train.edge_dropout
    result |= _plain(recipe, data, graph, device, options)
    for found in result["precisions"].values():
        found["speedup_over_plain"] = result["plain_epoch_seconds"] / found["epoch_seconds"]
    publish("epoch", result, options.json, options.record)
    if not options.json:
        for precision, found in result["precisions"].items():
            _print_parts(precision, found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--model", default="hmlet-end", help="an HMLET variant")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--precision", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs, after those to warm up")
    parser.add_argument("--steps", type=int, default=0, help="cut epochs to so many steps, and infer the rest")
    parser.add_argument("--plain-steps", type=int, default=20, help="timed steps of plain PyTorch")
    parser.add_argument("--error-dataset", default="debian", help="where one step is compared with float64")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value of the recipe")
    return parsed(parser)


def _recipe(options: argparse.Namespace, precision: str) -> Recipe:
    """The gpu preset with gates that are trained from the start, at a constant step size."""
    values = {
        "model.embedding_size": options.dim, "model.layers": options.layers, "model.gate_warmup": 0,
        "train.batch_size": options.batch, "train.precision": precision, "train.schedule": "constant",
        "train.learning_rate": 1e-3,
    }  # fmt: skip
    return resolve(
        options.model, "gpu", overrides=[*(f"{key}={value}" for key, value in values.items()), *options.overrides]
    )


def _build(recipe: Recipe, data: Dataset, graph: Graph, device: torch.device) -> GradientSteps:
    model = build(recipe.model, graph, torch.Generator().manual_seed(recipe.seed)).to(device)
    operator = make_operator(recipe, model, graph, device)
    return GradientSteps(recipe, model, Scores.start(recipe.scoring, graph), operator, data, device, ALONE)


def _ours(
    recipe: Recipe, data: Dataset, graph: Graph, device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """Seconds an epoch, a step by part beside the floor, and the device's memory."""
    _reset_peak(device)
    steps = _build(recipe, data, graph, device)
    count = options.steps or steps.per_epoch
    watched = WatchedSteps(steps, lambda name: nullcontext())
    warm_up = 1 if count >= 3 * MEASURED else 3  # the epochs to warm up are those that are looked into
    epochs = []
    for epoch in range(warm_up + options.epochs):
        taker = watched if epoch < warm_up else steps
        began = _now(device)
        for step in range(count):
            taker.take(epoch * steps.per_epoch + step, epoch)
        taker.mean_loss()
        epochs.append((_now(device) - began) * steps.per_epoch / count)
    training_memory = _peak(device)
    with torch.no_grad():
        factors_NF = steps.model.eval().propagate(steps.operator, NOISE_FREE).factors().float()
        evaluate((factors_NF[: data.n_users], factors_NF[data.n_users :]), data, "valid")
    memory = _peak(device)
    step = watched.as_json()
    seconds = statistics.median(epochs[warm_up:])
    floor = step["floor_seconds"] * steps.per_epoch
    return {
        "epoch_seconds": seconds,
        "inferred_from_some_steps": count < steps.per_epoch,
        "epochs": epochs[warm_up:],
        "floor_epoch_seconds": floor,
        "share_of_floor": floor / seconds,
        "peak_bytes_training": training_memory,
        "peak_bytes_with_evaluation": memory,
        "step": step,
    }


def _print_parts(precision: str, found: dict[str, Any]) -> None:
    print(f"\n{precision}: {found['epoch_seconds']:.3f} s an epoch, {found['share_of_floor']:.0%} of the floor")
    for row in found["step"]["parts"]:
        seconds = "–" if row["seconds"] is None else f"{1e3 * row['seconds']:.3f}"
        print(f"  {row['part']:32} {seconds:>9} ms, floor {1e3 * row['floor_seconds']:.3f} ms")


def _plain(
    recipe: Recipe, data: Dataset, graph: Graph, device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """The same model in plain PyTorch: an epoch's seconds from the median step."""
    _reset_peak(device)
    operator = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale(), device)
    steps = PlainSteps(recipe, operator, _build(recipe, data, graph, device).sampler, data.n_users)
    times = []
    for at in range(options.plain_steps + 2):
        began = _now(device)
        steps.take()
        if at >= 2:
            times.append(_now(device) - began)
    per_epoch = -(-data.count("train") // recipe.train.batch_size)
    return {
        "plain_epoch_seconds": statistics.median(times) * per_epoch,
        "plain_steps": options.plain_steps,
        "plain_peak_bytes": _peak(device),
    }


def _error(recipe: Recipe, data: Dataset, device: torch.device) -> dict[str, float]:
    """How far the loss and the gradients of one step, on a small set, are from float64's."""
    graph = training_graph(data)
    recipe = recipe.changed([*EXACT, "model.embedding_size=64"])
    steps = _build(recipe, data, graph, device)
    state = steps.generator.get_state()
    batch = steps.sampler.sample(recipe.train.batch_size, steps.generator)
    key = draw_key(steps.generator, device)
    steps.generator.set_state(state)
    loss = steps.batch_loss()
    loss.backward()
    exact = build(recipe.model, graph, torch.Generator().manual_seed(recipe.seed)).double()
    rows_3B = torch.cat([batch.user, data.n_users + batch.positive, data.n_users + batch.negative]).cpu()
    exact_loss = _float64_loss(recipe, exact, graph, rows_3B, key.cpu(), float(steps.temperature))
    exact_loss.backward()
    pairs = list(zip(steps.model.parameters(), exact.parameters(), strict=True))
    gradients = [torch.cat([p.grad.double().cpu().flatten() for p in side]) for side in zip(*pairs, strict=True)]
    return {
        "loss_relative_error": abs(loss.item() / exact_loss.item() - 1.0),
        "gradient_relative_error": relative_error(*gradients),
    }


def _float64_loss(
    recipe: Recipe, model: Model, graph: Graph, rows_3B: torch.Tensor, key: torch.Tensor, temperature: float
) -> torch.Tensor:
    whole = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale(), dtype=torch.float64)
    product = whole.drop(recipe.train.edge_dropout, key) if recipe.train.edge_dropout else whole
    layers = model.propagate(product, training_pass(model, temperature, torch.Generator()))
    chosen_3BF = layers.factors()[rows_3B]
    norms = row_norms(model.embedding[rows_3B].chunk(3))
    return bpr(margins(*chosen_3BF.chunk(3))) + recipe.train.l2 * penalty(norms)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> dict[str, int] | None:
    """Bytes of device memory at the most since the last reset: by tensors, and with the allocator's own slack."""
    if device.type != "cuda":
        return None
    return {
        "tensors": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
    }


if __name__ == "__main__":
    main()
