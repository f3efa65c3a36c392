"""A graph on the device beside the same graph in the host's memory: a product, a LightGCN step and the memory of each.

`same` says whether both products are equal bit for bit. Of each product, `copied_bytes` is what travels, and
`copy_floor_ms` the time of that at the link's rate, which is measured first: the longer of it and the time on the
device is the least that a streamed product can take. On CPU the graph is in the host's memory anyway: both sides are
one operator, nothing is copied, and the run only shows that the script works.

    python benchmarks/bench_host_graph.py --json                                                       (seconds)
    python benchmarks/bench_host_graph.py --device cuda --size large --json
    python benchmarks/bench_host_graph.py --device cuda --size large --dims 64 --edge-dropout 0 --block 21 --json
    python benchmarks/bench_host_graph.py --device cuda --block 12 --json                  (seconds, in many blocks)
"""

from __future__ import annotations

import argparse
import gc
from typing import Any, get_args

import torch
from harness import hardware, median_seconds, parsed, publish, relative_error
from synthetic import power_law

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.graph import Graph, Sizes, training_graph
from hmlet.graph.kernels import Memory, Operator, build_operator, draw_key, stream
from hmlet.models import Scores, build
from hmlet.system.ranks import ALONE
from hmlet.training.planning import memory_plan
from hmlet.training.steps import GradientSteps

SIZES = {
    "small": (2_000, 1_000, 20_000),
    "medium": (360_000, 40_000, 20_000_000),
    "large": (1_800_000, 200_000, 100_000_000),
}  # users, items, interactions
PLACES: tuple[Memory, ...] = get_args(Memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--edge-dropout", type=float, nargs="+", default=[0.0, 0.4])
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--block", type=int, help="log2 of the entries of a block")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    options = parsed(parser)
    if options.block:
        stream.BLOCK = 2**options.block
    device = torch.device(options.device)
    data = power_law(*SIZES[options.size])
    graph = training_graph(data)
    result: dict[str, Any] = {"hardware": hardware(device), "precision": options.precision, "batch": options.batch}
    result |= {"nodes": graph.n_nodes, "edges": graph.n_edges, "block_entries": stream.BLOCK}
    rate = _link_rate(device)
    result["link_GB_per_s"] = None if rate is None else rate / 1e9
    settings = [(dim, dropout) for dim in options.dims for dropout in options.edge_dropout]
    result["cases"] = [_case(data, graph, device, dim, dropout, rate, options) for dim, dropout in settings]
    publish("host_graph", result, options.json, options.record)


def _link_rate(device: torch.device) -> float | None:
    """Bytes a second that blocks in locked memory take to the device, one after the other; none on CPU."""
    if device.type != "cuda":
        return None
    blocks = torch.zeros(8, stream.BLOCK, dtype=torch.int32).pin_memory()
    buffer = torch.empty(stream.BLOCK, dtype=torch.int32, device=device)

    def copy() -> None:
        for block in blocks:
            buffer.copy_(block, non_blocking=True)

    return blocks.nbytes / median_seconds(copy, device)


def _case(
    data: Dataset,
    graph: Graph,
    device: torch.device,
    dim: int,
    dropout: float,
    rate: float | None,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Both places, one after the other; the products of the first stay on the host to be compared."""
    copied = 2 * graph.n_edges * 4 * (2 if dropout else 1) if device.type == "cuda" else 0
    found: dict[str, Any] = {"dim": dim, "edge_dropout": dropout, "copied_bytes": copied}
    found["copy_floor_ms"] = None if rate is None else 1e3 * copied / rate
    products: dict[str, torch.Tensor] = {}
    for memory in PLACES:
        settings = [f"model.embedding_size={dim}", "model.layers=3", f"train.batch_size={options.batch}"]
        settings += [f"train.edge_dropout={dropout}", f"train.precision={options.precision}"]
        recipe = resolve("lightgcn", overrides=[*settings, f"train.graph_memory={memory}"])
        operator = _operator(recipe, graph, device)
        products[memory], product_ms = _product(operator, dim, dropout, options.repeats, device)
        found[memory] = {"operator_bytes": operator.nbytes, "product_ms": product_ms}
        found[memory] |= _step(recipe, data, graph, operator, options.repeats, device)
    found["same"] = torch.equal(products["device"], products["host"])
    found["relative_error"] = 0.0 if found["same"] else relative_error(products["host"], products["device"].double())
    for what in ("product", "step"):
        found[f"{what}_slowdown"] = found["host"][f"{what}_ms"] / found["device"][f"{what}_ms"]
    return found


def _operator(recipe: Recipe, graph: Graph, device: torch.device) -> Operator:
    return build_operator(
        graph.indptr,
        graph.neighbours,
        graph.edges,
        graph.scale(),
        device,
        storage=torch.bfloat16 if recipe.train.precision == "bfloat16" else None,
        memory=recipe.train.graph_memory,
    )


def _product(
    operator: Operator, dim: int, dropout: float, repeats: int, device: torch.device
) -> tuple[torch.Tensor, float]:
    """A product, on the host, and the milliseconds that one takes."""
    generator = torch.Generator(device).manual_seed(0)
    x_ND = torch.randn(operator.n_nodes, dim, generator=generator, device=device)
    thinned = operator.drop(dropout, draw_key(generator, device))
    seconds = median_seconds(lambda: thinned.product(x_ND), device, repeats, 1)
    return thinned.product(x_ND).cpu(), 1e3 * seconds


def _step(
    recipe: Recipe, data: Dataset, graph: Graph, operator: Operator, repeats: int, device: torch.device
) -> dict[str, Any]:
    """The time of a training step, and the device's peak in steps beside the plan's."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    model = build(recipe.model, graph, torch.Generator().manual_seed(1)).to(device)
    steps = GradientSteps(recipe, model, Scores.start(recipe.scoring, graph), operator, data, device, ALONE)
    taken = iter(range(10**9))
    warm_up = 6 if steps.on_cuda else 1  # past the capture of a CUDA graph
    seconds = median_seconds(lambda: steps.take(next(taken), 0), device, repeats, warm_up)
    plan = memory_plan(recipe, Sizes.of(data), device.type)
    best = model.embedding.nbytes  # the best model so far, which steps alone do not keep
    return {
        "step_ms": 1e3 * seconds,
        "epoch_seconds_inferred": seconds * steps.per_epoch,
        "planned_step_bytes": plan.graph + plan.table + plan.optimizer + plan.activations - best,
        "peak_step_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


if __name__ == "__main__":
    main()
