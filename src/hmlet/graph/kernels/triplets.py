"""What the loss reads of a pass whose layers are averaged or joined: the batch's margins and the norms of its rows.

Legend: N nodes, D columns, B triplets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hmlet.graph.kernels import backend


def mean_margins(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> tuple[Tensor, Tensor]:
    """r_ui - r_uj of each triplet (B), and ‖rows of e⁰‖² / B; `rows_3B` are users, positives and negatives."""
    margin_B, norms = _MeanMargins.apply(rows_3B, *layers_ND)  # type: ignore[no-untyped-call]
    return margin_B, norms


def joined_margins(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> tuple[Tensor, Tensor]:
    """The same where factors are all layers side by side: the layers' own margins, added up."""
    margin_B, norms = mean_margins(layers_ND[:1], rows_3B)
    for layer_ND in layers_ND[1:]:
        margin_B = margin_B + mean_margins([layer_ND], rows_3B)[0]
    return margin_B, norms


def can_fuse(layers_ND: Sequence[Tensor]) -> bool:
    """Whether these work here: with Triton, and where sums may be made in any order."""
    return backend.triton_runs(layers_ND[0]) and not torch.are_deterministic_algorithms_enabled()


class _MeanMargins(torch.autograd.Function):
    """Nothing is kept of a small batch but the layers: reading their rows twice is less than writing them out."""

    @staticmethod
    def forward(ctx: Any, rows_3B: Tensor, *layers_ND: Tensor) -> tuple[Tensor, Tensor]:
        layers_ND = tuple(layer_ND.contiguous() for layer_ND in layers_ND)
        margin_B, norms, mean_ND = backend.kernels("cuda_triplets").margins(layers_ND, rows_3B)
        ctx.save_for_backward(rows_3B, mean_ND, *layers_ND)
        return margin_B, norms

    @staticmethod
    def backward(ctx: Any, grad_margin_B: Tensor, grad_norms: Tensor) -> tuple[Tensor | None, ...]:
        rows_3B, mean_ND, *layers_ND = ctx.saved_tensors
        first_ND, rest_ND = backend.kernels("cuda_triplets").margins_backward(
            layers_ND, mean_ND, rows_3B, grad_margin_B, grad_norms
        )
        return None, first_ND, *[rest_ND] * (len(layers_ND) - 1)
