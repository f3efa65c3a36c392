"""What a score is: the dot product or the cosine of two factors, and what the item's popularity adds.

The loss decides it (`LossConfig.scoring`), and models know nothing of it. While a model is trained, popularity is an
offset that the loss adds for each item. In everything that leaves training it is one more column of the factors, 1 for
users, so that every score is a dot product.

Legend: U users, I items, B new items, F factor size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hmlet.graph import Graph
from hmlet.graph.layers import Layers, Similarity
from hmlet.models.base import NodeTensor


class Scoring(NamedTuple):
    """What the loss decides of scores."""

    similarity: Similarity = "dot"
    popularity_weight: float = 0.0  # π
    popularity_learned: bool = False  # whether training starts from that, and learns a number for each item

    @property
    def with_popularity(self) -> bool:
        """Whether an item's popularity adds to its scores."""
        return self.popularity_weight > 0 or self.popularity_learned

    def directions(self, factors_XF: Tensor) -> Tensor:
        """Finished factors without the column for popularity: they say how alike two users or two items are."""
        return factors_XF[:, :-1].contiguous() if self.with_popularity else factors_XF

    def from_popularity(self, item_F: Tensor) -> float:
        """What popularity adds to the scores of an item, from its finished factor."""
        return float(item_F[-1]) if self.with_popularity else 0.0


BY_PRODUCT = Scoring()
"""Scores that are the dot products of the model's own factors."""


class Scores(nn.Module):
    """What a model's scores are, with what popularity adds to each item's: trained, if the loss learns it."""

    popularity: Tensor | None  # I

    def __init__(self, scoring: Scoring, popularity_I: Tensor | None = None, precision: str = "float32") -> None:
        super().__init__()
        self.scoring, self.precision = scoring, precision
        if scoring.popularity_learned:
            self.popularity = None if popularity_I is None else nn.Parameter(popularity_I)
        else:
            self.register_buffer("popularity", popularity_I)

    @classmethod
    def start(cls, scoring: Scoring, graph: Graph, precision: str = "float32") -> Scores:
        """As training begins; `precision` is that of what a loss multiplies (train.precision)."""
        if not scoring.with_popularity:
            return cls(scoring, None, precision)
        count_I = torch.from_numpy(graph.degree[graph.n_users :])
        return cls(scoring, popularity_scores(scoring.popularity_weight, count_I, count_I), precision)

    @classmethod
    def of_run(cls, scoring: Scoring, items_IF: Tensor) -> Scores:
        """As the finished factors of a run's items have them."""
        return cls(scoring, items_IF[:, -1] if scoring.with_popularity else None)

    def forward(self, layers: Layers) -> Layers:
        """A model's layers with what a loss and a ranking have to know of scores."""
        scoring = self.scoring
        return replace(layers, similarity=scoring.similarity, popularity_I=self.popularity, precision=self.precision)

    # -- the column of finished factors ---------------------------------------------------------------------------

    def of_users(self, users_UF: Tensor) -> Tensor:
        """Users' factors with the column for popularity, where it adds to scores."""
        return users_UF if self.popularity is None else _with(users_UF, users_UF.new_ones(len(users_UF)))

    def of_items(self, items_IF: Tensor) -> Tensor:
        """The same of all items."""
        return items_IF if self.popularity is None else _with(items_IF, self.popularity)

    def of_new_items(self, items_BF: Tensor, count_B: Tensor, count_I: Tensor) -> Tensor:
        """The same of new items with so many interactions each; `count_I` are those of all trained items."""
        if self.popularity is None:
            return items_BF
        weight = self.scoring.popularity_weight
        start_B, start_I = (popularity_scores(weight, count, count_I) for count in (count_B, count_I))
        return _with(items_BF, learned_popularity(start_B, start_I, self.popularity))

    # -- nodes ----------------------------------------------------------------------------------------------------

    def node_tensors(self, n_users: int, n_items: int) -> dict[str, NodeTensor]:
        """As a model's."""
        redrawn = not self.scoring.popularity_learned
        return {name: NodeTensor((n_items,), "items", redrawn) for name in self.state_dict()}

    @torch.no_grad()
    def grow(self, learned: Mapping[str, Tensor]) -> None:
        """Take over what was learned of the first items; what is new of it follows from these and from the start."""
        if isinstance(self.popularity, nn.Parameter):
            start_I, old_I = self.popularity.clone(), learned["popularity"].to(self.popularity)
            n_old = len(old_I)
            self.popularity[n_old:] = learned_popularity(start_I[n_old:], start_I[:n_old], old_I)
            self.popularity[:n_old] = old_I


def _with(factors_XF: Tensor, column_X: Tensor) -> Tensor:
    return torch.cat([factors_XF, column_X[:, None].to(factors_XF)], dim=1)


def popularity_scores(factor: float, count_B: Tensor, count_I: Tensor) -> Tensor:
    """What popularity adds to the scores of items with so many training interactions each: B.

    π ln(1 + d) less its mean over the training interactions of all items I: the same order and the same softmax as
    without the mean, and nothing for the item of a typical interaction.
    """
    known_I = count_I.double()
    mean = (known_I @ known_I.log1p()) / known_I.sum().clamp_min(1.0)
    return (factor * (count_B.double().log1p() - mean)).float()


def learned_popularity(start_B: Tensor, start_I: Tensor, learned_I: Tensor) -> Tensor:
    """What popularity adds to the scores of new items: B.

    It is on the line that fits best what training has made of the old items' start; of slope 1 where all start alike.
    """
    x_I, y_I = start_I.double(), learned_I.double()
    around_I = x_I - x_I.mean()
    spread = around_I @ around_I
    slope = torch.where(spread > 1e-12, (around_I @ y_I) / spread.clamp_min(1e-12), 1.0)
    return (y_I.mean() + slope * (start_B.double() - x_I.mean())).float()
