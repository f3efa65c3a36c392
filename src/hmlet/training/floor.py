"""The least time that a training step can take on a device: bytes and operations over measured rates.

A step is a row of parts, each of which has to wait for the one before it. A part moves bytes through memory, gathers
rows through the caches and multiplies; at the best all three overlap, so its floor is the slowest of them. What has to
be counted:

- A product gathers a row of D numbers for every kept entry of the graph. Neighbours follow no order, so no cache
  near the arithmetic holds the table: gathered bytes come from the large shared cache at the best, at the rate of
  gathers from a table that lies in it. Bytes that have to cross memory itself are far fewer: the table is read once
  and the result written once.
- Everything between two global dependencies is one pass: BatchNorm, dropout and ReLU cost nothing beside the matrix
  products of a gate, because they can be done while these read and write. What is left of them in a measurement
  is what fusing could still win.
- Both gradients of a matrix product cost as much as itself each; a gate that rests needs only the one to its input.

So the floor is of this algorithm (K products forward, K backward over all nodes), and of no better one.

Legend: N nodes, E undirected edges, D embedding size, B batch, K layers, H hidden sizes of a gate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmlet.config import GraphModelConfig, HmletConfig, Recipe
from hmlet.graph.kernels import Operator

FLOAT, INDEX = 4, 4  # bytes of a parameter, of a neighbour and of an edge's number
COPY_BYTES = {"cuda": 1 << 28, "cpu": 1 << 27}  # far beyond the caches where there is time for it
MATRIX = {"cuda": 8192, "cpu": 1024}  # rows of the square product that shows the rate of multiplication
CACHED_BYTES = {"cuda": 1 << 24, "cpu": 1 << 20}  # of a table that stays in the second-level cache
GATHERS = {"cuda": 1 << 22, "cpu": 1 << 17}  # rows taken from it


@dataclass(frozen=True)
class Rates:
    """What a device showed: bytes and operations a second."""

    copied: float  # read and written by a plain copy, both counted
    gathered: float  # rows summed from a table in the cache
    multiplied: float  # floating-point operations of a large matrix product, in the storage type

    def as_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Part:
    """What one part of a step cannot avoid."""

    name: str
    moved: float = 0.0  # bytes through memory
    gathered: float = 0.0  # bytes of gathered rows, through the cache
    operations: float = 0.0

    def seconds(self, rates: Rates) -> float:
        return max(self._times(rates).values())

    def bound(self, rates: Rates) -> str:
        """What the part waits for: "memory", "gather" or "arithmetic"."""
        times = self._times(rates)
        return max(times, key=lambda name: times[name])

    def _times(self, rates: Rates) -> dict[str, float]:
        return {
            "memory": self.moved / rates.copied,
            "gather": self.gathered / rates.gathered,
            "arithmetic": self.operations / rates.multiplied,
        }


def step_parts(recipe: Recipe, n_nodes: int, n_edges: int, storage: int = FLOAT, frozen: bool = False) -> list[Part]:
    """The parts of one gradient step. `storage` is the bytes of a propagated number, `frozen` says that gates rest.

    Dense transformations of NGCF, LR-GCCF, GC-MC and PinSage are left out: for these the floor is a low one.
    """
    model, train = recipe.model, recipe.train
    size, batch = model.embedding_size, train.batch_size
    layers = model.layers if isinstance(model, GraphModelConfig) else 0
    table, rows = n_nodes * size, 3 * batch * size
    entries = 2 * n_edges * (1.0 - train.edge_dropout)
    parts = [Part("sampling", moved=batch * (3 + 4) * 8)]  # three random numbers; a place, two offsets and an item
    if layers and train.edge_dropout:
        parts.append(Part("edge dropout", moved=2 * n_edges * (2 * INDEX + FLOAT) + entries * (INDEX + FLOAT)))
    for _ in range(2 * layers):
        parts.append(
            Part(
                "product",
                moved=2 * table * storage + entries * (INDEX + FLOAT),
                gathered=entries * (size * storage + INDEX + FLOAT),
                operations=0.0,  # two for each gathered number, which no device waits for
            )
        )
    if isinstance(model, HmletConfig) and model.gate_choice == "learned":
        gate = gate_parts(n_nodes, size, model.gate_hidden, storage, frozen)
        parts += gate * model.types.count("gated")
    # The batch's rows of every layer are read once, and their gradient is added to every layer's once.
    parts.append(Part("readout and loss", moved=2 * rows * (FLOAT + layers * storage)))
    copy = storage if layers and storage != FLOAT else 0  # the new e⁰ in the storage type
    weights = 0 if frozen or not isinstance(model, HmletConfig) else _gate_weights(model)
    # Adam reads the gradient, reads and writes the parameters and two moments.
    parts.append(Part("optimizer", moved=table * (6 * FLOAT + (storage if layers else FLOAT) + copy) + weights * 28))
    return parts


def gate_parts(n_nodes: int, size: int, hidden: Sequence[int], storage: int, frozen: bool = False) -> list[Part]:
    """One gate, forward and backward: 2 D → hidden … → 2 and the mixture of the two branches."""
    table = n_nodes * size * storage
    parts = []
    for at, (a, b) in enumerate(pairwise([2 * size, *hidden, 2])):
        activations, operations = n_nodes * storage, 2.0 * n_nodes * a * b
        parts.append(Part("matrix products", moved=activations * (a + b), operations=operations))
        # Backward reads this layer's input and, to undo the BatchNorm after it, its output beside that one's gradient;
        # it writes the input's gradient. The first layer's also adds what comes through the mixture.
        through = table if at == 0 else 0
        moved = activations * (2 * a + 2 * b) + through
        parts.append(Part("matrix products", moved=moved, operations=operations if frozen else 2 * operations))
    forward = Part("mixture", moved=3 * table)  # both branches read, one written
    backward = Part("mixture", moved=3 * table)  # both branches and the gradient read, for the gradient of the choice
    return [*parts, forward, backward]


def _gate_weights(model: HmletConfig) -> int:
    dense = sum(a * b for a, b in pairwise([2 * model.embedding_size, *model.gate_hidden, 2]))
    return model.types.count("gated") * dense


def by_part(parts: Sequence[Part], rates: Rates) -> dict[str, dict[str, Any]]:
    """Each name's parts together: seconds, bytes, operations and what most of its time waits for."""
    table: dict[str, dict[str, Any]] = {}
    waits: dict[str, dict[str, float]] = {}
    for part in parts:
        row = table.setdefault(part.name, {"floor_seconds": 0.0, "moved": 0.0, "gathered": 0.0, "operations": 0.0})
        for key in ("moved", "gathered", "operations"):
            row[key] += getattr(part, key)
        seconds, bound = part.seconds(rates), part.bound(rates)
        row["floor_seconds"] += seconds
        waits.setdefault(part.name, {}).setdefault(bound, 0.0)
        waits[part.name][bound] += seconds
    for name, times in waits.items():
        table[name]["bound"] = max(times, key=lambda bound: times[bound])
    return table


