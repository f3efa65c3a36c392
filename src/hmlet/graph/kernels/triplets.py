"""What the loss reads of a pass whose layers are averaged or joined: the batch's margins and the norms of its rows.

Legend: N nodes, D columns, B triplets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmlet.graph.kernels import launching
from hmlet.graph.kernels.parts import part


def mean_margins(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> tuple[Tensor, Tensor]:
    """r_ui - r_uj of each triplet (B), and ‖rows of e⁰‖² / B; `rows_3B` are users, positives and negatives."""
    from hmlet.graph.kernels.triton_triplets import MeanMargins

    with part("readout and loss"):
        margin_B, norms = MeanMargins.apply(rows_3B, *layers_ND)  # type: ignore[no-untyped-call]
    return margin_B, norms


def joined_margins(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> tuple[Tensor, Tensor]:
    """The same where factors are all layers side by side: the layers' own margins, added up."""
    margin_B, norms = mean_margins(layers_ND[:1], rows_3B)
    for layer_ND in layers_ND[1:]:
        margin_B = margin_B + mean_margins([layer_ND], rows_3B)[0]
    return margin_B, norms


def can_fuse(layers_ND: Sequence[Tensor]) -> bool:
    """Whether these work here: with Triton, and where sums may be made in any order."""
    return launching.triton_runs(layers_ND[0]) and not torch.are_deterministic_algorithms_enabled()
