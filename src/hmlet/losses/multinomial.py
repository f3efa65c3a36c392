"""The multinomial likelihood (Liang et al., WWW '18): all items of a user are explained at once, none of them drawn.

    mean over training interactions (u, i) of -s(u, i) / τ + log Σ_j exp(s(u, j) / τ)

It is the softmax's loss with every pair in every step, at the cost of one pair per user: the sum over j is
the same for all items of u. A batch is users, all of them where `train.batch_size` is as large as that, so that a step
has no noise from drawing and a few hundred steps are a training. With `train.draw` = "user" each user counts alike,
with "interaction" as much as the items they have, and with "root" as much as the root of that.

The scores of a user's own items, weighted by c_u, add up without being computed: with x the factors of all nodes and
A the graph with the weights c_u at its edges,

    Σ_u c_u Σ_i s(u, i) = ½ Σ x ∘ A x,    and its gradient is A x

`loss.temperature_ratio` = ρ brings in what BSL does for the positives (bsl.py). The mean of s(u, i) over a user's items
is replaced by

    ρ τ log E_i exp(s(u, i) / (ρ τ))

in which an item that fits the user badly counts less. The gradient is A x again, with the shares of the items in that
mean as the weights of the edges.

Legend: B users of a batch, M of them the rank's own, U users, I items, J of them compared with, N nodes, E training
interactions, F factor size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from hmlet.data import Csr
from hmlet.errors import ConfigError
from hmlet.graph import Graph, Sizes
from hmlet.graph.kernels import Operator, build_operator, pair_scores, part, plan_operator
from hmlet.graph.layers import Layers
from hmlet.losses.base import Terms
from hmlet.losses.sampling import Draw, eligible_users, shares
from hmlet.losses.softmax import SoftmaxConfig, Tempered, stored_type
from hmlet.system.ranks import Ranks


class MultinomialConfig(SoftmaxConfig):
    """The settings of the multinomial likelihood."""

    temperature_ratio: Annotated[float, Field(ge=0.5, le=1e4)] | None = None
    """ρ: the smaller, the more the best of a user's items count; without it all count alike."""

    @model_validator(mode="after")
    def _of_cosines(self) -> MultinomialConfig:
        if self.temperature_ratio is not None and self.similarity != "cosine":
            raise ValueError("temperature_ratio needs the bounded scores of similarity=cosine")
        return self


class Ends(NamedTuple):
    """The training interactions as nodes, in the order of their edges."""

    user_E: Tensor
    item_E: Tensor
    count_U: Tensor  # of each user


@dataclass(frozen=True, eq=False)
class Whole:
    """What every batch has in common."""

    pairs: Operator  # A: c_u at every edge
    share_N: Tensor  # how often a node is expected in a drawn pair
    ends: Ends | None  # where items of a user do not count alike


class Users(NamedTuple):
    """Users with all of their items, and what these are compared with."""

    user: Tensor  # B, without repetitions
    weight: Tensor  # B: how much each counts
    everyone: bool  # whether nobody is left out
    others: Tensor | None  # J items; None: all
    whole: Whole

    def nodes(self, n_users: int) -> Tensor:
        items = torch.arange(n_users, len(self.whole.share_N), device=self.user.device)
        return torch.cat([self.user, items])


