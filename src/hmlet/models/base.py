"""What every model is: embeddings that are propagated into layers, and layers that are read out into one factor a node.

Legend: U users, I items, N = U + I nodes, D embedding size, R rows asked for, F factor size.
Models take tensors and return tensors. They know no file, no epoch and no global device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Product = Callable[[Tensor], Tensor]
"""Â x for an N × D tensor: an Operator of kernels, whole or with dropped edges."""


@dataclass(frozen=True)
class Pass:
    """What one forward pass may depend on beside the parameters.

    A finished model passes without noise and without dropout.
    """

    noise: torch.Generator | None = None  # Gumbel noise on the gates' logits is drawn from this
    dropout: torch.Generator | None = None
    temperature: float = 1.0
    hard: bool = True  # one-hot gates with soft gradients, or soft gates


NOISE_FREE = Pass()
"""The pass of a finished model."""


@dataclass(frozen=True, eq=False)
class Layers:
    """The embeddings of every node at each layer, e⁰ first, and what the gates chose on the way."""

    embeddings_ND: Sequence[Tensor]
    gates: dict[int, Tensor]  # layer -> probability of the non-linear branch, N


class Model(nn.Module, ABC):
    """A recommender whose every score is the dot product of a user's and an item's factor."""

    self_loops = False  # whether Â is normalised with self-loops

    def __init__(self, n_users: int, n_items: int, embedding_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_users = n_users
        self.n_items = n_items
        initial_ND = torch.empty(n_users + n_items, embedding_size).normal_(0.0, 0.1, generator=generator)
        self.embedding = nn.Parameter(initial_ND)

    @abstractmethod
    def propagate(self, product: Product, how: Pass) -> Layers:
        """Every layer's embeddings."""

    def readout(self, layers: Layers, rows_R: Tensor | None = None) -> Tensor:
        """The factors of some nodes (all of them without `rows_R`): R × F. Here the mean of the layers."""
        chosen = _rows(layers.embeddings_ND, rows_R)
        total = chosen[0]
        for embedding in chosen[1:]:
            total = total + embedding
        return total / len(chosen)

    def factors(self, product: Product, how: Pass = NOISE_FREE) -> tuple[Tensor, Tensor]:
        """The finished factors of users (U × F) and items (I × F)."""
        all_NF = self.readout(self.propagate(product, how))
        return all_NF[: self.n_users], all_NF[self.n_users :]

    def weights(self) -> list[nn.Parameter]:
        """Every trained parameter but the embeddings."""
        return [parameter for name, parameter in self.named_parameters() if name != "embedding"]


def concatenated(layers: Layers, rows_R: Tensor | None = None) -> Tensor:
    """The readout of models that score by all layers side by side: R × sum of the layers' sizes."""
    return torch.cat(_rows(layers.embeddings_ND, rows_R), dim=1)


def _rows(embeddings_ND: Sequence[Tensor], rows_R: Tensor | None) -> list[Tensor]:
    return [embedding if rows_R is None else embedding[rows_R] for embedding in embeddings_ND]


def dropout(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """x with each entry zeroed with probability `rate` and the rest scaled up; x itself without a generator."""
    if generator is None or rate == 0.0:
        return x
    # Comparing uniform numbers is three times as fast on CPU as drawing Bernoulli ones.
    kept = torch.rand(x.shape, generator=generator, device=x.device) >= rate
    return x * kept * (1.0 / (1.0 - rate))


def glorot(rows: int, columns: int, generator: torch.Generator) -> nn.Parameter:
    """A weight matrix, uniform in ± sqrt(6 / (rows + columns))."""
    bound = (6.0 / (rows + columns)) ** 0.5
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound, generator=generator))
