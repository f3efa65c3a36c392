"""LightGCN epochs on CPU: our operator beside PyG's and torch.sparse's, everything else the same.

Every side trains the same model from the same seed by the same GradientSteps (sampler, loss, readout, Adam); only what
multiplies by Â differs. Dropped edges are the same ones on every side, so the losses have to agree, and are checked.
Sides take turns, a stretch of steps each, and the time of an epoch is inferred from the median step; --steps 0 takes
whole epochs.

    python lab/benchmarks/bench_lightgcn_cpu.py --dataset gowalla --dim 64 --threads 2 --json
    python lab/benchmarks/bench_lightgcn_cpu.py --dataset debian --steps 2 --json     (seconds)
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from harness import hardware, parsed, publish
from torch import Tensor

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.graph import training_graph
from hmlet.graph.kernels import Operator, Product, build_operator, edge_hash
from hmlet.models import Scores, build
from hmlet.system.ranks import ALONE
from hmlet.training.steps import GradientSteps

CPU = torch.device("cpu")
TURN = 4  # steps that a side takes before the next one does
AGREEMENT = 1e-5  # relative, between the losses of float32 sums in another order


class Peer(Product):
    """A peer's operator."""

    def __init__(self, product: Callable[[Tensor], Tensor]) -> None:
        self.product = product

    def __call__(self, x_ND: Tensor) -> Tensor:
        return self.product(x_ND)


