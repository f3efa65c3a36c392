"""The least time that a training step can take on a device: bytes and operations over measured rates.

A step is a sequence of parts, each waiting for the one before. A part moves bytes through memory, gathers
rows through the caches and multiplies; at the best all three overlap, so its floor is the slowest of them. What has to
be counted:

- A product gathers a row of D numbers for every kept entry of the graph. Neighbours follow no order, so no cache
  near the arithmetic holds the table: gathered bytes come from the large shared cache at the best, at the rate of
  gathers from a table that lies in it. Bytes that have to cross memory itself are far fewer: the table is read once
  and the result written once.
- Everything between two global dependencies is one pass. BatchNorm's statistics are such a dependency, and the passes
  that they force are counted with the matrix products of a gate (models/gating.py); beside these, BatchNorm, dropout
  and ReLU cost nothing, because they can be done while the products read and write. What is left of them in a
  measurement is what fusing could still win.

So the floor is of this algorithm (K products forward, K backward over all nodes), and of no better one.

Dense layers other than those of gates are not counted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.config import Recipe
from hmlet.graph.kernels import build_operator, multiplies_bfloat16
from hmlet.graph.spectral import EXTRA, ROUNDS
from hmlet.graph.work import FLOAT, INDEX, INVERSE, Part, Rates
from hmlet.losses import LOSSES
from hmlet.losses.softmax import Tempered
from hmlet.models import ModelConfig

COPY_BYTES = {"cuda": 1 << 28, "cpu": 1 << 27}  # far beyond the caches where there is time for it
MATRIX = {"cuda": 8192, "cpu": 1024}  # rows of the square product that shows the rate of multiplication
INVERTED = {"cuda": 8192, "cpu": 2048}  # rows of the matrix that shows the rate of an inverse
CACHED_BYTES = {"cuda": 1 << 24, "cpu": 1 << 20}  # of a table that stays in the second-level cache
GATHERS = {"cuda": 1 << 22, "cpu": 1 << 17}  # rows taken from it


# What a common device does, for estimates that compare steps and need no measurement.
NOMINAL = {"cpu": Rates(1e10, 2e10, 1e11), "cuda": Rates(2e12, 4e12, 1e14)}
NARROW_GAIN = 2.5  # how many times as fast a CPU with instructions for bfloat16 multiplies it


def nominal_seconds(
    recipe: Recipe, n_users: int, n_items: int, n_edges: int, device: str, resting: bool = False
) -> float:
    """About what one gradient step takes on a common device, "cpu" or "cuda"."""
    storage = 2 if device == "cuda" and recipe.train.precision == "bfloat16" else FLOAT
    parts, rates = step_parts(recipe, n_users, n_items, n_edges, storage, resting), NOMINAL[device]
    if device == "cpu" and multiplied_type(recipe, torch.device("cpu")) == torch.bfloat16:
        rates = replace(rates, multiplied=NARROW_GAIN * rates.multiplied)
    return sum(part.seconds(rates) for part in parts)


def multiplied_type(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The type of the largest matrix products of a step; on a CPU, smaller ones may be in float32."""
    narrow = device.type == "cuda" or (issubclass(LOSSES[recipe.train.loss], Tempered) and multiplies_bfloat16(device))
    return torch.bfloat16 if narrow and recipe.train.precision == "bfloat16" else torch.float32


def nominal_training_seconds(recipe: Recipe, n_users: int, n_items: int, n_edges: int, device: str) -> float:
    """About what all steps of a training take on a common device: for what compares trainings."""
    train = recipe.train
    entries = n_users if LOSSES[train.loss].entries == "users" else n_edges
    step = nominal_seconds(recipe, n_users, n_items, n_edges, device)
    return step * train.epochs * math.ceil(entries / train.batch_size)


def solving_seconds(
    recipe: Recipe, n_users: int, n_items: int, n_edges: int, device: str, inverse_rate: float
) -> tuple[float, float]:
    """About what a solution takes: its inverse at a measured rate, and the rest on a common device."""
    parts = solving_parts(recipe.model, n_users, n_items, n_edges)
    inverse = sum(part.operations for part in parts if part.name == INVERSE) / inverse_rate
    return inverse, sum(part.seconds(NOMINAL[device]) for part in parts if part.name != INVERSE)


def step_parts(
    recipe: Recipe, n_users: int, n_items: int, n_edges: int, storage: int = FLOAT, resting: bool = False
) -> list[Part]:
    """The parts of one gradient step. `storage` is the bytes of a propagated number, `resting` says that gates rest.

    Dense transformations of NGCF, LR-GCCF, GC-MC and PinSage are left out: for these the floor is a low one.
    """
    model, train = recipe.model, recipe.train
    size, layers, n_nodes = model.columns, model.depth, n_users + n_items
    table = n_nodes * size
    entries = 2 * n_edges * (1.0 - train.edge_dropout)
    parts = _of_a_batch(recipe, size, layers, storage, n_users, n_items)
    if layers and train.edge_dropout:
        parts.append(Part("edge dropout", moved=2 * n_edges * (2 * INDEX + FLOAT) + entries * (INDEX + FLOAT)))
    for _ in range(2 * layers):
        parts.append(
            Part(
                "product",
                moved=2 * table * storage + entries * (INDEX + FLOAT),
                gathered=entries * (size * storage + INDEX + FLOAT),  # no device waits for the sums of these numbers
            )
        )
    hidden = getattr(model, "gate_hidden", ())
    parts += gate_work(n_nodes, size, hidden, storage, resting) * trained_gates(model)
    copy = storage if layers and storage != FLOAT else 0  # the new e⁰ in the storage type
    # Adam reads the gradient, reads and writes the parameters and two moments.
    moved = table * (6 * FLOAT + (storage if layers else FLOAT) + copy)
    moved += 0 if resting else trained_gates(model) * gate_weights(size, hidden) * 28
    return [*parts, Part("optimizer", moved=moved)]