class UserSampler:
    """Users without repetition, or everyone; with `others`, as many items, drawn uniformly from all of them.

    `alike` says that all items of a user have the same weight.
    """

    def __init__(self, train: Csr, n_items: int, device: torch.device, draw: Draw, others: int, alike: bool) -> None:
        if draw == "weight":
            raise ConfigError(
                "this loss takes all items of a user and draws none by weight", 'use draw = "interaction"'
            )
        eligible = eligible_users(train, n_items)
        counts = train.counts[eligible]
        weight = shares(counts, draw)
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
        pairs = build_operator(graph.indptr, graph.neighbours, graph.edges, scale, device)
        ends = None
        if not alike:
            user_E, item_E = owner.astype(np.int32), graph.neighbours[: graph.n_edges]
            count_U = torch.from_numpy(train.counts).to(device, torch.float32)
            ends = Ends(torch.from_numpy(user_E).to(device), torch.from_numpy(item_E).to(device), count_U)
        self.whole = Whole(pairs, share_N, ends)
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
    Config = MultinomialConfig
    config: MultinomialConfig
    entries = "users"

    @property
    def alike(self) -> bool:
        """Whether all items of a user have equal weight."""
        return self.config.temperature_ratio is None

    def sampler(self, train: Csr, n_items: int, device: torch.device, draw: Draw) -> UserSampler:
        return UserSampler(train, n_items, device, draw, self.config.negatives, self.alike)

    def blank(self, size: int, sizes: Sizes, device: str) -> Users:
        users, others = min(size, sizes.users), self.config.negatives
        with torch.device("meta"):
            end_E = torch.empty(sizes.edges, dtype=torch.int32)
            ends = None if self.alike else Ends(end_E, end_E, torch.empty(sizes.users))
            return Users(
                torch.empty(users, dtype=torch.int64),
                torch.empty(users),
                users == sizes.users,
                torch.empty(others, dtype=torch.int64) if others else None,
                Whole(plan_operator(sizes.nodes, sizes.edges, device), torch.empty(sizes.nodes), ends),
            )

    def forward(self, layers: Layers, batch: Users) -> Terms:
        temperature, ranks, n_users = self.temperature(), layers.ranks, layers.n_users
        factors_NF = layers.factors()
        factors_NF = factors_NF.to(torch.promote_types(factors_NF.dtype, torch.float32))
        users_BF = factors_NF.index_select(0, batch.user)
        items_IF = factors_NF[n_users:]
        compared_JF, popularity_J = items_IF, layers.popularity_I
        if batch.others is not None:
            compared_JF = items_IF.index_select(0, batch.others)
            popularity_J = None if popularity_J is None else popularity_J[batch.others]
        sums = self._log_sums(
            layers,
            ranks.rows(users_BF) / temperature,
            ranks.gather(ranks.rows(compared_JF), len(compared_JF)),
            batch.weight[ranks.own_rows(len(batch.user))],
            n_items=len(items_IF),
            offset_J=None if popularity_J is None else popularity_J / temperature,
        )
        dtype = stored_type(layers, factors_NF)
        if batch.whole.ends is None:
            agreement = self._agreement(factors_NF, layers.popularity_I, batch, n_users, dtype, ranks)
        else:
            popularity_I = factors_NF.new_zeros(len(items_IF)) if layers.popularity_I is None else layers.popularity_I
            agreement = self._soft_agreement(factors_NF, popularity_I, batch, temperature, dtype, ranks)
        own = sums - agreement / temperature
        norms = torch.dot(batch.whole.share_N, layers.initial_ND.square().sum(dim=1))
        return Terms(*ranks.total(own, norms))

    def _agreement(
        self,
        factors_NF: Tensor,
        popularity_I: Tensor | None,
        batch: Users,
        n_users: int,
        dtype: torch.dtype,
        ranks: Ranks,
    ) -> Tensor:
        """Σ_u c_u Σ_i s(u, i) over the batch's users and their items, in the rank's own columns."""
        x_NF, chosen_N = factors_NF, factors_NF.new_ones(len(factors_NF))
        if not batch.everyone:
            chosen_N[:n_users] = 0.0
            chosen_N[batch.user] = (batch.weight / batch.whole.share_N[batch.user]).to(chosen_N.dtype)
            x_NF = factors_NF * chosen_N[:, None]
        value: Tensor = _Agreement.apply(x_NF, batch.whole.pairs, dtype)  # type: ignore[no-untyped-call]
        if popularity_I is None:
            return value
        sent_N1 = chosen_N.clone()[:, None]  # a user sends its items how much it counts
        sent_N1[n_users:] = 0.0
        count_I = batch.whole.pairs.product(sent_N1)[n_users:, 0]
        return value + torch.dot(count_I.to(popularity_I.dtype), popularity_I) / ranks.size

    def _soft_agreement(
        self,
        factors_NF: Tensor,
        popularity_I: Tensor,
        batch: Users,
        temperature: Tensor,
        dtype: torch.dtype,
        ranks: Ranks,
    ) -> Tensor:
        """Σ_u w_u ρ τ log E_i exp(s(u, i) / (ρ τ)) over the batch's users, the rank's share of it."""
        ends = batch.whole.ends
        assert self.config.temperature_ratio is not None
        assert ends is not None
        weight_U = torch.zeros_like(ends.count_U, dtype=factors_NF.dtype)
        weight_U[batch.user] = batch.weight.to(weight_U.dtype)
        wide = temperature.to(factors_NF.dtype) * self.config.temperature_ratio
        value: Tensor = _SoftAgreement.apply(  # type: ignore[no-untyped-call]
            factors_NF, wide, weight_U, popularity_I, batch.whole.pairs, ends, dtype, ranks
        )
        return value


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


class _SoftAgreement(torch.autograd.Function):
    """Σ_u w_u t log E_i exp(s(u, i) / t): its gradients in x, in t and in what popularity adds are made with it.

    With p_ui, the share of i in the mean, they are A x for the weights w_u p_ui at the edges,
    Σ_u w_u (log E_i exp(s(u, i) / t) - Σ_i p_ui s(u, i) / t), and Σ_u w_u p_ui.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_NF: Tensor,
        t: Tensor,
        weight_U: Tensor,
        popularity_I: Tensor,
        pairs: Operator,
        ends: Ends,
        dtype: torch.dtype,
        ranks: Ranks,
    ) -> Tensor:
        stored_NF = x_NF.to(dtype)
        score_E = pair_scores(stored_NF, ends.user_E, ends.item_E)
        if ranks.size > 1:
            (score_E,) = ranks.total(score_E)
        most = popularity_I.amax()  # is taken off and added again: no score is above 1 meanwhile
        score_E = score_E + (popularity_I - most).to(score_E).index_select(0, ends.item_E - len(weight_U))
        power_E = (score_E / t).exp_()
        ones_N1 = power_E.new_ones(len(x_NF), 1)
        sum_U = pairs.weigh(power_E).product(ones_N1)[: len(weight_U), 0].to(weight_U.dtype)
        log_U = (sum_U / ends.count_U.clamp_min(1.0)).clamp_min(torch.finfo(torch.float32).tiny).log()
        share_U = torch.where(sum_U > 0, weight_U / sum_U, 0.0)
        share_E = power_E * share_U.index_select(0, ends.user_E)
        y_NF = pairs.weigh(share_E).product(stored_NF, dtype=x_NF.dtype)
        logs = torch.dot(weight_U, log_U)
        grad_popularity_I = None
        if ctx.needs_input_grad[3]:
            ones_N1[len(weight_U) :] = 0.0
            grad_popularity_I = pairs.weigh(share_E).product(ones_N1)[len(weight_U) :, 0] / ranks.size
        ctx.save_for_backward(y_NF, (logs - torch.dot(share_E, score_E) / t) / ranks.size, grad_popularity_I)
        return (t * logs + most.to(logs) * weight_U.sum()) / ranks.size

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y_NF, grad_t, grad_popularity_I = ctx.saved_tensors
        grad_added_I = None if grad_popularity_I is None else grad_popularity_I * grad
        return y_NF * grad, grad_t * grad, None, grad_added_I, *[None] * 4
