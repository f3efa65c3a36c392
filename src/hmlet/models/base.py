"""What every model is: embeddings that are propagated into layers, and layers that are read out into one factor a node.

Legend: U users, I items, N = U + I nodes, D embedding size, R rows asked for, F factor size.
Models take tensors and return tensors. They know no file, no epoch and no global device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hmlet.config import ModelConfig
from hmlet.graph.kernels import can_fuse, joined_margins, mean_margins
from hmlet.losses.bpr import margins, row_norms
from hmlet.system.ranks import ALONE, Ranks

Product = Callable[[Tensor], Tensor]
"""Â x for an N × D tensor: an Operator of kernels, whole or with dropped edges."""


@dataclass(frozen=True)
class Pass:
    """What one forward pass may depend on beside the parameters.

    A finished model passes without noise and without dropout.
    """

    noise: torch.Generator | None = None  # Gumbel noise on the gates' logits is drawn from this
    dropout: torch.Generator | None = None
    temperature: float | Tensor = 1.0
    hard: bool = True  # one-hot gates with soft gradients, or soft gates
    ranks: Ranks = ALONE  # who has the other columns of every N × D matrix


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
    joined_by: Literal["mean", "concatenation", "last"] = "mean"  # how the layers become a factor
    factor_scale = 1.0  # of concatenated layers

    def __init__(self, config: ModelConfig, n_users: int, n_items: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_users = n_users
        self.n_items = n_items
        initial_ND = torch.empty(n_users + n_items, config.embedding_size)
        initial_ND.normal_(0.0, config.initial_deviation, generator=generator)
        self.embedding = nn.Parameter(initial_ND)

    @abstractmethod
    def propagate(self, product: Product, how: Pass) -> Layers:
        """Every layer's embeddings."""

    def readout(self, layers: Layers, rows_R: Tensor | None = None) -> Tensor:
        """The factors of some nodes (all of them without `rows_R`): R × F."""
        if self.joined_by == "last":
            return _rows(layers.embeddings_ND[-1:], rows_R)[0]
        if self.joined_by == "concatenation":
            joined_RF = torch.cat(_rows(layers.embeddings_ND, rows_R), dim=1)
            return joined_RF if self.factor_scale == 1.0 else joined_RF * self.factor_scale
        if rows_R is not None:
            mean_RD: Tensor = _MeanOfRows.apply(rows_R, *layers.embeddings_ND)  # type: ignore[no-untyped-call]
            return mean_RD
        mean_ND = layers.embeddings_ND[0].clone()
        for embedding_ND in layers.embeddings_ND[1:]:  # one table more, where stacking would take K + 1 of them
            mean_ND = mean_ND.add_(embedding_ND)
        return mean_ND.div_(len(layers.embeddings_ND))

    def margins(self, layers: Layers, rows_3B: Tensor) -> tuple[Tensor, Tensor]:
        """r_ui - r_uj of a batch's triplets (B), and ‖rows of e⁰‖² / B; the rows are users, positives and negatives."""
        if self.joined_by != "last" and can_fuse(layers.embeddings_ND):
            if self.joined_by == "mean":
                return mean_margins(layers.embeddings_ND, rows_3B)
            margin_B, norms = joined_margins(layers.embeddings_ND, rows_3B)
            return margin_B * self.factor_scale**2, norms
        factors_3BF, rows_3BD = self.readout(layers, rows_3B), self.embedding.index_select(0, rows_3B)
        return margins(*factors_3BF.chunk(3)), row_norms(rows_3BD.chunk(3))

    def factors(self, product: Product, how: Pass = NOISE_FREE) -> tuple[Tensor, Tensor]:
        """The finished factors of users (U × F) and items (I × F)."""
        all_NF = self.readout(self.propagate(product, how))
        return all_NF[: self.n_users], all_NF[self.n_users :]

    def keep_columns(self, ranks: Ranks) -> Model:
        """This model with the rank's own columns of the embeddings. All other parameters stay whole on every rank."""
        self.embedding = nn.Parameter(ranks.own_columns(self.embedding.detach()), self.embedding.requires_grad)
        return self

    def weights(self) -> list[nn.Parameter]:
        """Every trained parameter but the embeddings."""
        return [parameter for name, parameter in self.named_parameters() if name != "embedding"]


class _MeanOfRows(torch.autograd.Function):
    """The layers' mean at some rows. Every layer has the same gradient there, so it is scattered only once."""

    @staticmethod
    def forward(ctx: Any, rows_R: Tensor, *layers_ND: Tensor) -> Tensor:
        ctx.save_for_backward(rows_R)
        ctx.shapes = [(layer_ND.shape, layer_ND.dtype) for layer_ND in layers_ND]
        total_RD = layers_ND[0].index_select(0, rows_R)
        for layer_ND in layers_ND[1:]:
            total_RD = total_RD + layer_ND.index_select(0, rows_R)
        return total_RD / len(layers_ND)

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor | None, ...]:
        (rows_R,) = ctx.saved_tensors
        share_RD = grad_RD / len(ctx.shapes)
        scattered = {
            dtype: share_RD.new_zeros(shape, dtype=dtype).index_add_(0, rows_R, share_RD.to(dtype))
            for shape, dtype in dict.fromkeys(ctx.shapes)
        }
        return None, *(scattered[dtype] for _, dtype in ctx.shapes)


def _rows(embeddings_ND: Sequence[Tensor], rows_R: Tensor | None) -> list[Tensor]:
    return [embedding if rows_R is None else embedding.index_select(0, rows_R) for embedding in embeddings_ND]


def dropout(x_MD: Tensor, rate: float, how: Pass, n_nodes: int) -> Tensor:
    """x with each entry zeroed with probability `rate` and the rest scaled up; x itself where the pass has no dropout.

    The draws are those of all nodes, whichever of them are the rank's own.
    """
    if how.dropout is None or rate == 0.0:
        return x_MD
    # Comparing uniform numbers is three times as fast on CPU as drawing Bernoulli ones.
    kept_ND = torch.rand(n_nodes, x_MD.shape[1], generator=how.dropout, device=x_MD.device) >= rate
    return x_MD * kept_ND[how.ranks.own_rows(n_nodes)] * (1.0 / (1.0 - rate))


def glorot(rows: int, columns: int, generator: torch.Generator) -> nn.Parameter:
    """A weight matrix, uniform in ± sqrt(6 / (rows + columns))."""
    bound = (6.0 / (rows + columns)) ** 0.5
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound, generator=generator))