def floor_seconds(parts: Sequence[Part], rates: Rates) -> float:
    """The floor of a step: its parts one after another."""
    return sum(part.seconds(rates) for part in parts)


# -- what the device can do -------------------------------------------------------------------------------------------


def measure(device: torch.device, storage: torch.dtype, columns: int) -> Rates:
    """A device's rates, the best of a few tries each: a floor is what it can do, not what it does on the average."""
    return Rates(
        copied=_copy_rate(device), gathered=_gather_rate(device, columns), multiplied=_matrix_rate(device, storage)
    )


def _copy_rate(device: torch.device) -> float:
    source = torch.ones(COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best_seconds(lambda: target.copy_(source), device)


def _matrix_rate(device: torch.device, storage: torch.dtype) -> float:
    size = MATRIX[device.type]
    a, b = (torch.ones(size, size, dtype=storage, device=device) for _ in range(2))
    return 2 * size**3 / _best_seconds(lambda: a @ b, device)


def _gather_rate(device: torch.device, columns: int) -> float:
    """Bytes of rows that a sum of random rows of a cached table takes in, by the faster of two programs.

    Ours, on rows of one length without hubs, and PyTorch's sparse matrix (cuSPARSE or MKL): so a slow kernel of ours
    does not make a low floor.
    """
    operator = _regular(max(CACHED_BYTES[device.type] // (FLOAT * columns), 1), GATHERS[device.type], device)
    size = (operator.n_nodes, operator.n_nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says of every sparse CSR tensor that it is in beta
        matrix = torch.sparse_csr_tensor(
            operator.indptr, operator.neighbours, operator.weights, size, check_invariants=False
        )
    table_ND = torch.ones(operator.n_nodes, columns, device=device)
    taken = len(operator.neighbours) * (columns * FLOAT + INDEX + FLOAT)
    programs: list[Callable[[], Tensor]] = [lambda: operator.product(table_ND), lambda: matrix @ table_ND]
    return max(taken / _best_seconds(program, device) for program in programs)


def _regular(n_nodes: int, n_entries: int, device: torch.device) -> Operator:
    """An operator whose rows all have the same number of random neighbours."""
    degree = max(n_entries // n_nodes, 1)
    neighbours = np.random.default_rng(0).integers(0, n_nodes, n_nodes * degree, dtype=np.int32)
    indptr = np.arange(n_nodes + 1, dtype=np.int64) * degree
    scale = np.ones(n_nodes, dtype=np.float32)
    return Operator.build(indptr, neighbours, np.zeros_like(neighbours), scale, device)


def _best_seconds(work: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        _wait(device)
        began = perf_counter()
        work()
        _wait(device)
        times.append(perf_counter() - began)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
