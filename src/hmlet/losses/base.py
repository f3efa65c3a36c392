"""The contract of a loss: what a batch is, and how layers and a batch become a number.

Legend: B entries of a batch, D embedding size, N nodes, R rows of e⁰ that a batch touches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from hmlet.data import Csr
from hmlet.graph import Sizes
from hmlet.graph.layers import Layers
from hmlet.losses.sampling import Draw
from hmlet.models import BY_PRODUCT, Scoring
from hmlet.system.section import Section


class AnyBatch(Protocol):
    """A tuple; its tensors are what is drawn anew for each step."""

    def nodes(self, n_users: int) -> Tensor:
        """The batch's rows among all nodes, with repetitions: R."""
        ...

    def __iter__(self) -> Iterator[object]: ...


Batch = TypeVar("Batch", bound=AnyBatch)
Drawn = TypeVar("Drawn", covariant=True)


class LossConfig(Section):
    """The settings of a loss, a recipe's [loss] table; a loss without settings has none."""

    @property
    def scoring(self) -> Scoring:
        """What the scores are of a model that this loss trains."""
        return BY_PRODUCT

    def continued(self) -> Self:
        """These settings for training that continues after the end of their schedule; without one, as they are."""
        return self


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
    entries: ClassVar[Literal["interactions", "users"]] = "interactions"  # of a batch; an epoch draws as many as exist

    def __init__(self, config: LossConfig) -> None:
        super().__init__()

    @abstractmethod
    def sampler(self, train: Csr, n_items: int, device: torch.device, draw: Draw) -> Sampler[Batch]:
        """What draws its batches."""

    @abstractmethod
    def blank(self, size: int, sizes: Sizes, device: str) -> Batch:
        """A batch on tensors without memory, as it would be on "cpu" or "cuda": one step on it counts memory and work,
        and compiles CUDA kernels ahead."""

    def enter(self, progress: float) -> None:
        """Take up a new epoch; `progress` goes from 0 in the first epoch to 1 in the last."""

    @abstractmethod
    def forward(self, layers: Layers, batch: Batch) -> Terms:
        """The loss of a batch under the layers. Of several ranks each has its own columns of every layer."""


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
