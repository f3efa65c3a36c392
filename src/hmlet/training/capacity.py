"""Whether a training fits into memory, what to change if it does not, and how long it takes: `hmlet plan`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from hmlet.config import Recipe
from hmlet.errors import DataError
from hmlet.graph import Sizes, require_edges
from hmlet.system.ranks import Ranks
from hmlet.system.units import parse_bytes, readable
from hmlet.training.forecast import seconds_of
from hmlet.training.loop import choose_device, require_ranks
from hmlet.training.planning import Change, MemoryPlan, changes, fits, free_memory, memory_plan


@dataclass(frozen=True, repr=False)
class Plan:
    """The memory that a training takes, the memory that there is, what to change, and the time."""

    recipe: Recipe
    sizes: Sizes
    device: str  # "cpu" or "cuda"
    devices: int
    memory: MemoryPlan  # on each device
    free: int  # bytes of one device
    refused: str | None  # why no device can train a graph of this size
    changes: tuple[Change, ...]  # each one alone makes it fit; empty if it fits, or if nothing helps
    seconds: float | None = None  # of the whole training; None if it cannot be measured here

    @property
    def fits(self) -> bool:
        return self.refused is None and fits(self.memory.total, self.device, self.devices, self.free)

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        where = self.device if self.devices == 1 else f"{self.devices} × {self.device}"
        need = f"{readable(self.memory.total)} of {readable(self.free)}"
        return f"<Plan {self.recipe.model.name} on {where}: {verdict}, {need}>"

    def as_json(self) -> dict[str, object]:
        """What `hmlet plan --json` prints."""
        return {
            "model": self.recipe.model.name,
            "device": self.device,
            "devices": self.devices,
            "sizes": asdict(self.sizes),
            "bytes": self.memory.as_json(),
            "fits": self.fits,
            "refused": self.refused,
            "free": self.free,
            "changes": [change.as_json() for change in self.changes],
            "seconds": self.seconds,
        }


def plan_training(
    recipe: Recipe, sizes: Sizes, *, device: str = "auto", devices: int = 1, memory: int | str | None = None
) -> Plan:
    """Plan a training on `devices` ranks, each with `memory` ("80GB", or bytes), by default what is free here.

    With `memory`, "cuda" needs no CUDA device on this machine. The time is measured on this machine's device, so it is
    known only without `memory`, for a single device that the training fits on.
    """
    ranks = Ranks(0, devices)
    require_ranks(recipe, ranks)
    kind, free = _place(device, memory)
    need, refused = memory_plan(recipe, sizes, kind, ranks), _refusal(sizes)
    enough = fits(need.total, kind, devices, free)
    instead = () if enough or refused else tuple(changes(recipe, sizes, kind, devices, free))
    here = enough and not refused and memory is None and devices == 1
    seconds = _seconds(recipe, sizes, choose_device(device)) if here else None
    return Plan(recipe, sizes, kind, devices, need, free, refused, instead, seconds)


def _seconds(recipe: Recipe, sizes: Sizes, device: torch.device) -> float | None:
    try:
        return seconds_of(recipe, sizes.users, sizes.items, sizes.edges, device)
    except DataError:  # too small to train on
        return None


def _refusal(sizes: Sizes) -> str | None:
    """Why no device trains a graph of this size, if so."""
    try:
        require_edges(sizes.edges)
    except DataError as error:
        return str(error)
    return None


def device_kind(device: str, memory: int | str | None = None) -> str:
    """ "cpu" or "cuda". With `memory`, "cuda" needs no CUDA device on this machine."""
    return "cuda" if device == "cuda" and memory is not None else choose_device(device).type


def _place(device: str, memory: int | str | None) -> tuple[str, int]:
    """The kind of device, and the bytes that one of them has."""
    if memory is None:
        place = choose_device(device)
        return place.type, free_memory(place)
    return device_kind(device, memory), parse_bytes(memory) if isinstance(memory, str) else memory
