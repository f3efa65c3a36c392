"""The default rule: settings that fit a data set, from its size and the device alone.

lab/benchmarks/search_defaults.py tried grids of settings on data sets of eight shapes, and lab/results/defaults has
what it found; docs/defaults.md says how the rule follows from that. What the rule rests on:

- A spectral start is where a random one is after many epochs, so a small step size is enough everywhere. It grows with
  the number of nodes, and with fewer columns.
- Interactions, not epochs, say how many steps are needed. Small sets overfit soon, so validation is frequent and
  decides which epoch is kept.
- A step on a GPU costs nearly the same whatever the batch is. On a CPU a wide table is what costs, and the gate of a
  narrow model needs no wide layers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch

from hmlet.config.toml import Table
from hmlet.data import Dataset
from hmlet.data.catalog import counts
from hmlet.graph.kernels import multiplies_bfloat16
from hmlet.losses import LOSSES
from hmlet.losses.softmax import Tempered
from hmlet.models import ModelConfig

LARGEST_BATCH = 2**17
WIDE, NARROW, NARROWEST = 512, 128, 64  # columns: on CUDA, on CPU, and there for very many interactions
MANY_INTERACTIONS = 2_000_000
LARGEST_TABLE = {"cuda": 1_500_000_000, "cpu": 200_000_000}  # numbers of e⁰; a training holds some sixteen such tables
STEP_SIZE, STEP_SIZE_NODES = 0.008, 60_000  # at WIDE columns; up to twice as much for a graph of more nodes
INTERACTIONS_PER_STEP = {"cuda": 500, "cpu": 900}  # how many training interactions ask for one more step
FEWEST_STEPS, MOST_STEPS = 300, {"cuda": 3000, "cpu": 1200}
VALIDATIONS = 25
PATIENCE = 8
RESTING_SHARE = 8  # gates rest for this fraction of the epochs
NARROW_GATE = [64, 32]
# Losses that compare a user with many items at once. The more items there are, the lower the best temperature is.
TEMPERATURE, TEMPERATURE_FALLS, LOWEST, HIGHEST = 2.2, -0.32, 0.07, 0.28
POPULAR = 0.12  # their temperature and the weight of popularity, for data on which popularity counts
PAIRS, PAIR_STEPS = 8192, 2000  # of a batch, and how often one is drawn
NEGATIVES = {"cuda": 0, "cpu": 1000}  # items that a batch of pairs is compared with; 0: all
EVERYONE_STEPS, SOME_STEPS = {"cuda": 150, "cpu": 80}, 300  # with every user in each step, and with fewer
# Numbers that all steps of users may multiply for their scores on a CPU: a few minutes.
SCORED = {"float32": 3 * 10**12, "bfloat16": 16 * 10**12}


class Shape(NamedTuple):
    """What the rule asks of a data set."""

    users: int
    items: int
    interactions: int  # of the training part

    @classmethod
    def of(cls, data: Dataset | Path | str) -> Shape | None:
        """The shape of a data set or of a command's DATA; None of what is not there."""
        found = counts(data)
        return None if found is None else cls(*found)


def fitted(config: type[ModelConfig], shape: Shape, device: str, loss: str = "bpr") -> Table:
    """The settings of a model and a loss for a data set of this shape on "cpu" or "cuda", as a recipe's tables."""
    if config.solved:
        return {}
    size = embedding_size(shape, device)
    entries, batch, steps = _schedule(loss, shape, device, size)
    epochs = math.ceil(steps / math.ceil(max(entries, 1) / batch))
    nodes = min(max((shape.users + shape.items) / STEP_SIZE_NODES, 1.0), 2.0)
    rate = STEP_SIZE * nodes * math.sqrt(WIDE / max(size, NARROWEST)) * config.defaults.step_share
    model: Table = {"embedding_size": size, "start": "spectral"}
    if "gate_warmup" in config.model_fields:
        model["gate_warmup"] = epochs // RESTING_SHARE
        if size <= NARROW:
            model["gate_hidden"] = NARROW_GATE
    train: Table = {
        "epochs": epochs,
        "batch_size": batch,
        "learning_rate": float(f"{rate:.2g}"),
        "schedule": "cosine",
        "beta2": 0.95,
        "l2": 1e-4,
        "edge_dropout": 0.4,
        "validate_every": max(1, epochs // VALIDATIONS),
        "patience": PATIENCE,
        "precision": _precision(loss, device),
    }
    if not issubclass(LOSSES[loss], Tempered):
        return {"model": model, "train": train}
    temperature = min(max(TEMPERATURE * max(shape.items, 1) ** TEMPERATURE_FALLS, LOWEST), HIGHEST)
    negatives = 0 if LOSSES[loss].entries == "users" else NEGATIVES[device]
    train |= {"draw": "interaction", "edge_dropout": 0.0, "l2": 0.0}
    return {"model": model, "train": train, "loss": {"temperature": round(temperature, 2), "negatives": negatives}}


def variants(loss: str) -> list[list[str]]:
    """The settings of a loss that validation chooses from: none but the rule's, and for some losses popularity."""
    if not issubclass(LOSSES[loss], Tempered):
        return [[]]
    popular = f"loss.temperature={POPULAR}", f"loss.popularity_weight={POPULAR}", "loss.popularity_learned=true"
    return [[], list(popular)]


def _schedule(loss: str, shape: Shape, device: str, size: int) -> tuple[int, int, int]:
    """How many entries an epoch has, how many a batch, and how many steps are taken."""
    if LOSSES[loss].entries == "users":
        batch = max(1, min(shape.users, LARGEST_BATCH))
        scored = SCORED[_precision(loss, device)] if device == "cpu" else math.inf
        if EVERYONE_STEPS[device] * batch * shape.items * size > scored:
            batch = min(batch, max(256, int(scored / (SOME_STEPS * shape.items * size))))
        return shape.users, batch, EVERYONE_STEPS[device] if batch >= shape.users else SOME_STEPS
    if issubclass(LOSSES[loss], Tempered):
        return shape.interactions, PAIRS, PAIR_STEPS
    batch = max(1024, min(2 ** int(math.log2(max(shape.interactions, 1))), LARGEST_BATCH))
    steps = min(max(shape.interactions // INTERACTIONS_PER_STEP[device], FEWEST_STEPS), MOST_STEPS[device])
    return shape.interactions, batch, steps


def _precision(loss: str, device: str) -> str:
    """The type of what is multiplied most: on a CPU the scores of many items, if it has instructions for bfloat16."""
    narrow = issubclass(LOSSES[loss], Tempered) and multiplies_bfloat16(torch.device("cpu"))
    return "bfloat16" if device == "cuda" or narrow else "float32"


def embedding_size(shape: Shape, device: str) -> int:
    """D: as wide as the device bears, and no wider than the smaller side has rows to tell apart."""
    if device == "cuda":
        wanted = WIDE
    else:
        wanted = NARROW if shape.interactions <= MANY_INTERACTIONS else NARROWEST
    while wanted > NARROWEST and (shape.users + shape.items) * wanted > LARGEST_TABLE[device]:
        wanted //= 2
    enough: int = 2 ** math.ceil(math.log2(max(min(shape.users, shape.items), 8)))
    return min(wanted, enough)
