"""The scores of pairs of nodes: the dot product of the two rows of each.

Legend: N nodes, F columns, E pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hmlet.graph.kernels import launching
from hmlet.graph.kernels.parts import part

AT_ONCE = 8192  # pairs whose rows are gathered together: few enough to stay in the cache


def pair_scores(x_NF: Tensor, first_E: Tensor, second_E: Tensor) -> Tensor:
    """x[first] · x[second] of every pair, in float32 at least, without a gradient: E."""
    kind = torch.promote_types(x_NF.dtype, torch.float32)
    score_E = torch.empty(len(first_E), dtype=kind, device=x_NF.device)
    with part("readout and loss"), torch.no_grad():
        if launching.triton_runs(x_NF):
            from hmlet.graph.kernels.triton_scores import fill_scores

            fill_scores(score_E, x_NF.contiguous(), first_E, second_E)
            return score_E
        for start in range(0, len(first_E), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            first_RF, second_RF = (x_NF.index_select(0, end_E[rows]).to(kind) for end_E in (first_E, second_E))
            score_E[rows] = torch.linalg.vecdot(first_RF, second_RF)
            if x_NF.is_meta:  # a plan needs to see only one block
                break
    return score_E
