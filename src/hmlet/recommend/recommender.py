"""A finished run that recommends: the users' own ids go in and come out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor

from hmlet.data import Vocabulary
from hmlet.data.interactions import Id
from hmlet.graph import training_graph
from hmlet.ranking.evaluation import KNOWN, rank_blocks, seen_items
from hmlet.ranking.scoring import Histories
from hmlet.ranking.top_k import NO_ITEM, Ranked, allowed_items, similar, similar_histories, top_k
from hmlet.recommend.explanation import Explanation, explanation
from hmlet.recommend.foldin import FoldIn
from hmlet.recommend.histories import HistoryFold
from hmlet.recommend.naming import NamedItem, NamedUser, named_user
from hmlet.runs.finished import FinishedRun


class ScoredItem(NamedItem):
    """An item and its score."""

    score: float


class ScoredUser(NamedUser):
    """A user and how similar they are."""

    score: float


class Recommendation(TypedDict):
    """The best items of one user, best first; a newcomer has no id."""

    user: NotRequired[Id]
    items: list[ScoredItem]


class Recommender(FinishedRun):
    """A finished run, and what its factors recommend."""

    def recommend(
        self,
        users: Iterable[Id],
        k: int = 20,
        mask: str = KNOWN,
        *,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> list[Recommendation]:
        """The top-k of users; items of the mask's parts are left out. `allow` and `deny` are lists of items."""
        indices = self.data.users.indices(users).astype(np.int64)
        seen, allowed_I = seen_items(self.data, mask), self.allowed(allow, deny)
        answers: list[Recommendation] = []
        for block, ranked in rank_blocks(*self.scored, indices, k, seen, allowed_I):
            for user, items in zip(block, self._items(ranked), strict=True):
                answers.append({"user": self.data.users.id(int(user)), "items": items})
        return answers

    def recommend_new(
        self,
        item_lists: Iterable[Iterable[Id]],
        k: int = 20,
        *,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> list[Recommendation]:
        """The top-k of people the model has never seen, each given by the items it has; these are left out."""
        lists = [np.unique(self.data.items.indices(each)) for each in item_lists]
        newcomers = self.fold_in.users(lists)
        rows = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        own = torch.from_numpy(rows), torch.from_numpy(np.concatenate([*lists, np.empty(0)]).astype(np.int64))
        ranked = top_k(newcomers, self.scored[1], k, own, self.allowed(allow, deny))
        return [{"items": items} for items in self._items(ranked)]

    def similar_items(self, item: Id, k: int = 20) -> list[ScoredItem]:
        """The items whose factors point most nearly the same way, with the cosine as their score.

        Of an item-item model: the items that this one speaks for most, with its weights as their scores.
        """
        row, (everyone, scorer) = _row(self.data.items, item), self.scored
        if isinstance(everyone, Histories):
            ranked = top_k(Histories(row, torch.tensor([0, 1])), scorer, k, (torch.zeros_like(row), row))
        else:
            ranked = similar(self.factors[1], row, k)
        (found,) = self._items(ranked)
        return found

    def similar_users(self, user: Id, k: int = 20) -> list[ScoredUser]:
        """The users whose factors (histories, of an item-item model) have the largest cosine, which is the score."""
        users, everyone = self.data.users, self.scored[0]
        nearest = similar_histories if isinstance(everyone, Histories) else similar
        ((indices, scores),) = _filled(nearest(everyone, _row(users, user), k))
        return [{**named_user(users, at), "score": score} for at, score in zip(indices, scores, strict=True)]

    def explain(self, user: Id, item: Id) -> Explanation:
        """Why an item is recommended to a user: the score by layer, the gates' choices, the items that carried it."""
        (at_user,), (at_item,) = self.data.users.indices([user]), self.data.items.indices([item])
        return explanation(self.fold_in, self.data, int(at_user), int(at_item))

    @cached_property
    def fold_in(self) -> FoldIn | HistoryFold:
        """What turns the items of a newcomer into factors, or into a history."""
        everyone, scorer = self.scored
        if isinstance(everyone, Histories):
            return HistoryFold(training_graph(self.data), scorer)
        return FoldIn.open(self.directory, self.data)

    def allowed(self, allow: Iterable[Id] | None, deny: Iterable[Id] | None) -> Tensor | None:
        """Which items may be recommended, from lists of ids; None is all."""
        chosen = [None if ids is None else self.data.items.indices(ids).astype(np.int64) for ids in (allow, deny)]
        return allowed_items(self.data.n_items, *chosen)

    def _items(self, ranked: Ranked) -> Iterator[list[ScoredItem]]:
        return (scored_items(self.data.items, indices, scores) for indices, scores in _filled(ranked))


def scored_items(items: Vocabulary, indices: Sequence[int], scores: Sequence[float]) -> list[ScoredItem]:
    """Items by their own ids, with their names if there are any, and their scores."""
    ids, names = items.ids_at(indices), items.names_at(indices)
    if names is None:
        return [{"item": item, "score": score} for item, score in zip(ids, scores, strict=True)]
    named = zip(ids, names, scores, strict=True)
    return [{"item": item, "name": name, "score": score} for item, name, score in named]


def _row(vocabulary: Vocabulary, wanted: Id) -> Tensor:
    return torch.from_numpy(vocabulary.indices([wanted]).astype(np.int64))


def _filled(ranked: Ranked) -> Iterator[tuple[list[int], list[float]]]:
    """Each row's indices and scores, without the places that no item fills."""
    for indices, scores in zip(ranked.items_BK.tolist(), ranked.scores_BK.tolist(), strict=True):
        kept = [at for at, index in enumerate(indices) if index != NO_ITEM]
        yield [indices[at] for at in kept], [scores[at] for at in kept]
