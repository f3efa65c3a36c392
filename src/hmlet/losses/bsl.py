"""BSL, the bilateral softmax (Wu et al., ICDE '24): its structure for negatives on the side of the positives too.

    mean over users of -log E_i exp(s(u, i) / τ₁) + τ₂ / τ₁ log Σ_j exp(s(u, j) / τ₂)

E_i is the mean over P items of the user, which are drawn for each batch, so a positive that fits the user badly counts
less. It is the paper's formula over τ₁, as in the authors' program, and up to a constant: with P = 1 and τ₁ = τ₂ it is
the softmax.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from hmlet.losses.softmax import Compared, Softmax, SoftmaxConfig


class BSLConfig(SoftmaxConfig):
    """The settings of a bilateral softmax; `temperature` is τ₂, of the negatives."""

    positives: PositiveInt = 4
    """P, how many of a user's items are drawn together; a batch has that many times fewer users."""
    temperature_ratio: Annotated[float, Field(ge=0.01, le=1e4)] = 1.0
    """τ₁ / τ₂: the smaller, the more the best of a user's items count."""


class BSL(Softmax):
    """A softmax over items, and a mean of exponentials over a user's own items."""

    name = "bsl"
    Config = BSLConfig
    config: BSLConfig
    counts_own = False  # the mean of Σ_j over draws is right without them

    @property
    def positives(self) -> int:
        return self.config.positives

    def _value(self, compared: Compared) -> Tensor:
        ratio, score_MP = self.config.temperature_ratio, compared.score_MP
        mean_M = torch.logsumexp(score_MP / ratio, dim=1) - math.log(self.positives)
        return compared.log_sums(torch.full_like(mean_M, 1.0 / ratio)) - mean_M.sum()
