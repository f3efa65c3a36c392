"""What the loss reads of a pass whose layers are averaged or joined: the batch's margins and the norms of its rows.

Legend: N nodes, D columns, B triplets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmlet.graph.kernels import launching
from hmlet.graph.kernels.parts import part
from hmlet.graph.kernels.torch_triplets import LargeBatchMargins


def mean_margins(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> tuple[Tensor, Tensor]:
    """r_ui - r_uj of each triplet (B), and ‖rows of e⁰‖² / B; `rows_3B` are users, positives and negatives."""
    with part("readout and loss"):
        margin_B, norms = _implementation(layers_ND[0]).apply(rows_3B, *layers_ND)  # type: ignore[no-untyped-call]
    return margin_B, norms


def _implementation(x_ND: Tensor) -> type[torch.autograd.Function]:
    if not launching.triton_runs(x_ND):
        return LargeBatchMargins
    from hmlet.graph.kernels.triton_triplets import MeanMargins

    return MeanMargins


def joined_margins(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> tuple[Tensor, Tensor]:
    """The same where factors are all layers side by side: the layers' own margins, added up."""
    margin_B, norms = mean_margins(layers_ND[:1], rows_3B)
    for layer_ND in layers_ND[1:]:
        margin_B = margin_B + mean_margins([layer_ND], rows_3B)[0]
    return margin_B, norms


def can_fuse(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> bool:
    """Whether these work here: with Triton, unless sums need a fixed order; on CPU, for batches with many rows."""
    if launching.triton_runs(layers_ND[0]):
        return not torch.are_deterministic_algorithms_enabled()
    on_cpu = layers_ND[0].device.type in ("cpu", "meta")
    return on_cpu and len(rows_3B) > len(layers_ND[0]) and layers_ND[0].dtype == layers_ND[-1].dtype
