"""What a run answers: lists with the users' own ids, which also become frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NotRequired, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hmlet.data import Dataset, Vocabulary
from hmlet.data.interactions import Id
from hmlet.ranking.top_k import Ranked
from hmlet.recommend.naming import NamedItem, NamedUser
from hmlet.system.frames import Framed


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


class SimilarItems(TypedDict):
    """The items most like one of them."""

    item: Id
    items: list[ScoredItem]


class SimilarUsers(TypedDict):
    """The users most like one of them."""

    user: Id
    users: list[ScoredUser]


Scored = TypeVar("Scored", bound=ScoredItem | ScoredUser)
Similar = TypeVar("Similar", bound=SimilarItems | SimilarUsers)


class Recommendations(list[Recommendation], Framed):
    """The best items of several users. As a frame: user, item, rank from 1, score, and the item's name if it has one.

    Newcomers have no ids; their column `newcomer` counts them from 0.
    """

    def __init__(self, found: Iterable[Recommendation], schema: pa.Schema) -> None:
        super().__init__(found)
        self.schema = schema

    def __repr__(self) -> str:
        return f"<Recommendations for {len(self):,} users, {sum(len(each['items']) for each in self):,} rows>"

    def to_arrow(self) -> pa.Table:
        who = self.schema.names[0]
        lists = [({who: each.get("user", number)}, each["items"]) for number, each in enumerate(self)]
        return _flat(lists, "item", self.schema)


class Neighbours(list[Scored], Framed, Generic[Scored]):
    """The nearest items or users of one of them, nearest first. As a frame: item or user, rank from 1, score, name."""

    def __init__(self, found: Iterable[Scored], kind: str, schema: pa.Schema) -> None:
        super().__init__(found)
        self.kind, self.schema = kind, schema

    def __repr__(self) -> str:
        return f"<{len(self)} similar {self.kind}s>"

    def to_arrow(self) -> pa.Table:
        return _flat([({}, list(self))], self.kind, self.schema)


class Neighbourhoods(list[Similar], Framed, Generic[Similar]):
    """The nearest items or users of several. As a frame: item, similar, rank from 1, score, name of the similar one."""

    def __init__(self, found: Iterable[Similar], kind: str, schema: pa.Schema) -> None:
        super().__init__(found)
        self.kind, self.schema = kind, schema

    def __repr__(self) -> str:
        return f"<Similar {self.kind}s of {len(self)}>"

    def to_arrow(self) -> pa.Table:
        lists = []
        for each in self:
            found: Mapping[str, list[dict[str, object]]] = each  # type: ignore[assignment]  # of either kind
            similar = [{**row, "similar": row[self.kind]} for row in found[f"{self.kind}s"]]
            lists.append(({self.kind: found[self.kind]}, similar))
        return _flat(lists, "similar", self.schema)


def list_schema(keys: Mapping[str, pa.DataType], found: str, vocabulary: Vocabulary) -> pa.Schema:
    """The columns of lists: their keys, what was found, its rank and score, and its name if there are names."""
    columns = {**keys, found: vocabulary.ids.type, "rank": pa.int32(), "score": pa.float64()}
    return pa.schema(columns if vocabulary.names is None else {**columns, "name": pa.string()})


def _flat(
    lists: Sequence[tuple[Mapping[str, object], Sequence[Mapping[str, object]]]], found: str, schema: pa.Schema
) -> pa.Table:
    """Lists under their keys as rows."""
    rows = [
        {**key, found: row[found], "rank": rank, "score": row["score"], "name": row.get("name")}
        for key, each in lists
        for rank, row in enumerate(each, 1)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


# -- everybody ----------------------------------------------------------------------------------------------------


class TopN(Framed):
    """The best items of every user, kept as columns: user, item, rank from 1, score, and the item's name if it has one.

    Iterating gives each user's.
    """

    def __init__(self, table: pa.Table, items: Vocabulary) -> None:
        self._table, self._items = table, items

    def to_arrow(self) -> pa.Table:
        return self._table

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._table)

    def __iter__(self) -> Iterator[Recommendation]:
        first = np.flatnonzero(self._table["rank"].to_numpy() == 1)
        for start, end in zip(first, [*first[1:], len(self)], strict=True):
            rows = self._table.slice(start, end - start).to_pylist()
            indices = self._items.indices(row["item"] for row in rows)
            items = scored_items(self._items, indices.tolist(), [row["score"] for row in rows])
            yield {"user": rows[0]["user"], "items": items}

    def __repr__(self) -> str:
        return f"<TopN of {len(self):,} rows>"


def ranked_schema(data: Dataset, *, named: bool = False) -> pa.Schema:
    """The columns of ranked lists: ids as the data set has them, and the items' names if they are `named`."""
    items = data.items if named else replace(data.items, names=None)
    return list_schema({"user": data.users.ids.type}, "item", items)


def ranked_table(data: Dataset, block: npt.NDArray[np.int64], ranked: Ranked, *, named: bool = False) -> pa.Table:
    """A block's rows in order of user and rank; places that no item fills are left out."""
    lists, schema = ranked.filled(), ranked_schema(data, named=named)
    items, ends = pa.array(lists.items), lists.lengths.cumsum().repeat(lists.lengths)
    columns = [
        data.users.ids.take(pa.array(block.repeat(lists.lengths))),
        data.items.ids.take(items),
        pa.array(np.arange(1, len(items) + 1) - ends + lists.lengths.repeat(lists.lengths), pa.int32()),
        pa.array(lists.scores),
    ]
    if named and data.items.names is not None:
        columns.append(data.items.names.take(items))
    return pa.Table.from_arrays(columns, schema=schema)


def scored_items(
    items: Vocabulary, indices: Sequence[int] | npt.NDArray[np.int64], scores: Sequence[float]
) -> list[ScoredItem]:
    """Items by their own ids, with their names if there are any, and their scores."""
    ids, names = items.ids_at(indices), items.names_at(indices)
    if names is None:
        return [{"item": item, "score": score} for item, score in zip(ids, scores, strict=True)]
    named = zip(ids, names, scores, strict=True)
    return [{"item": item, "name": name, "score": score} for item, name, score in named]


# -- numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(Framed):
    """The factors of users (U × F) and items (I × F), whose dot products are the scores, and the ids of their rows."""

    users: npt.NDArray[np.float32]
    items: npt.NDArray[np.float32]
    user_ids: Vocabulary
    item_ids: Vocabulary

    def __repr__(self) -> str:
        sides = f"{len(self.users):,} users and {len(self.items):,} items"
        return f"<Embeddings of {sides}, {self.users.shape[1]} numbers each>"

    def to_arrow(self) -> pa.Table:
        """Columns side, id (as text) and embedding (a list of numbers)."""
        sides = []
        for ids, rows in ((self.user_ids, self.users), (self.item_ids, self.items)):
            offsets = pa.array(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int64))
            embedding = pa.LargeListArray.from_arrays(offsets, pa.array(rows.reshape(-1)))
            side = pa.array([ids.kind] * len(ids))
            sides.append(pa.table({"side": side, "id": ids.ids.cast(pa.string()), "embedding": embedding}))
        return pa.concat_tables(sides)
