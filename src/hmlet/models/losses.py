"""The BPR loss, and the penalty on the rows that a batch touched.

Legend: B triplets, F factor size, D embedding size.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.nn import functional as F


def bpr(user_BF: Tensor, positive_BF: Tensor, negative_BF: Tensor) -> Tensor:
    """The mean over the batch of -ln σ(r_ui - r_uj)."""
    margin_B = (user_BF * (positive_BF - negative_BF)).sum(dim=1)
    return F.softplus(-margin_B).mean()


def penalty(embeddings_BD: Iterable[Tensor], weights: Iterable[Tensor] = ()) -> Tensor:
    """½ ‖rows‖² / B over the batch's rows of e⁰ (a row counts as often as it occurs), plus ½ ‖weights‖²."""
    rows = list(embeddings_BD)
    total = sum((row_BD.square().sum() for row_BD in rows[1:]), rows[0].square().sum()) / len(rows[0])
    for weight in weights:
        total = total + weight.square().sum()
    return total / 2
