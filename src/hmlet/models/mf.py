"""BPR-MF (Rendle et al., UAI '09): the embeddings are the factors."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from hmlet.models.base import EmbeddingConfig, FoldInRule, Layers, Model, Pass, Product, Side


class BPRConfig(EmbeddingConfig):
    """BPR-MF: matrix factorisation trained on pairs."""

    family: ClassVar[str] = "bpr"
    name: Literal["bpr"] = "bpr"


class BPRMF(Model):
    """Matrix factorisation trained on pairs: no propagation."""

    Config = BPRConfig
    propagated = None

    def propagate(self, product: Product, how: Pass) -> Layers:
        return self.readout([self.embedding], how)

    def fold_in(self, side: Side, others_ND: Tensor) -> FoldInRule:
        """One Newton step from 0 on BPR's loss, negatives being normal with the mean and covariance C of all others:

        (Z_SᵀZ_S / |S| + C + λ) x ∝ mean of Z_S,  Z = Y - mean of Y,  λ = 4 of C's mean diagonal,
        scaled to the length that training gave.
        """
        mean_D = others_ND.mean(dim=0)
        spread_DD = torch.cov(others_ND.T, correction=0)
        spread_DD.diagonal().add_(4 * spread_DD.diagonal().mean().clamp_min(1e-12))

        def solve(own_SD: Tensor) -> Tensor:
            own_SD = own_SD - mean_D
            x_D: Tensor = torch.linalg.solve(spread_DD + own_SD.T @ own_SD / len(own_SD), own_SD.mean(dim=0))
            return x_D

        return FoldInRule(solve, rescaled=True)