def _of_a_batch(recipe: Recipe, size: int, depth: int, storage: int, n_users: int, n_items: int) -> list[Part]:
    """What a step cannot avoid for drawing a batch and for reading its rows of every layer, and to compare users with
    many items."""
    loss, batch = LOSSES[recipe.train.loss], recipe.train.batch_size
    a_row = 2 * size * (FLOAT + depth * storage)  # of every layer is read once, and its gradient added to it once
    if not issubclass(loss, Tempered):
        # Three random numbers; a place, two offsets and an item.
        return [Part("sampling", moved=batch * (3 + 4) * 8), Part("readout and loss", moved=3 * batch * a_row)]
    positives = int(getattr(recipe.loss, "positives", 1))
    users = min(batch, n_users) if loss.entries == "users" else max(1, batch // positives)
    items = int(getattr(recipe.loss, "negatives", 0)) or n_items
    compared = Part("readout and loss", moved=(users + items) * a_row, operations=3 * 2.0 * users * items * size)
    if loss.entries == "users":
        return [compared]
    return [Part("sampling", moved=users * (1 + 2 * positives + 3) * 8), compared]


def trained_gates(model: ModelConfig) -> int:
    """How many gates have parameters."""
    types = getattr(model, "types", ())
    return types.count("gated") if getattr(model, "gate_choice", "") == "learned" else 0


def gate_work(n_nodes: int, size: int, hidden: Sequence[int], storage: int, resting: bool = False) -> list[Part]:
    """One gate, forward and backward: 2 D → hidden … → 2 and the mixture of the two branches.

    Both gradients of a matrix product cost as much as itself each; a gate that rests needs only the one to its input.
    """
    table = n_nodes * size * storage
    parts = []
    for at, (a, b) in enumerate(pairwise([2 * size, *hidden, 2])):
        activations, operations = n_nodes * storage, 2.0 * n_nodes * a * b
        parts.append(Part("matrix products", moved=activations * (a + b), operations=operations))
        # Backward reads this layer's input and, to undo the BatchNorm after it, its output beside that one's gradient;
        # it writes the input's gradient. The first layer's also adds what comes through the mixture.
        through = table if at == 0 else 0
        moved = activations * (2 * a + 2 * b) + through
        parts.append(Part("matrix products", moved=moved, operations=operations if resting else 2 * operations))
    forward = Part("mixture", moved=3 * table)  # both branches read, one written
    backward = Part("mixture", moved=3 * table)  # both branches and the gradient read, for the gradient of the choice
    return [*parts, forward, backward]


def gate_weights(size: int, hidden: Sequence[int]) -> int:
    """The numbers in one gate's dense layers."""
    return sum(a * b for a, b in pairwise([2 * size, *hidden, 2]))


def solving_parts(model: ModelConfig, n_users: int, n_items: int, n_edges: int) -> list[Part]:
    """What one solution does, in proportion: how its time grows with the data.

    Of item-item weights, every pair of a user's items is added up once, and every weight is made, compared and stored.
    """
    keys = type(model).model_fields
    if "embedding_size" in keys:
        return [Part("systems", operations=_systems(model.columns, n_users, n_items, n_edges))]
    if "neighbours" not in keys:
        return [Part("interactions", moved=INDEX * n_edges)]
    pairs = n_edges**2 / max(n_users, 1)  # if all users had as many items
    parts = [Part("pairs", gathered=2 * (INDEX + FLOAT) * pairs), Part("weights", moved=4 * FLOAT * n_items**2)]
    if (vectors := getattr(model, "vectors", 0)) > 0:  # the products that find them, and those of V with itself
        products = 2 * (ROUNDS + 1) * 2 * n_edges * (vectors + EXTRA)
        parts += [
            Part("vectors", gathered=FLOAT * products),
            Part("low-pass filter", operations=2.0 * n_items**2 * vectors),
        ]
    if (order := getattr(model, "order", 0)) > 0:  # as many times two products with Â for every item's column
        parts.append(Part("polynomial", gathered=FLOAT * 2 * order * 2 * n_edges * n_items))
    if "regularization" in keys:
        # The smaller Gram matrix and its inverse: n³ / 3 for the Cholesky factor, 2 n³ / 3 for the inverse from it.
        # With fewer users than items, each block of P also gathers rows of the inverse, twice, and its own rows once.
        by_users = n_edges * (2 * n_users + n_items) if n_users < n_items else 0
        inverse = Part(INVERSE, operations=float(min(n_users, n_items)) ** 3)
        parts += [inverse, Part("rows", gathered=FLOAT * by_users)]
    return parts


def _systems(size: int, n_users: int, n_items: int, n_edges: int) -> float:
    """The operations of a system for every node, with as many unknowns as the mean node has neighbours, at most D."""
    operations = 0.0
    for n_nodes in (n_users, n_items):
        unknowns = min(size, n_edges / max(1, n_nodes))
        operations += 2 * n_edges * size * unknowns + n_nodes * (2 * size**2 + unknowns**3 / 3)
    return operations


class PartFloor(TypedDict):
    """The least that all parts of one name need together; a name without any has only 0 seconds."""

    floor_seconds: float
    moved: NotRequired[float]  # bytes
    gathered: NotRequired[float]  # bytes
    operations: NotRequired[float]
    bound: NotRequired[str]  # what most of the time waits for


def by_part(parts: Sequence[Part], rates: Rates) -> dict[str, PartFloor]:
    """Each name's parts together."""
    named: dict[str, list[Part]] = {}
    for part in parts:
        named.setdefault(part.name, []).append(part)
    return {name: _together(own, rates) for name, own in named.items()}


def _together(parts: Sequence[Part], rates: Rates) -> PartFloor:
    waits: dict[str, float] = {}
    for part in parts:
        bound = part.bound(rates)
        waits[bound] = waits.get(bound, 0.0) + part.seconds(rates)
    return {
        "floor_seconds": sum(waits.values()),
        "moved": sum(part.moved for part in parts),
        "gathered": sum(part.gathered for part in parts),
        "operations": sum(part.operations for part in parts),
        "bound": max(waits, key=lambda bound: waits[bound]),
    }


def floor_seconds(parts: Sequence[Part], rates: Rates) -> float:
    """The floor of a step: its parts one after another."""
    return sum(part.seconds(rates) for part in parts)


# -- what the device can do -------------------------------------------------------------------------------------------


def measure(device: torch.device, multiplied: torch.dtype, columns: int) -> Rates:
    """A device's rates, the best of a few tries each: a floor is the best case, not the average.

    They are measured on random numbers: a device at its power limit may be faster on constants, which no step has.
    """
    return Rates(
        copied=_copy_rate(device), gathered=_gather_rate(device, columns), multiplied=_matrix_rate(device, multiplied)
    )


def _random(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(0), device=device)


def _copy_rate(device: torch.device) -> float:
    source = _random(device, COPY_BYTES[device.type] // 4)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best_seconds(lambda: target.copy_(source), device)


def _matrix_rate(device: torch.device, multiplied: torch.dtype) -> float:
    size = MATRIX[device.type]
    a, b = (_random(device, size, size).to(multiplied) for _ in range(2))
    return 2 * size**3 / _best_seconds(lambda: a @ b, device)


def inverse_rate(device: torch.device) -> float:
    """Operations a second of the inverse of a positive definite matrix: n³ of them, by its Cholesky factor."""
    size = INVERTED[device.type]
    matrix = torch.eye(size, device=device)
    return size**3 / _best_seconds(lambda: torch.cholesky_inverse(torch.linalg.cholesky(matrix)), device, repeats=3)


def _gather_rate(device: torch.device, columns: int) -> float:
    """Bytes of rows that a sum of random rows of a cached table takes in, by the faster of two programs.

    Ours, on rows of one length without hubs, and PyTorch's sparse matrix (cuSPARSE or MKL): so a slow kernel of ours
    does not make a low floor.
    """
    indptr, neighbours = _regular(max(CACHED_BYTES[device.type] // (FLOAT * columns), 1), GATHERS[device.type])
    n_nodes, n_entries = len(indptr) - 1, len(neighbours)
    scale = np.ones(n_nodes, dtype=np.float32)
    operator = build_operator(indptr, neighbours, np.zeros_like(neighbours), scale, device)
    offsets, index = (torch.from_numpy(array.astype(np.int32)).to(device) for array in (indptr, neighbours))
    weights = torch.ones(n_entries, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says of every sparse CSR tensor that it is in beta
        matrix = torch.sparse_csr_tensor(offsets, index, weights, (n_nodes, n_nodes), check_invariants=False)
    table_ND = _random(device, n_nodes, columns)
    taken = n_entries * (columns * FLOAT + INDEX + FLOAT)
    programs: list[Callable[[], Tensor]] = [lambda: operator.product(table_ND), lambda: matrix @ table_ND]
    return max(taken / _best_seconds(program, device) for program in programs)


def _regular(n_nodes: int, n_entries: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Offsets and neighbours of a graph whose rows all have the same number of random neighbours."""
    degree = max(n_entries // n_nodes, 1)
    neighbours = np.random.default_rng(0).integers(0, n_nodes, n_nodes * degree, dtype=np.int32)
    return np.arange(n_nodes + 1, dtype=np.int64) * degree, neighbours


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
