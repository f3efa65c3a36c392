"""What a propagation leaves: every layer's embeddings, and the one factor a node that they are joined into.

Legend: N nodes, D embedding size, R rows asked for, F factor size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hmlet.graph.kernels import launching
from hmlet.graph.kernels.parts import part
from hmlet.system.ranks import ALONE, Ranks

JoinedBy = Literal["mean", "concatenation", "last"]
Similarity = Literal["dot", "cosine"]
"""What a score is of two nodes' joined layers. Factors have length 1 for "cosine": their dot product is the score."""
SHORTEST = 1e-6  # a shorter row is divided by this: a row of zeros stays one, and its gradient finite


class Joined(NamedTuple):
    """How layers become one factor."""

    how: JoinedBy = "mean"
    scale: float = 1.0  # of concatenated layers


@dataclass(frozen=True, eq=False)
class Layers:
    """Every node's embedding at each layer, e⁰ first, what the gates chose on the way, and how layers are joined."""

    embeddings_ND: Sequence[Tensor]
    initial_ND: Tensor  # e⁰ as the parameter that it is, where the first layer may be a view of it
    n_users: int  # the first nodes; the others are items
    gates: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> probability of the non-linear branch, N
    joined: Joined = Joined()  # noqa: RUF009  # a tuple, which nobody can change
    ranks: Ranks = ALONE  # who has the other columns
    # What `hmlet.models.Scores` adds:
    similarity: Similarity = "dot"
    popularity_I: Tensor | None = None  # what an item's popularity adds to its scores
    precision: str = "float32"  # of what a loss multiplies on devices that do it in bfloat16, as train.precision says

    @property
    def n_items(self) -> int:
        return len(self.initial_ND) - self.n_users

    def factors(self, rows_R: Tensor | None = None) -> Tensor:
        """The factors of some nodes (all of them without `rows_R`), whose dot products are scores: R × F.

        What popularity adds is left out.
        """
        if self.similarity == "dot":
            return self._joined(rows_R)
        if rows_R is None and self._fused():
            from hmlet.graph.kernels.triton_readout import UnitMeans

            with part("readout and loss"):
                unit_ND: Tensor = UnitMeans.apply(SHORTEST, *self.embeddings_ND)  # type: ignore[no-untyped-call]
            return unit_ND
        return unit_rows(self._joined(rows_R), self.ranks)

    def parts(self) -> list[Tensor]:
        """What each layer brings to the factors, which are their sum: N × F each."""
        joined = []
        for at in range(len(self.embeddings_ND)):
            alone = [each if layer == at else torch.zeros_like(each) for layer, each in enumerate(self.embeddings_ND)]
            joined.append(replace(self, embeddings_ND=alone)._joined(None))
        if self.similarity == "dot":
            return joined
        length_N1 = torch.linalg.vector_norm(torch.stack(joined).sum(dim=0), dim=1, keepdim=True)
        return [each_NF / length_N1.clamp_min(SHORTEST) for each_NF in joined]

    def _fused(self) -> bool:
        """Whether one kernel can make cosines' factors of all nodes: with Triton, of all columns of averaged layers."""
        first_ND = self.embeddings_ND[0]
        whole = self.joined.how == "mean" and self.ranks.size == 1
        return whole and launching.triton_runs(first_ND) and first_ND.dtype == torch.float32

    def _joined(self, rows_R: Tensor | None) -> Tensor:
        how, scale = self.joined
        if how == "last":
            return _rows(self.embeddings_ND[-1:], rows_R)[0]
        if how == "concatenation":
            joined_RF = torch.cat(_rows(self.embeddings_ND, rows_R), dim=1)
            return joined_RF if scale == 1.0 else joined_RF * scale
        mean_RD: Tensor = _Mean.apply(rows_R, *self.embeddings_ND)  # type: ignore[no-untyped-call]
        return mean_RD


class _Mean(torch.autograd.Function):
    """The layers' mean, of all nodes or at some rows. Every layer has the same gradient, so it is made only once."""

    @staticmethod
    def forward(ctx: Any, rows_R: Tensor | None, *layers_ND: Tensor) -> Tensor:
        ctx.save_for_backward(rows_R)
        ctx.shapes = [(layer_ND.shape, layer_ND.dtype) for layer_ND in layers_ND]
        if rows_R is None:
            total_RD = layers_ND[0].clone()
            for layer_ND in layers_ND[1:]:  # one table more, where stacking would take K + 1 of them
                total_RD = total_RD.add_(layer_ND)
            return total_RD.div_(len(layers_ND))
        total_RD = layers_ND[0].index_select(0, rows_R)
        for layer_ND in layers_ND[1:]:
            total_RD = total_RD + layer_ND.index_select(0, rows_R)
        return total_RD / len(layers_ND)

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor | None, ...]:
        (rows_R,) = ctx.saved_tensors
        share_RD = grad_RD / len(ctx.shapes)
        spread = {
            dtype: share_RD.to(dtype)
            if rows_R is None
            else share_RD.new_zeros(shape, dtype=dtype).index_add_(0, rows_R, share_RD.to(dtype))
            for shape, dtype in dict.fromkeys(ctx.shapes)
        }
        return None, *(spread[dtype] for _, dtype in ctx.shapes)


def unit_rows(x_RF: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Every row scaled to length 1, in float32 at least; of several ranks each has its own columns."""
    unit_RF: Tensor = _UnitRows.apply(x_RF, ranks)  # type: ignore[no-untyped-call]
    return unit_RF


class _UnitRows(torch.autograd.Function):
    """y = x / ‖x‖, and x̄ = (ȳ - y (y · ȳ)) / ‖x‖. Both sums over columns are over those of all ranks."""

    @staticmethod
    def forward(ctx: Any, x_RF: Tensor, ranks: Ranks) -> Tensor:
        kind = torch.promote_types(x_RF.dtype, torch.float32)
        length_R1 = torch.linalg.vector_norm(x_RF, dim=1, keepdim=True, dtype=kind)
        if ranks.size > 1:
            length_R1 = ranks.total(length_R1.square())[0].sqrt()
        length_R1 = length_R1.clamp_min(SHORTEST)
        unit_RF: Tensor = x_RF / length_R1
        ctx.save_for_backward(unit_RF, length_R1)
        ctx.ranks, ctx.dtype = ranks, x_RF.dtype
        return unit_RF

    @staticmethod
    def backward(ctx: Any, grad_RF: Tensor) -> tuple[Tensor, None]:
        unit_RF, length_R1 = ctx.saved_tensors
        (along_R1,) = ctx.ranks.total((unit_RF * grad_RF).sum(dim=1, keepdim=True))
        return torch.addcmul(grad_RF, unit_RF, along_R1, value=-1).div_(length_R1).to(ctx.dtype), None


def _rows(embeddings_ND: Sequence[Tensor], rows_R: Tensor | None) -> list[Tensor]:
    return [embedding if rows_R is None else embedding.index_select(0, rows_R) for embedding in embeddings_ND]
