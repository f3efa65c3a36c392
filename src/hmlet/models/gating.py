"""The gate: for each node, which of two embeddings goes on to the next layer (the paper's Algorithm 1).

Legend: N nodes, D embedding size, H hidden size; of several ranks each has D / G columns of an N × D matrix, or all
columns of its own M nodes (hmlet.system.ranks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from hmlet.graph.kernels import dense, dropout_relu, gumbel_softmax, head, mix, norm_dropout_relu, probabilities, times
from hmlet.models.base import Pass, glorot
from hmlet.system.ranks import Ranks

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
        n_nodes, ranks = len(linear_ND), how.ranks
        hidden_MH, linear_MD, nonlinear_MD = dense(ranks.rows(linear_ND), ranks.rows(nonlinear_ND), self.dense[0])
        if ranks.size == 1:  # these are all nodes, and their gradients are added where the first layer makes them
            linear_ND, nonlinear_ND = linear_MD, nonlinear_MD
        logits_N2 = ranks.gather(self.logits(hidden_MH, how, n_nodes), n_nodes)
        choice_N2 = gumbel_softmax(logits_N2, how.temperature, how.hard, how.noise)
        return mix(choice_N2, linear_ND, nonlinear_ND), probabilities(logits_N2)

    def logits(self, hidden_MH: Tensor, how: Pass, n_nodes: int) -> Tensor:
        """The MLP's output for the rank's nodes, from its first layer's: M × 2.

        Products are in the embeddings' type; BatchNorm's statistics and the logits are in the parameters'.
        """
        if not self.norm:
            return hidden_MH.to(self.bias.dtype) + self.bias
        *between, last = cast(Iterable[nn.BatchNorm1d], self.norm)
        for weight, norm in zip(list(self.dense)[1:-1], between, strict=True):
            hidden_MH = times(self._alive(hidden_MH, norm, how, n_nodes), weight)
        return head(self._alive(hidden_MH, last, how, n_nodes), self.dense[-1], self.bias)

    def _alive(self, hidden_MH: Tensor, norm: nn.BatchNorm1d, how: Pass, n_nodes: int) -> Tensor:
        """What BatchNorm, dropout and ReLU make of a layer."""
        if how.ranks.size == 1:
            return norm_dropout_relu(hidden_MH, norm, self.rate, how.dropout)
        start = how.ranks.own_rows(n_nodes).start
        return dropout_relu(batch_norm(hidden_MH, norm, how.ranks, n_nodes), self.rate, how.dropout, start, n_nodes)


def batch_norm(x_MH: Tensor, norm: nn.BatchNorm1d, ranks: Ranks, n_nodes: int) -> Tensor:
    """norm(x) with the mean and variance of all nodes, of which each rank has some.

    Each rank's moments are gathered and combined, which loses no digits to large means (PyTorch's SyncBatchNorm does
    the same, on CUDA only).
    """
    if not norm.training:
        normalised_MH: Tensor = norm(x_MH)
        return normalised_MH
    x = x_MH.to(norm.weight.dtype)
    own_2H = torch.stack(torch.var_mean(x, dim=0, correction=0))
    variance_GH, mean_GH = ranks.gather(own_2H[None], ranks.size).unbind(1)
    share_G1 = x.new_tensor(ranks.counts(n_nodes))[:, None] / n_nodes
    mean_H = (share_G1 * mean_GH).sum(0)
    variance_H = (share_G1 * (variance_GH + (mean_GH - mean_H).square())).sum(0)
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        norm.running_mean.lerp_(mean_H, norm.momentum)  # type: ignore[union-attr, arg-type]
        norm.running_var.lerp_(variance_H * (n_nodes / (n_nodes - 1)), norm.momentum)  # type: ignore[union-attr, arg-type]
    scale_H = norm.weight * (variance_H + norm.eps).rsqrt()
    return torch.addcmul(norm.bias - mean_H * scale_H, x, scale_H).to(x_MH.dtype)


class RandomGate(nn.Module):
    """A choice drawn once for each node and never trained: the ablation beside the learned gate."""

    choice_N2: Tensor

    def __init__(self, n_nodes: int, generator: torch.Generator) -> None:
        super().__init__()
        drawn_N = torch.randint(0, 2, (n_nodes,), generator=generator)
        self.register_buffer("choice_N2", nn.functional.one_hot(drawn_N, 2).float())

    def forward(self, linear_ND: Tensor, nonlinear_ND: Tensor, how: Pass) -> tuple[Tensor, Tensor]:
        return mix(self.choice_N2, linear_ND, nonlinear_ND), self.choice_N2[:, NONLINEAR]
