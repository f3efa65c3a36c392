"""Per-user metrics from hits.

Legend: B users, K ranks. hits_BK[b, r] says whether user b's item at rank r (from 0) is relevant; relevant_B counts the
user's held-out items and is at least 1. Relevance is binary.
"""

from __future__ import annotations

import torch
from torch import Tensor

METRICS = ("ndcg", "recall", "precision", "map", "mrr", "hit_rate")


def per_user(hits_BK: Tensor, relevant_B: Tensor, k: int) -> dict[str, Tensor]:
    """Every metric at k for each user, float64; no number is read from the device, which would have to be waited for.

    `k` is what was asked for. Lists are shorter where the catalogue is, and there nobody can have more relevant items.

    ndcg       Σ hit_r / log2(r + 2), over the same sum of an ideal list cut at min(k, relevant)
    recall     hits / relevant
    precision  hits / k
    map        mean over min(k, relevant) of precision at each hit
    mrr        1 / (rank of the first hit + 1), 0 without one
    hit_rate   1 with a hit, else 0
    """
    hits_BK = hits_BK.double()
    ranks_K = torch.arange(hits_BK.shape[1], dtype=torch.float64, device=hits_BK.device)
    discount_K = 1.0 / torch.log2(ranks_K + 2.0)
    ideal_B = relevant_B.clamp_max(len(ranks_K))
    found_B = hits_BK.sum(dim=1)
    precision_at_BK = hits_BK.cumsum(dim=1) / (ranks_K + 1.0)
    return {
        "ndcg": (hits_BK * discount_K).sum(dim=1) / discount_K.cumsum(0)[ideal_B - 1],
        "recall": found_B / relevant_B,
        "precision": found_B / k,
        "map": (precision_at_BK * hits_BK).sum(dim=1) / ideal_B,
        "mrr": (hits_BK / (ranks_K + 1.0)).amax(dim=1),
        "hit_rate": (found_B > 0).double(),
    }
