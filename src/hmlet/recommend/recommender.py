"""A finished run that recommends: the users' own ids go in and come out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from hmlet.data import Vocabulary
from hmlet.data.inputs import Frame, as_pairs
from hmlet.data.interactions import Id
from hmlet.errors import ConfigError
from hmlet.graph import training_graph
from hmlet.ranking.evaluation import KNOWN, block_size, rank_blocks, seen_items
from hmlet.ranking.scoring import Histories, rows_of
from hmlet.ranking.top_k import Indices, Lists, allowed_items, similar, similar_histories, top_k
from hmlet.recommend.answers import (
    Embeddings,
    Neighbourhoods,
    Neighbours,
    Recommendation,
    Recommendations,
    ScoredItem,
    ScoredUser,
    SimilarItems,
    SimilarUsers,
    TopN,
    list_schema,
    ranked_schema,
    ranked_table,
    scored_items,
)
from hmlet.recommend.explanation import Explanation, explanation
from hmlet.recommend.foldin import FoldIn
from hmlet.recommend.histories import HistoryFold
from hmlet.recommend.naming import named_user
from hmlet.runs.finished import FinishedRun, list_length

PREDICTED = 65_536  # pairs that are scored together


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
    ) -> Recommendations:
        """The top-k of users; items of the mask's parts are left out. `allow` and `deny` are lists of items."""
        indices = self.data.users.indices(users).astype(np.int64)
        found = self.lists_of(indices, list_length(k), self.allowed(allow, deny), mask)
        return Recommendations(found, ranked_schema(self.data, named=True))

    def lists_of(
        self, users: Indices, k: int, allowed_I: Tensor | None = None, mask: str = KNOWN
    ) -> list[Recommendation]:
        """What `recommend` answers, for users by their indices."""
        ids, lists = self.data.users.ids_at(users), self._items(self.top(users, k, allowed_I, mask))
        return [{"user": user, "items": items} for user, items in zip(ids, lists, strict=True)]

    def top(self, users: Indices, k: int, allowed_I: Tensor | None = None, mask: str = KNOWN) -> Lists:
        """The same with indices of items, and without names."""
        (everyone, scorer), seen = self.scored, seen_items(self.data, mask)
        if len(users) <= block_size(scorer.n_items, "cpu"):
            return top_k(rows_of(everyone, users), scorer, k, seen.rows(users), allowed_I).filled()
        return Lists.joined([each.filled() for _, each in rank_blocks(everyone, scorer, users, k, seen, allowed_I)])

    def recommend_new(
        self,
        item_lists: Iterable[Iterable[Id]],
        k: int = 20,
        *,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> Recommendations:
        """The top-k of people the model has never seen, each given by the items it has; these are left out."""
        lists = [self.data.items.indices(each).astype(np.int64) for each in item_lists]
        found = self.lists_of_new(lists, list_length(k), self.allowed(allow, deny))
        schema = list_schema({"newcomer": pa.int64()}, "item", self.data.items)
        return Recommendations(({"items": items} for items in found), schema)

    def lists_of_new(
        self, item_lists: Iterable[Indices], k: int, allowed_I: Tensor | None = None
    ) -> list[list[ScoredItem]]:
        """What `recommend_new` answers, for people given by the indices of their items."""
        lists = [np.unique(each) for each in item_lists]
        return list(self._items(top_k(self.fold_in.users(lists), self.scored[1], k, lists, allowed_I).filled()))

    def recommend_all(
        self,
        k: int = 20,
        mask: str = KNOWN,
        *,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> TopN:
        """The top-k of every user, in memory; `export` writes them to a file of any size."""
        seen, allowed_I = seen_items(self.data, mask), self.allowed(allow, deny)
        blocks = rank_blocks(*self.scored, np.arange(self.data.n_users), list_length(k), seen, allowed_I)
        tables = [ranked_table(self.data, block, ranked, named=True) for block, ranked in blocks]
        none = ranked_schema(self.data, named=True).empty_table()
        return TopN(pa.concat_tables([none, *tables]), self.data.items)

    def predict(self, pairs: Frame | Iterable[tuple[Id, Id]]) -> npt.NDArray[np.float64]:
        """The score of each (user, item) pair, higher for items that the user is more likely to want.

        Pairs are tuples, the rows of an array, or a frame with the columns user and item. Scores order the items of one
        user; they are no ratings.
        """
        users, items = as_pairs(pairs)
        user_P = self.data.users.indices(users).astype(np.int64)
        item_P = self.data.items.indices(items).astype(np.int64)
        everyone, scorer = self.scored
        found = [np.empty(0)]
        for start in range(0, len(user_P), PREDICTED):
            block = slice(start, start + PREDICTED)
            some = rows_of(everyone, user_P[block])
            found.append(np.asarray(scorer.exact(some, np.arange(len(some)), item_P[block])))
        return np.concatenate(found)

    def embeddings(self) -> Embeddings:
        """The factors of all users and items, whose dot products are the scores, as arrays or a frame."""
        if self.directory.item_weights() is not None:
            raise ConfigError(
                f"{self.record.model} scores by item-item weights and has no embeddings", "use recommend or predict"
            )
        users_UF, items_IF = self.factors
        return Embeddings(users_UF.cpu().numpy(), items_IF.cpu().numpy(), self.data.users, self.data.items)

    @overload
    def similar_items(self, item: Id, k: int = 20) -> Neighbours[ScoredItem]: ...  # type: ignore[overload-overlap]
    @overload
    def similar_items(self, item: Iterable[Id], k: int = 20) -> Neighbourhoods[SimilarItems]: ...
    def similar_items(self, item: Id | Iterable[Id], k: int = 20) -> object:
        """The items whose factors point most nearly the same way, with the cosine as their score.

        Of an item-item model: the items that this one speaks for most, with its weights as their scores. For a list of
        items the answer is a list.
        """
        everyone, scorer = self.scored
        rows, k = _rows(self.data.items, item), list_length(k)
        if isinstance(everyone, Histories):
            ranked = top_k(Histories(rows, torch.arange(len(rows) + 1)), scorer, k, list(rows.numpy()[:, None]))
        else:
            ranked = similar(self.directions[1], rows, k)
        lists = list(self._items(ranked.filled()))
        if _is_one(item):
            return Neighbours(lists[0], "item", list_schema({}, "item", self.data.items))
        ids = [self.data.items.id(at) for at in rows.tolist()]
        found: list[SimilarItems] = [{"item": each, "items": items} for each, items in zip(ids, lists, strict=True)]
        return Neighbourhoods(found, "item", _pair_schema(self.data.items))

    @overload
    def similar_users(self, user: Id, k: int = 20) -> Neighbours[ScoredUser]: ...  # type: ignore[overload-overlap]
    @overload
    def similar_users(self, user: Iterable[Id], k: int = 20) -> Neighbourhoods[SimilarUsers]: ...
    def similar_users(self, user: Id | Iterable[Id], k: int = 20) -> object:
        """The users whose factors (histories, of an item-item model) have the largest cosine, which is the score."""
        users, everyone = self.data.users, self.scored[0]
        rows, k = _rows(users, user), list_length(k)
        by_history = isinstance(everyone, Histories)
        ranked = similar_histories(everyone, rows, k) if by_history else similar(self.directions[0], rows, k)
        lists: list[list[ScoredUser]] = [
            [{**named_user(users, at), "score": score} for at, score in zip(indices, scores, strict=True)]
            for indices, scores in ranked.filled().each()
        ]
        if _is_one(user):
            return Neighbours(lists[0], "user", list_schema({}, "user", users))
        ids = [users.id(at) for at in rows.tolist()]
        found: list[SimilarUsers] = [{"user": each, "users": near} for each, near in zip(ids, lists, strict=True)]
        return Neighbourhoods(found, "user", _pair_schema(users))

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

    def _items(self, lists: Lists) -> Iterator[list[ScoredItem]]:
        """Each list's items. All ids are looked up at once, which is much faster than list by list."""
        found = iter(scored_items(self.data.items, lists.items, lists.scores.tolist()))
        return (list(islice(found, length)) for length in lists.lengths.tolist())


def _pair_schema(vocabulary: Vocabulary) -> pa.Schema:
    """The columns of those that are similar to several."""
    return list_schema({vocabulary.kind: vocabulary.ids.type}, "similar", vocabulary)


def _is_one(wanted: object) -> bool:
    """Whether it is a single id, such as a number of NumPy, and not a list of them."""
    return isinstance(wanted, str) or not isinstance(wanted, Iterable)


def _rows(vocabulary: Vocabulary, wanted: Id | Iterable[Id]) -> Tensor:
    ids = cast("Iterable[Id]", [wanted] if _is_one(wanted) else wanted)
    return torch.from_numpy(vocabulary.indices(ids).astype(np.int64))
