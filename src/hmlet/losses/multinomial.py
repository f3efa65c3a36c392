"""The multinomial likelihood (Liang et al., WWW '18): all items of a user are explained at once, none of them drawn.

    mean over training interactions (u, i) of -s(u, i) / τ + log Σ_j exp(s(u, j) / τ)

It is the softmax's loss with every pair in every step, and costs no more than one pair a user would: the sum over j is
the same for all items of u. A batch is users, all of them where `train.batch_size` is as large as that, so that a step
has no noise from drawing and a few hundred steps are a training. With `train.draw` = "user" each user counts alike,
with "interaction" as much as the items they have.

The scores of a user's own items, weighted by c_u, add up without being computed: with x the factors of all nodes and
A the graph with the weights c_u at its edges,

    Σ_u c_u Σ_i s(u, i) = ½ Σ x ∘ A x,    and its gradient is A x

Legend: B users of a batch, M of them the rank's own, U users, I items, J of them compared with, N nodes, F factor size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hmlet.data import Csr
from hmlet.graph import Graph
from hmlet.graph.kernels import Operator, build_operator, part, plan_operator
from hmlet.graph.layers import Layers
from hmlet.graph.work import FLOAT, Part
from hmlet.losses.base import Terms
from hmlet.losses.sampling import Draw, eligible_users
from hmlet.losses.softmax import Tempered, block_type
from hmlet.system.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Whole:
    """What every batch has in common."""

    pairs: Operator  # A: c_u at every edge
    share_N: Tensor  # how often a node is expected in a drawn pair


class Users(NamedTuple):
    """Users with all of their items, and what these are compared with."""

    user: Tensor  # B, without repetitions
    weight: Tensor  # B: how much each counts
    everyone: bool  # whether nobody is left out
    others: Tensor | None  # J items; None: all
    whole: Whole


class UserSampler:
    """Users without repetition, or everyone; with `others`, as many items, drawn uniformly from all of them."""

    def __init__(self, train: Csr, n_items: int, device: torch.device, draw: Draw, others: int) -> None:
        eligible = eligible_users(train, n_items)
        counts = train.counts[eligible].astype(np.float64)
        weight = counts / counts.sum() if draw == "interaction" else np.full(len(eligible), 1.0 / len(eligible))
        each = np.zeros(len(train.counts))
        each[eligible] = weight / counts
        graph = Graph.from_csr(train, n_items)
        scale = np.concatenate([each, np.ones(n_items)]).astype(np.float32)
        users_share = np.zeros(len(train.counts))
        users_share[eligible] = weight
        owner = np.repeat(np.arange(len(train.counts)), train.counts)
        items_share = np.bincount(train.items, weights=each[owner], minlength=n_items)
        self.n_items, self.others, self.device = n_items, others, device
        share_N = torch.from_numpy(np.concatenate([users_share, items_share])).to(device, torch.float32)
        self.whole = Whole(build_operator(graph.indptr, graph.neighbours, graph.edges, scale, device), share_N)
        self.eligible = torch.from_numpy(eligible).to(device)
        self.weight = torch.from_numpy(weight).to(device, torch.float32)

    def sample(self, size: int, generator: torch.Generator) -> Users:
        """`size` users, or everyone if there are no more."""
        with part("sampling"):
            user, weight, everyone = self.eligible, self.weight, size >= len(self.eligible)
            if not everyone:
                keys = torch.rand(len(self.eligible), generator=generator, device=self.device)
                chosen = torch.topk(keys, size).indices
                user, weight = user[chosen], weight[chosen] * (len(self.eligible) / size)
            others = None
            if self.others:
                others = torch.randint(self.n_items, (self.others,), generator=generator, device=self.device)
            return Users(user, weight, everyone, others, self.whole)


class Multinomial(Tempered[Users]):
    """The likelihood of all items of every user."""

    name = "multinomial"
    counts_users = True

    # -- what it draws --------------------------------------------------------------------------------------------

    def sampler(self, train: Csr, n_items: int, device: torch.device, draw: Draw) -> UserSampler:
        return UserSampler(train, n_items, device, draw, self.config.negatives)

    def planned(self, size: int, n_users: int, n_items: int, n_edges: int, device: str) -> Users:
        users, others = min(size, n_users), self.config.negatives
        with torch.device("meta"):
            return Users(
                torch.empty(users, dtype=torch.int64),
                torch.empty(users),
                users == n_users,
                torch.empty(others, dtype=torch.int64) if others else None,
                Whole(plan_operator(n_users + n_items, n_edges, device), torch.empty(n_users + n_items)),
            )

    def sampler_bytes(self, n_users: int, n_items: int, n_edges: int, device: str, draw: Draw) -> int:
        return plan_operator(n_users + n_items, n_edges, device).nbytes + 12 * n_users + 4 * (n_users + n_items)

    def steps(self, train: Csr, batch_size: int) -> int:
        """As many as it takes to draw as many users as there are."""
        return math.ceil(int((train.counts > 0).sum()) / batch_size)

    # -- what it computes -----------------------------------------------------------------------------------------

    def nodes(self, batch: Users, n_users: int) -> Tensor:
        items = torch.arange(n_users, len(batch.whole.share_N), device=batch.user.device)
        return torch.cat([batch.user, items])

    def forward(self, layers: Layers, batch: Users, n_users: int, ranks: Ranks) -> Terms:
        temperature = self.temperature()
        factors_NF = layers.factors()
        factors_NF = factors_NF.to(torch.promote_types(factors_NF.dtype, torch.float32))
        users_BF = factors_NF.index_select(0, batch.user)
        items_IF = factors_NF[n_users:]
        compared_JF = items_IF if batch.others is None else items_IF.index_select(0, batch.others)
        sums = self._log_sums(
            layers,
            ranks.rows(users_BF) / temperature,
            ranks.gather(ranks.rows(compared_JF), len(compared_JF)),
            batch.weight[ranks.own_rows(len(batch.user))],
            weight=len(items_IF) / len(compared_JF),
        )
        agreement = self._agreement(factors_NF, batch, n_users, block_type(layers, factors_NF))
        own = sums - agreement / temperature
        norms = torch.dot(batch.whole.share_N, layers.initial_ND.square().sum(dim=1))
        return Terms(*ranks.total(own, norms))

    def _agreement(self, factors_NF: Tensor, batch: Users, n_users: int, dtype: torch.dtype) -> Tensor:
        """Σ_u c_u Σ_i u · v_i over the batch's users and their items, in the rank's own columns."""
        x_NF = factors_NF
        if not batch.everyone:
            chosen_N = factors_NF.new_zeros(len(factors_NF))
            chosen_N[n_users:] = 1.0
            chosen_N[batch.user] = batch.weight / batch.whole.share_N[batch.user]
            x_NF = factors_NF * chosen_N[:, None]
        value: Tensor = _Agreement.apply(x_NF, batch.whole.pairs, dtype)  # type: ignore[no-untyped-call]
        return value

    def work(self, size: int, batch: int, depth: int, storage: int, n_users: int, n_items: int) -> list[Part]:
        """Reading a batch's users and every item compared with, in every layer, and three matrix products."""
        users, items = min(batch, n_users), self.config.negatives or n_items
        moved = 2 * (users + items) * size * (FLOAT + depth * storage)
        return [Part("readout and loss", moved=moved, operations=3 * 2.0 * users * items * size)]


class _Agreement(torch.autograd.Function):
    """½ Σ x ∘ A x for a symmetric A: one product gives the value and the gradient."""

    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, pairs: Operator, dtype: torch.dtype) -> Tensor:
        y_NF = pairs.product(x_NF.to(dtype), dtype=x_NF.dtype)
        ctx.save_for_backward(y_NF)
        return (x_NF * y_NF).sum() / 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (y_NF,) = ctx.saved_tensors
        return y_NF * grad, None, None
