"""BPR (Rendle et al., UAI '09): an item that the user has shall score above one that it has not.

mean of -ln σ(r_ui - r_uj) over triplets of a user u, an item i of u and an item j that u does not have

Legend: B triplets, F factor size, D embedding size, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hmlet.data import Csr
from hmlet.graph import Sizes
from hmlet.graph.kernels import can_fuse, joined_margins, mean_margins
from hmlet.graph.layers import Layers
from hmlet.losses.base import Loss, Terms, row_norms
from hmlet.losses.sampling import Draw, Triplets, TripletSampler


class BPR(Loss[Triplets]):
    """The pairwise loss of the paper and of most of its baselines."""

    name = "bpr"

    def sampler(self, train: Csr, n_items: int, device: torch.device, draw: Draw) -> TripletSampler:
        return TripletSampler(train, n_items, device, draw)

    def blank(self, size: int, sizes: Sizes, device: str) -> Triplets:
        return Triplets(*(torch.empty(size, dtype=torch.int64, device="meta") for _ in range(3)))

    def forward(self, layers: Layers, batch: Triplets) -> Terms:
        margin_B, norms = triplet_margins(layers, batch)
        return Terms(bpr(margin_B), norms)


def triplet_margins(layers: Layers, batch: Triplets) -> Sequence[Tensor]:
    """r_ui - r_uj of a batch's triplets (B), and ‖rows of e⁰‖² / B; of all columns, whichever rank has them."""
    return layers.ranks.total(*_own_margins(layers, batch.nodes(layers.n_users)))


def _own_margins(layers: Layers, rows_3B: Tensor) -> tuple[Tensor, Tensor]:
    """The rank's share of both; the rows are users, positives and negatives."""
    embeddings_ND = layers.embeddings_ND
    if layers.joined.how != "last" and can_fuse(embeddings_ND, rows_3B):
        if layers.joined.how == "mean":
            return mean_margins(embeddings_ND, rows_3B)
        margin_B, norms = joined_margins(embeddings_ND, rows_3B)
        return margin_B * layers.joined.scale**2, norms
    factors_3BF, rows_3BD = layers.factors(rows_3B), layers.initial_ND.index_select(0, rows_3B)
    return margins(*factors_3BF.chunk(3)), row_norms(rows_3BD.chunk(3))


def margins(user_BF: Tensor, positive_BF: Tensor, negative_BF: Tensor) -> Tensor:
    """r_ui - r_uj of each triplet: B."""
    return (user_BF * (positive_BF - negative_BF)).sum(dim=1)


def bpr(margin_B: Tensor) -> Tensor:
    """The mean over the batch of -ln σ(r_ui - r_uj)."""
    return F.softplus(-margin_B).mean()
