"""The product as plain as it gets: what every implementation is compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def product(indptr: Tensor, neighbours: Tensor, weights: Tensor, x_ND: Tensor) -> Tensor:
    """Σ over each row's entries of weight · x[neighbour], by one scatter-add: N × D."""
    rows = torch.repeat_interleave(torch.arange(len(indptr) - 1, device=x_ND.device), indptr.diff().long())
    y_ND = torch.zeros(len(indptr) - 1, x_ND.shape[1], dtype=x_ND.dtype, device=x_ND.device)
    return y_ND.index_add_(0, rows, weights.to(x_ND.dtype)[:, None] * x_ND[neighbours.long()])
