"""Softmax@K (SL@K, Yang et al., KDD '25): a softmax that counts the pairs near the top of a list, for NDCG@K.

    mean of σ((s(u, i) - β_u) / τ_w) (-s(u, i) / τ + log Σ_j exp(s(u, j) / τ))

β_u is the K-th best score of the user. It has no gradient; the weight σ has one.
"""

from __future__ import annotations

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from hmlet.graph.kernels import kth_best
from hmlet.losses.softmax import Compared, Softmax, SoftmaxConfig


class SoftmaxAtKConfig(SoftmaxConfig):
    """The settings of a softmax@K."""

    k: PositiveInt = 20
    """K, the length of the lists whose NDCG counts."""
    weight_temperature: PositiveFloat = 1.0
    """τ_w: the smaller, the more sharply a pair's weight falls where its item leaves the list."""


class SoftmaxAtK(Softmax):
    """A softmax whose pairs weigh more the higher their item ranks."""

    name = "softmax@k"
    Config = SoftmaxAtKConfig
    config: SoftmaxAtKConfig

    def _value(self, compared: Compared) -> Tensor:
        score_M, items_JF = compared.score_MP[:, 0], compared.items_JF
        k = max(1, round(self.config.k * compared.share))
        best_M = kth_best(compared.users_MF, items_JF, k, compared.dtype, compared.offset_J)
        # s = τ · (s / τ), of which only the user's own score has a gradient.
        own_M, best_M = score_M * compared.temperature, best_M * compared.temperature.detach()
        weights_M = torch.sigmoid((own_M - best_M) / self.config.weight_temperature)
        return compared.log_sums(weights_M) - torch.dot(weights_M, score_M)
