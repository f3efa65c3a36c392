"""BPR (Rendle et al., UAI '09): an item that the user has shall score above one that it has not.

mean of -ln σ(r_ui - r_uj) over triplets of a user u, an item i of u and an item j that u does not have

Legend: B triplets, F factor size, D embedding size, N nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hmlet.data import Csr
from hmlet.graph.kernels import can_fuse, joined_margins, mean_margins
from hmlet.graph.layers import Layers
from hmlet.losses.base import Loss, Terms, row_norms
from hmlet.losses.sampling import Draw, Triplets, TripletSampler, eligible_users
from hmlet.system.ranks import Ranks


class BPR(Loss[Triplets]):
    """The pairwise loss of the paper and of most of its baselines."""

    name = "bpr"

    def require(self, train: Csr, n_items: int) -> None:
        eligible_users(train, n_items)

    def sampler(self, train: Csr, n_items: int, device: torch.device, draw: Draw) -> TripletSampler:
        return TripletSampler(train, n_items, device, draw)

    def planned(self, size: int, n_users: int, n_items: int, n_edges: int, device: str) -> Triplets:
        return Triplets(*(torch.empty(size, dtype=torch.int64, device="meta") for _ in range(3)))

    def sampler_bytes(self, n_users: int, n_items: int, n_edges: int, device: str, draw: Draw) -> int:
        return TripletSampler.planned_bytes(n_users, n_edges, device, draw)

    def nodes(self, batch: Triplets, n_users: int) -> Tensor:
        return torch.cat([batch.user, n_users + batch.positive, n_users + batch.negative])

    def forward(self, layers: Layers, batch: Triplets, n_users: int, ranks: Ranks) -> Terms:
        margin_B, norms = ranks.total(*triplet_margins(layers, self.nodes(batch, n_users)))
        return Terms(bpr(margin_B), norms)


def triplet_margins(layers: Layers, rows_3B: Tensor) -> tuple[Tensor, Tensor]:
    """r_ui - r_uj of a batch's triplets (B), and ‖rows of e⁰‖² / B; the rows are users, positives and negatives."""
    embeddings_ND = layers.embeddings_ND
    if layers.joined_by != "last" and can_fuse(embeddings_ND, rows_3B):
        if layers.joined_by == "mean":
            return mean_margins(embeddings_ND, rows_3B)
        margin_B, norms = joined_margins(embeddings_ND, rows_3B)
        return margin_B * layers.scale**2, norms
    factors_3BF, rows_3BD = layers.factors(rows_3B), layers.initial_ND.index_select(0, rows_3B)
    return margins(*factors_3BF.chunk(3)), row_norms(rows_3BD.chunk(3))


def margins(user_BF: Tensor, positive_BF: Tensor, negative_BF: Tensor) -> Tensor:
    """r_ui - r_uj of each triplet: B."""
    return (user_BF * (positive_BF - negative_BF)).sum(dim=1)


def bpr(margin_B: Tensor) -> Tensor:
    """The mean over the batch of -ln σ(r_ui - r_uj)."""
    return F.softplus(-margin_B).mean()
