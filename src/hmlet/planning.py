"""What a training will need, computed before it starts, and what there is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from hmlet.config import GraphModelConfig, HmletConfig, Recipe
from hmlet.errors import OutOfMemory

FLOAT = 4  # bytes


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose. Activations are what the backward pass needs at once."""

    graph: int
    parameters: int
    optimizer: int
    activations: int
    ranking: int

    @property
    def total(self) -> int:
        """Training's peak or ranking's, whichever is larger; both hold graph and state."""
        return self.graph + self.parameters + self.optimizer + max(self.activations, self.ranking)

    def as_json(self) -> dict[str, int]:
        return {**self.__dict__, "total": self.total}


def memory_plan(recipe: Recipe, n_users: int, n_items: int, n_edges: int) -> MemoryPlan:
    """The bytes that training a recipe on a graph takes on its device."""
    model, nodes = recipe.model, n_users + n_items
    table = nodes * model.embedding_size * FLOAT
    layers = model.layers if isinstance(model, GraphModelConfig) else 0
    graph = (nodes + 1) * 8 + 2 * n_edges * 3 * FLOAT
    dropped = 2 * n_edges * 3 * FLOAT if recipe.train.edge_dropout else 0
    gates = model.types.count("gated") if isinstance(model, HmletConfig) else 0
    hidden = sum(model.gate_hidden) if isinstance(model, HmletConfig) else 0
    # A layer keeps its output, and its gradient exists once; a gate also keeps φ(x), its mixture and, for each hidden
    # size, the dense output, its normalised form, the dropout's mask and the rectified result.
    activations = (layers + 2) * table + gates * (3 * table + 4 * nodes * hidden * FLOAT) + dropped
    width = model.embedding_size * (layers + 1 if model.family in ("lr-gccf", "ngcf") else 1)
    block = 64 << 20
    return MemoryPlan(
        graph=graph,
        parameters=2 * table,  # the parameters and their gradient
        optimizer=3 * table,  # Adam's two moments, and the best model so far
        activations=activations,
        ranking=(layers + 1) * table + 2 * nodes * width * FLOAT + 3 * block,
    )


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return 1 << 62  # not Linux: nothing to compare with
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def require_memory(plan: MemoryPlan, device: torch.device) -> None:
    """Refuse a training that cannot fit, before anything is written."""
    free = free_memory(device)
    if plan.total > free:
        raise OutOfMemory(
            f"training needs about {gigabytes(plan.total)} on {device}, and {gigabytes(free)} is free",
            "lower model.embedding_size or model.layers, or use a device with more memory",
        )


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
