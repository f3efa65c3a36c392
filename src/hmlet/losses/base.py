"""The contract of a loss: what a batch is, and how layers and a batch become a number.

Legend: B entries of a batch, D embedding size, N nodes, R rows of e⁰ that a batch touches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from hmlet.data import Csr
from hmlet.graph.layers import Layers, Similarity
from hmlet.graph.work import FLOAT, Part
from hmlet.losses.sampling import Draw
from hmlet.system.ranks import Ranks
from hmlet.system.section import Section

Batch = TypeVar("Batch", bound=tuple[object, ...])
Drawn = TypeVar("Drawn", covariant=True)


class LossConfig(Section):
    """The settings of a loss, a recipe's [loss] table; a loss without settings has none."""

    @property
    def ranked_by(self) -> Similarity:
        """What the scores of a model are that this loss trains."""
        return "dot"

    @property
    def adds_popularity(self) -> float:
        """π: by how much of the logarithm of its popularity an item scores higher."""
        return 0.0

    @property
    def learns_popularity(self) -> bool:
        """Whether that is where training starts, and each item's addition is a trained number."""
        return False

    def continued(self) -> Self:
        """These settings for a training that continues after the end of this schedule."""
        return self

    @property
    def scheduled(self) -> bool:
        """Whether it changes from epoch to epoch, on a way that ends with the last one."""
        return False


class Sampler(Protocol[Drawn]):
    """What draws batches."""

    def sample(self, size: int, generator: torch.Generator) -> Drawn:
        """A fresh batch; all of its random numbers come from the generator."""
        ...


class Terms(NamedTuple):
    """What a batch costs: the same numbers on every rank."""

    value: Tensor  # the loss itself
    norms: Tensor  # ‖rows of e⁰‖² / B, for the penalty


class Loss(nn.Module, ABC, Generic[Batch]):
    """One loss. It may have its own trained parameters, such as a temperature."""

    name: ClassVar[str]
    Config: ClassVar[type[LossConfig]] = LossConfig
    tempered: ClassVar[bool] = False  # whether it divides the scores of many items by a temperature
    counts_users: ClassVar[bool] = False  # whether an entry of a batch is a user, with all of their items
    precision: str = "float32"  # the recipe's train.precision

    def __init__(self, config: LossConfig) -> None:
        super().__init__()

    # -- what it draws --------------------------------------------------------------------------------------------

    @abstractmethod
    def require(self, train: Csr, n_items: int) -> None:
        """Refuse training interactions from which no batch can be drawn."""

    @abstractmethod
    def sampler(self, train: Csr, n_items: int, device: torch.device, draw: Draw) -> Sampler[Batch]:
        """What draws its batches, by user or by interaction."""

    @abstractmethod
    def planned(self, size: int, n_users: int, n_items: int, n_edges: int, device: str) -> Batch:
        """A batch on tensors without memory, with which a plan for "cpu" or "cuda" runs a step.

        It is a tuple, and its tensors are what is drawn anew for each batch.
        """

    def sampler_bytes(self, n_users: int, n_items: int, n_edges: int, device: str, draw: Draw) -> int:
        """What its sampler holds on a device, "cpu" or "cuda"."""
        return 0

    def steps(self, train: Csr, batch_size: int) -> int:
        """Steps an epoch: as many entries are drawn as there are training interactions."""
        return math.ceil(len(train.items) / batch_size)

    def enter(self, progress: float) -> None:
        """Take up a new epoch; `progress` goes from 0 in the first epoch to 1 in the last."""

    # -- what it computes -----------------------------------------------------------------------------------------

    @abstractmethod
    def nodes(self, batch: Batch, n_users: int) -> Tensor:
        """The batch's rows among all nodes, with repetitions: R."""

    @abstractmethod
    def forward(self, layers: Layers, batch: Batch, n_users: int, ranks: Ranks) -> Terms:
        """The loss of a batch under the layers. Of several ranks each has its own columns of every layer."""

    def work(self, size: int, batch: int, depth: int, storage: int, n_users: int, n_items: int) -> list[Part]:
        """What a step cannot avoid for drawing a batch of B entries and for reading its rows of every layer."""
        rows = 3 * batch * size
        return [
            Part("sampling", moved=batch * (3 + 4) * 8),  # three random numbers; a place, two offsets and an item
            # The batch's rows of every layer are read once, and their gradient is added to every layer's once.
            Part("readout and loss", moved=2 * rows * (FLOAT + depth * storage)),
        ]


def row_norms(embeddings_BD: Iterable[Tensor]) -> Tensor:
    """‖rows‖² / B over the batch's rows of e⁰; a row counts as often as it occurs."""
    rows = list(embeddings_BD)
    return sum((row_BD.square().sum() for row_BD in rows[1:]), rows[0].square().sum()) / len(rows[0])


def penalty(norms: Tensor, weights: Iterable[Tensor] = ()) -> Tensor:
    """½ ‖rows‖² / B, plus ½ ‖weights‖²."""
    total = norms
    for weight in weights:
        total = total + weight.square().sum()
    return total / 2
