"""The BPR loss, and the penalty on the rows that a batch touched.

Legend: B triplets, F factor size, D embedding size.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.nn import functional as F


def margins(user_BF: Tensor, positive_BF: Tensor, negative_BF: Tensor) -> Tensor:
    """r_ui - r_uj of each triplet: B."""
    return (user_BF * (positive_BF - negative_BF)).sum(dim=1)


def bpr(margin_B: Tensor) -> Tensor:
    """The mean over the batch of -ln σ(r_ui - r_uj)."""
    return F.softplus(-margin_B).mean()


def row_norms(embeddings_BD: Iterable[Tensor]) -> Tensor:
    """‖rows‖² / B over the batch's rows of e⁰; a row counts as often as it occurs."""
    rows = list(embeddings_BD)
    return sum((row_BD.square().sum() for row_BD in rows[1:]), rows[0].square().sum()) / len(rows[0])


def penalty(norms: Tensor, weights: Iterable[Tensor] = ()) -> Tensor:
    """½ ‖rows‖² / B, plus ½ ‖weights‖²."""
    total = norms
    for weight in weights:
        total = total + weight.square().sum()
    return total / 2
