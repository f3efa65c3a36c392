"""HMLET as one writes it first: torch.sparse, eager, nn.Dropout, whole tables averaged, the loss read at every step.

The other side of bench_epoch.py. It is the same model and the same loss; sampling is ours, on the device, so that only
the way of stepping is compared (the authors' program samples on the CPU besides). Its backward product is given for
free: Â is symmetric, and torch.sparse would transpose it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hmlet.config import Recipe
from hmlet.graph.kernels import Operator
from hmlet.losses.sampling import TripletSampler
from hmlet.models.hmlet import HmletConfig


class _Symmetric(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, matrix: Tensor) -> Tensor:
        ctx.matrix = matrix
        return torch.sparse.mm(matrix, x_ND)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None]:
        return torch.sparse.mm(ctx.matrix, grad_ND), None


class PlainHMLET(nn.Module):
    """HMLET's propagation, a gate a gated layer, and the mean of the layers."""

    def __init__(self, config: HmletConfig, n_nodes: int) -> None:
        super().__init__()
        self.types = config.types
        self.embedding = nn.Parameter(0.1 * torch.randn(n_nodes, config.embedding_size))
        self.gates = nn.ModuleList(
            _gate([2 * config.embedding_size, *config.gate_hidden], config.gate_dropout)
            for kind in config.types
            if kind == "gated"
        )

    def forward(self, matrix: Tensor, temperature: float) -> Tensor:
        chosen_ND = self.embedding
        layers, gates = [chosen_ND], iter(self.gates)
        for layer, kind in enumerate(self.types):
            linear_ND = _Symmetric.apply(chosen_ND, matrix)
            if layer == 0:
                first_ND = linear_ND
            chosen_ND = linear_ND
            if kind == "gated":
                bypassed = all(before == "linear" for before in self.types[:layer])
                nonlinear_ND = F.elu(first_ND if bypassed else linear_ND)
                logits_N2 = next(gates)(torch.cat([linear_ND, nonlinear_ND], dim=1))
                choice_N2 = F.gumbel_softmax(logits_N2, tau=temperature)
                chosen_ND = choice_N2[:, :1] * linear_ND + choice_N2[:, 1:] * nonlinear_ND
            layers.append(chosen_ND)
        return torch.stack(layers).mean(dim=0)


def _gate(sizes: list[int], rate: float) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.Dropout(rate), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(sizes[-1], 2))


class PlainSteps:
    """The authors' way of stepping: everything whole, in float32, one operation at a time."""

    def __init__(self, recipe: Recipe, operator: Operator, sampler: TripletSampler, n_users: int) -> None:
        assert isinstance(recipe.model, HmletConfig)
        device = operator.weights.device
        self.train, self.operator, self.sampler, self.n_users = recipe.train, operator, sampler, n_users
        self.generator = torch.Generator(device).manual_seed(recipe.seed)
        self.model = PlainHMLET(recipe.model, operator.n_nodes).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=recipe.train.learning_rate)

    def take(self) -> float:
        """Move the model by one step; returns its loss."""
        batch = self.sampler.sample(self.train.batch_size, self.generator)
        factors_ND = self.model(self._thinned(), 0.7)
        rows = batch.user, self.n_users + batch.positive, self.n_users + batch.negative
        user_BD, positive_BD, negative_BD = (factors_ND[row] for row in rows)
        margin_B = (user_BD * positive_BD).sum(dim=1) - (user_BD * negative_BD).sum(dim=1)
        norms = sum(self.model.embedding[row].square().sum() for row in rows) / len(margin_B) / 2
        loss = F.softplus(-margin_B).mean() + self.train.l2 * norms
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def _thinned(self) -> Tensor:
        """Â as a torch CSR with a share of the edges set to zero."""
        whole, keep = self.operator, 1.0 - self.train.edge_dropout
        fate_E = torch.rand(len(whole.edges) // 2, generator=self.generator, device=whole.weights.device) < keep
        values = whole.weights * fate_E[whole.edges.long()] / keep
        size = (whole.n_nodes, whole.n_nodes)
        return torch.sparse_csr_tensor(whole.indptr, whole.neighbours, values, size, check_invariants=False)
