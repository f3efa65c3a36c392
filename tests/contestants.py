"""Models whose place on a leaderboard is known: one that knows nothing, and one that cannot be trained here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch

from hmlet.data import Csr
from hmlet.errors import MissingExtra
from hmlet.graph import Graph
from hmlet.models import MODELS, Model, Solved, register
from hmlet.models.mf import BPRMF, BPRConfig


class ChanceConfig(BPRConfig):
    """Chance: random factors that nothing improves."""

    family: ClassVar[str] = "chance"
    solved: ClassVar[bool] = True
    name: Literal["chance"] = "chance"  # type: ignore[assignment]


class Chance(BPRMF, Solved):
    Config = ChanceConfig

    def __init__(self, config: ChanceConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.embedding.requires_grad_(False)

    def solve(self, train: Csr) -> float:
        return 0.0


class AbsentConfig(ChanceConfig):
    """Absent: a model whose library is missing."""

    family: ClassVar[str] = "absent"
    name: Literal["absent"] = "absent"  # type: ignore[assignment]


class Absent(Chance):
    Config = AbsentConfig

    def solve(self, train: Csr) -> float:
        raise MissingExtra("Absent", "a library", "absent")


@contextmanager
def registered() -> Iterator[None]:
    """Both models beside the package's own."""
    models: tuple[type[Model], ...] = (Chance, Absent)
    for model in models:
        register(model)
    try:
        yield
    finally:
        for name in ("chance", "absent"):
            del MODELS[name]
