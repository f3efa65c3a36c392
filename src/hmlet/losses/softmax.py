"""Softmax: a user's item shall score high among all items.

    mean of -s(u, i) / τ + log Σ_j exp(s(u, j) / τ) over pairs of a user u and an item i of u

s is the cosine of the two factors or their dot product, and j runs over all items, i among them.

With `loss.popularity_weight` = π, an item with d training interactions scores π ln(1 + d) more, in training and in
ranking, so the factors need not hold what all users have in common. In the sum over j, an item then counts
(1 + d)^(π / τ) times. The mean of π ln(1 + d) over all interactions is taken off, which changes no order. With
`loss.popularity_learned` these additions are only the start: each item has a trained one. At the optimum of the
likelihood, every item is then expected as often as it occurs in training.

With `loss.negatives` = J the sum runs over J items, drawn uniformly and shared by the batch, and is estimated by

    exp(s(u, i) / τ) + I / J Σ_{j drawn, j ≠ i} exp(s(u, j) / τ)

whose mean over the draws is the whole sum.

Legend: B users of a batch, M of them the rank's own, P items of each, I items, J of them compared with, F factor size,
N nodes. Every rank has the whole factors of its own users and of all items that these are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from hmlet.data import Csr
from hmlet.graph import Sizes
from hmlet.graph.kernels import Own, log_sums, multiplies_bfloat16
from hmlet.graph.kernels.launching import device_kind
from hmlet.graph.layers import Layers, Similarity
from hmlet.losses.base import Batch, Loss, LossConfig, Terms
from hmlet.losses.sampling import Draw, Pairs, PairSampler
from hmlet.models import Scoring

STEEPEST = 4.0  # π / τ: beyond it, (1 + d)^(π / τ) leaves the range of floats for items that everyone has
LEAST, MOST = 0.025, 10.0  # temperatures: below the least, exponentials of cosines leave the range of floats
Temperature = Annotated[float, Field(ge=LEAST, le=MOST)]


class SoftmaxConfig(LossConfig):
    """The settings of a softmax."""

    similarity: Similarity = "cosine"
    """What a score is: the cosine of a user's and an item's factor, or their dot product."""
    temperature: Temperature = 0.1
    """τ: the smaller, the more the loss is about the items that score best."""
    temperature_end: Temperature | None = None
    """τ in the last epoch, where it moves: by the same factor each epoch."""
    temperature_learned: bool = False
    """Whether τ is a trained parameter, which starts at `temperature`."""
    popularity_weight: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """π: how much the logarithm of an item's number of training interactions adds to its scores."""
    popularity_learned: bool = False
    """Whether these additions are only where training starts: each item then has a trained one."""
    negatives: Annotated[int, Field(ge=0)] = 0
    """J, how many items a batch is compared with, drawn uniformly; 0: all items."""

    @model_validator(mode="after")
    def _one_way_to_move(self) -> SoftmaxConfig:
        if self.temperature_learned and self.temperature_end is not None:
            raise ValueError("a learned temperature has no schedule; leave temperature_end or temperature_learned out")
        least = min(self.temperature, self.temperature_end or MOST)
        if self.popularity_weight > STEEPEST * least:
            raise ValueError(f"popularity_weight is more than {STEEPEST:g} times the temperature; lower it")
        return self

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.similarity, self.popularity_weight, self.popularity_learned)

    def continued(self) -> Self:
        if self.temperature_end is None:
            return self
        return self.model_copy(update={"temperature": self.temperature_end, "temperature_end": None})


class Compared(NamedTuple):
    """A batch's scores over τ, as far as the rank has them."""

    users_MF: Tensor  # over τ
    score_MP: Tensor  # of the users' own items
    items_JF: Tensor  # that the users are compared with
    offset_J: Tensor | None  # what popularity adds to the scores of these
    log_sums: Callable[[Tensor], Tensor]  # weights w -> Σ_u w_u log Σ_j exp(s(u, j) / τ), of M users
    share: float  # J / I
    temperature: Tensor
    dtype: torch.dtype  # of blocks of scores


class Tempered(Loss[Batch]):
    """A loss of scores over a temperature, which is fixed, moves with the epochs, or is trained."""

    Config = SoftmaxConfig
    config: SoftmaxConfig
    log_temperature: Tensor

    def __init__(self, config: SoftmaxConfig) -> None:
        super().__init__(config)
        self.config = config
        start = torch.tensor(math.log(config.temperature))
        if config.temperature_learned:
            self.log_temperature = nn.Parameter(start)
        else:
            self.register_buffer("log_temperature", start)

    def enter(self, progress: float) -> None:
        if self.config.temperature_end is not None:
            first, last = math.log(self.config.temperature), math.log(self.config.temperature_end)
            self.log_temperature.fill_(first + progress * (last - first))

    def temperature(self) -> Tensor:
        """τ as it is now, within its bounds."""
        with torch.no_grad():
            self.log_temperature.clamp_(math.log(LEAST), math.log(MOST))
        return self.log_temperature.exp()

    def _log_sums(
        self,
        layers: Layers,
        users_MF: Tensor,
        items_JF: Tensor,
        weights_M: Tensor,
        own: Own | None = None,
        *,
        n_items: int,
        offset_J: Tensor | None,
    ) -> Tensor:
        """Σ_u w_u log Σ_j exp of users' scores over τ, as `log_sums` has it, in blocks of the layers' type.

        Where the items are a sample of `n_items`, each stands for others. `offset_J` is what popularity adds.
        """
        counts_J = None if offset_J is None else offset_J.exp()
        if len(items_JF) != n_items:
            whole_J = items_JF.new_ones(len(items_JF)) if counts_J is None else counts_J
            counts_J = whole_J * (n_items / len(items_JF))
        dtype, bounded = self._block_type(layers, users_MF), layers.similarity == "cosine"
        return log_sums(users_MF, items_JF, weights_M, dtype=dtype, bounded=bounded, own=own, counts_J=counts_J)

    def _block_type(self, layers: Layers, factors: Tensor) -> torch.dtype:
        """The type of a block of scores: the layers', or bfloat16 if the recipe asks for it and a CPU multiplies it."""
        narrow = layers.precision == "bfloat16" and factors.dtype == torch.float32
        if narrow and multiplies_bfloat16(torch.device(device_kind(factors))):
            return torch.bfloat16
        return stored_type(layers, factors)


