"""What a propagation leaves: every layer's embeddings, and the one factor a node that they are joined into.

Legend: N nodes, D embedding size, R rows asked for, F factor size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

JoinedBy = Literal["mean", "concatenation", "last"]


@dataclass(frozen=True, eq=False)
class Layers:
    """Every node's embedding at each layer, e⁰ first, what the gates chose on the way, and how layers are joined."""

    embeddings_ND: Sequence[Tensor]
    initial_ND: Tensor  # e⁰ as the parameter that it is, where the first layer may be a view of it
    gates: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> probability of the non-linear branch, N
    joined_by: JoinedBy = "mean"
    scale: float = 1.0  # of concatenated layers

    def factors(self, rows_R: Tensor | None = None) -> Tensor:
        """The factors of some nodes (all of them without `rows_R`): R × F."""
        if self.joined_by == "last":
            return _rows(self.embeddings_ND[-1:], rows_R)[0]
        if self.joined_by == "concatenation":
            joined_RF = torch.cat(_rows(self.embeddings_ND, rows_R), dim=1)
            return joined_RF if self.scale == 1.0 else joined_RF * self.scale
        if rows_R is not None:
            mean_RD: Tensor = _MeanOfRows.apply(rows_R, *self.embeddings_ND)  # type: ignore[no-untyped-call]
            return mean_RD
        mean_ND = self.embeddings_ND[0].clone()
        for embedding_ND in self.embeddings_ND[1:]:  # one table more, where stacking would take K + 1 of them
            mean_ND = mean_ND.add_(embedding_ND)
        return mean_ND.div_(len(self.embeddings_ND))


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
