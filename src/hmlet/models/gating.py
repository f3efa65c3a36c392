"""The gate: for each node, which of two embeddings goes on to the next layer (the paper's Algorithm 1).

Legend: N nodes, D embedding size, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from hmlet.kernels import dense, mix, norm_dropout_relu
from hmlet.models.base import Pass, glorot

LINEAR, NONLINEAR = 0, 1  # the columns of a gate's logits


class Gate(nn.Module):
    """g = STGS(MLP(eᴸ ‖ eᴺ), τ) and eᴳ = g · [eᴸ, eᴺ]; one gate a layer, shared by users and items.

    The MLP is 2 D → hidden … → 2 with BatchNorm, dropout and ReLU between its dense layers.
    """

    def __init__(self, size: int, hidden: Sequence[int], rate: float, generator: torch.Generator) -> None:
        super().__init__()
        sizes = [2 * size, *hidden, 2]
        self.rate = rate
        self.dense = nn.ParameterList(glorot(a, b, generator) for a, b in pairwise(sizes))
        self.bias = nn.Parameter(torch.zeros(2))  # BatchNorm takes means away, so only the last layer has a bias
        self.norm = nn.ModuleList(nn.BatchNorm1d(h) for h in hidden)

    def forward(self, linear_ND: Tensor, nonlinear_ND: Tensor, how: Pass) -> tuple[Tensor, Tensor]:
        """The chosen embeddings (N × D) and the probability of the non-linear branch behind each choice (N)."""
        hidden_NH, linear_ND, nonlinear_ND = dense(linear_ND, nonlinear_ND, self.dense[0].to(linear_ND.dtype))
        logits_N2 = self.logits(hidden_NH, how.dropout)
        choice_N2 = gumbel_softmax(logits_N2, how.temperature, how.hard, how.noise)
        probability_N = torch.softmax(logits_N2.detach(), dim=1)[:, NONLINEAR]
        return mix(choice_N2, linear_ND, nonlinear_ND), probability_N

    def logits(self, hidden_NH: Tensor, generator: torch.Generator | None) -> Tensor:
        """The MLP's output from its first layer's: N × 2.

        Products are in the embeddings' type; BatchNorm's statistics and the logits are in the parameters'.
        """
        norms = cast(Iterable[nn.BatchNorm1d], self.norm)
        for weight, norm in zip(list(self.dense)[1:], norms, strict=True):
            hidden_NH = norm_dropout_relu(hidden_NH, norm, self.rate, generator) @ weight.to(hidden_NH.dtype)
        return hidden_NH.to(self.bias.dtype) + self.bias


class RandomGate(nn.Module):
    """A choice drawn once for each node and never trained: the ablation beside the learned gate."""

    choice_N2: Tensor

    def __init__(self, n_nodes: int, generator: torch.Generator) -> None:
        super().__init__()
        drawn_N = torch.randint(0, 2, (n_nodes,), generator=generator)
        self.register_buffer("choice_N2", nn.functional.one_hot(drawn_N, 2).float())

    def forward(self, linear_ND: Tensor, nonlinear_ND: Tensor, how: Pass) -> tuple[Tensor, Tensor]:
        return mix(self.choice_N2, linear_ND, nonlinear_ND), self.choice_N2[:, NONLINEAR]


def gumbel_softmax(
    logits_N2: Tensor, temperature: float | Tensor, hard: bool, generator: torch.Generator | None
) -> Tensor:
    """softmax((logits + Gumbel noise) / τ); `hard` is one-hot forward with the soft gradient (straight-through).

    Without a generator there is no noise: `hard` is then the argmax, ties going to the linear branch.
    """
    if generator is not None:
        uniform_N2 = torch.empty_like(logits_N2).uniform_(generator=generator)
        # log of exactly 0 would be an infinite noise; the smallest normal number is rarer than float32 can draw.
        logits_N2 = logits_N2 - torch.log(-torch.log(uniform_N2.clamp_min(torch.finfo(torch.float32).tiny)))
    soft_N2 = torch.softmax(logits_N2 / temperature, dim=1)
    if not hard:
        return soft_N2
    nonlinear_N = logits_N2[:, NONLINEAR] > logits_N2[:, LINEAR]
    one_hot_N2 = torch.stack([~nonlinear_N, nonlinear_N], dim=1).to(soft_N2.dtype)
    return one_hot_N2 + (soft_N2 - soft_N2.detach())  # the bracket is exactly 0, so the choice stays exactly one-hot