def stored_type(layers: Layers, factors: Tensor) -> torch.dtype:
    """What the layers are stored in: bfloat16 on CUDA with train.precision = "bfloat16", or the factors' type."""
    narrow = layers.embeddings_ND[-1].dtype == torch.bfloat16
    return torch.bfloat16 if narrow else factors.dtype


class Softmax(Tempered[Pairs]):
    """The softmax over all items, or over a sample of them; what its variants share with it."""

    name = "softmax"
    counts_own = True  # whether a sample of items is completed by the user's own

    @property
    def positives(self) -> int:
        """P, how many items of a user a batch has."""
        return 1

    def sampler(self, train: Csr, n_items: int, device: torch.device, draw: Draw) -> PairSampler:
        return PairSampler(train, n_items, device, draw, positives=self.positives, others=self.config.negatives)

    def blank(self, size: int, sizes: Sizes, device: str) -> Pairs:
        users, others = PairSampler.users_of(size, self.positives), self.config.negatives
        with torch.device("meta"):
            others_J = torch.empty(others, dtype=torch.int64) if others else None
            user_B = torch.empty(users, dtype=torch.int64)
            return Pairs(user_B, torch.empty(users, self.positives, dtype=torch.int64), others_J)

    def forward(self, layers: Layers, batch: Pairs) -> Terms:
        own = self._value(self._compare(layers, batch)) / len(batch.user)
        rows_RD = layers.initial_ND.index_select(0, batch.nodes(layers.n_users))
        users_BD, items_BD = torch.split(rows_RD, [len(batch.user), batch.positive.numel()])
        norms = users_BD.square().sum() / len(users_BD) + items_BD.square().sum() / len(items_BD)
        return Terms(*layers.ranks.total(own, norms))

    def _value(self, compared: Compared) -> Tensor:
        """The loss, added up over the rank's own users."""
        score_M = compared.score_MP[:, 0]
        return compared.log_sums(torch.ones_like(score_M)) - score_M.sum()

    def _compare(self, layers: Layers, batch: Pairs) -> Compared:
        temperature, ranks = self.temperature(), layers.ranks
        users_BF, table_TF, place_BP, count = _factors(layers, batch)
        exact = torch.promote_types(users_BF.dtype, torch.float32)  # what is added up over a batch
        users_MF = ranks.rows(users_BF).to(exact) / temperature
        table_TF = ranks.gather(ranks.rows(table_TF), len(table_TF)).to(exact)
        mine = ranks.own_rows(len(batch.user))
        positive_MPF = table_TF.index_select(0, place_BP[mine].flatten()).view(-1, self.positives, users_MF.shape[1])
        score_MP = (users_MF[:, None] * positive_MPF).sum(dim=2)
        offset_J = None
        if layers.popularity_I is not None:
            offset_I = layers.popularity_I.to(exact) / temperature
            score_MP = score_MP + offset_I[batch.positive[mine]]
            offset_J = offset_I if batch.others is None else offset_I[batch.others]
        completing = None
        if batch.others is not None and self.counts_own:
            completing = Own(score_MP[:, 0], batch.positive[mine, 0], batch.others)

        n_items = layers.n_items
        items_JF = table_TF if count == len(table_TF) else table_TF[:count]  # a slice of all would copy its gradient
        sums = partial(self._log_sums, layers, users_MF, items_JF, own=completing, n_items=n_items, offset_J=offset_J)
        dtype = self._block_type(layers, users_MF)
        return Compared(users_MF, score_MP, items_JF, offset_J, sums, count / n_items, temperature, dtype)


def _factors(layers: Layers, batch: Pairs) -> tuple[Tensor, Tensor, Tensor, int]:
    """The factors of users (B × F) and of items (T × F), where each user's own items are among these (B × P), and how
    many of them, the first ones, are those that users are compared with."""
    if batch.others is None:
        users_UF, items_IF = torch.split(layers.factors(), [layers.n_users, layers.n_items])
        return users_UF.index_select(0, batch.user), items_IF, batch.positive, len(items_IF)
    count, own = len(batch.others), batch.positive.numel()
    items_T = torch.cat([batch.others, batch.positive.flatten()])
    factors_RF = layers.factors(torch.cat([batch.user, layers.n_users + items_T]))
    users_BF, items_TF = torch.split(factors_RF, [len(batch.user), count + own])
    place_BP = torch.arange(count, count + own, device=items_T.device).view_as(batch.positive)
    return users_BF, items_TF, place_BP, count