class Entries(Peer):
    """Â as rows, columns and weights: what each peer makes its own operator from."""

    def __init__(self, operator: Operator, make: Callable[[Tensor, Tensor, Tensor, int], Callable[[Tensor], Tensor]]):
        self.n_nodes, self.make = operator.n_nodes, make
        self.row = torch.repeat_interleave(torch.arange(operator.n_nodes), operator.indptr.diff().long())
        self.column, self.weight, self.edges = operator.neighbours.long(), operator.weights, operator.edges.long()
        super().__init__(make(self.row, self.column, self.weight, self.n_nodes))

    def drop(self, rate: float, key: Tensor) -> Peer:
        """The peer's operator of the kept edges: a mask over the entries, as their programs do it."""
        kept = torch.from_numpy(edge_hash.keeps(len(self.edges) // 2, rate, int(key)))[self.edges]
        return Peer(self.make(self.row[kept], self.column[kept], self.weight[kept] / (1.0 - rate), self.n_nodes))


def torch_coo(row: Tensor, column: Tensor, weight: Tensor, n_nodes: int) -> Callable[[Tensor], Tensor]:
    """torch.sparse as LightGCN's program calls it; told that it is sorted, which spares it a sort a step."""
    size = (n_nodes, n_nodes)
    matrix = torch.sparse_coo_tensor(torch.stack([row, column]), weight, size, is_coalesced=True)
    return lambda x_ND: torch.sparse.mm(matrix, x_ND)


def torch_csr(row: Tensor, column: Tensor, weight: Tensor, n_nodes: int) -> Callable[[Tensor], Tensor]:
    matrix = _csr(row, column, weight, n_nodes)
    return lambda x_ND: torch.sparse.mm(matrix, x_ND)


def pyg(row: Tensor, column: Tensor, weight: Tensor, n_nodes: int) -> Callable[[Tensor], Tensor]:
    """PyG's LGConv over an edge list, as its LightGCN does it."""
    from torch_geometric.nn import LGConv

    layer, edges = LGConv(normalize=False), torch.stack([column, row])  # from source to target
    return lambda x_ND: layer(x_ND, edges, weight)


def pyg_sparse(row: Tensor, column: Tensor, weight: Tensor, n_nodes: int) -> Callable[[Tensor], Tensor]:
    """PyG's LGConv over a sparse matrix, which its documentation recommends for speed."""
    from torch_geometric.nn import LGConv

    layer, matrix = LGConv(normalize=False), _csr(row, column, weight, n_nodes)
    return lambda x_ND: layer(x_ND, matrix)


def _csr(row: Tensor, column: Tensor, weight: Tensor, n_nodes: int) -> Tensor:
    indptr = torch.zeros(n_nodes + 1, dtype=torch.long)
    torch.cumsum(torch.bincount(row, minlength=n_nodes), 0, out=indptr[1:])
    return torch.sparse_csr_tensor(indptr, column, weight, (n_nodes, n_nodes))


PEERS = {"torch_coo": torch_coo, "torch_csr": torch_csr, "pyg": pyg, "pyg_sparse": pyg_sparse}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--edge-dropout", type=float, default=None, help="the recipe's without it")
    parser.add_argument("--steps", type=int, default=12, help="timed steps of each side; 0 is a whole epoch")
    options = parsed(parser)
    warnings.filterwarnings("ignore", message=".*[Ss]parse.*")  # of the peers' matrices, that they are in beta
    data = load(options.dataset)
    overrides = [f"model.embedding_size={options.dim}", f"train.batch_size={options.batch}"]
    if options.edge_dropout is not None:
        overrides.append(f"train.edge_dropout={options.edge_dropout}")
    recipe = resolve("lightgcn", overrides=overrides)
    sides = _sides(recipe, data)
    steps = options.steps or sides["hmlet"].per_epoch
    times, losses = _take_turns(sides, steps)
    _require_agreement(losses)
    epochs = {name: statistics.median(each) * sides[name].per_epoch for name, each in times.items()}
    result: dict[str, Any] = {"dataset": data.name, "dim": options.dim, "layers": recipe.model.layers}
    result |= {"batch": options.batch, "edge_dropout": recipe.train.edge_dropout, "hardware": hardware(CPU)}
    result |= {"steps": steps, "steps_per_epoch": sides["hmlet"].per_epoch}
    result["inferred_from_some_steps"] = steps < sides["hmlet"].per_epoch
    result |= {f"{name}_epoch_seconds": seconds for name, seconds in epochs.items()}
    result |= {f"{name}_mean_loss": loss for name, loss in losses.items()}
    result |= {f"speedup_over_{name}": epochs[name] / epochs["hmlet"] for name in epochs if name != "hmlet"}
    publish("lightgcn_cpu", result, options.json, options.record)


def _sides(recipe: Recipe, data: Dataset) -> dict[str, GradientSteps]:
    """The same training once for each operator. PyG's are left out where it is not installed."""
    graph = training_graph(data)
    ours = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale())
    operators: dict[str, Any] = {"hmlet": ours}
    for name, make in PEERS.items():
        if not name.startswith("pyg") or find_spec("torch_geometric"):
            operators[name] = Entries(ours, make)
    return {
        name: GradientSteps(
            recipe,
            build(recipe.model, graph, torch.Generator().manual_seed(recipe.seed)),
            Scores.start(recipe.scoring, graph),
            operator,
            data,
            CPU,
            ALONE,
        )
        for name, operator in operators.items()
    }


def _take_turns(sides: dict[str, GradientSteps], count: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Each side's seconds a step after one to warm up, and its mean loss over all of them."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for steps in sides.values():
        steps.take(0, 0)
    for start in range(1, count + 1, TURN):
        for name, steps in sides.items():
            for step in range(start, min(start + TURN, count + 1)):
                began = time.perf_counter()
                steps.take(step, 0)
                times[name].append(time.perf_counter() - began)
    return times, {name: float(steps.loss_sum) / (count + 1) for name, steps in sides.items()}


def _require_agreement(losses: dict[str, float]) -> None:
    for name, loss in losses.items():
        if abs(loss - losses["hmlet"]) > AGREEMENT * abs(losses["hmlet"]):
            raise SystemExit(f"{name}'s mean loss {loss} is not hmlet's {losses['hmlet']}: not the same training")


if __name__ == "__main__":
    main()
