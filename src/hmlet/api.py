"""The Python twin of the command line: a finished run, and what one asks of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset, Vocabulary
from hmlet.data.catalog import CATALOG, known_name, load
from hmlet.data.interactions import Id
from hmlet.errors import DataError, RunError
from hmlet.ranking.evaluation import KNOWN, Evaluation, evaluate, rank_blocks, seen_items
from hmlet.ranking.metrics import METRICS
from hmlet.ranking.top_k import NO_ITEM, Prepared, Ranked, allowed_items, similar, top_k
from hmlet.recommend import export
from hmlet.recommend.explanation import explanation
from hmlet.recommend.foldin import FoldIn
from hmlet.runs.directory import RunDirectory
from hmlet.system.progress import Advance, silent
from hmlet.system.ranks import ALONE, Ranks
from hmlet.training import loop as training

log = logging.getLogger(__name__)


def fit(data: Dataset | Path | str, recipe: Recipe | str = "hmlet-end", out: Path | str = "run", **options: Any) -> Run:
    """Train a recipe (or a model by its name, with its recipe for this data) and open the run: `hmlet train`.

    Data is a data set, or what DATA is to a command: a prepared directory or a named set.
    """
    if isinstance(data, str | Path):
        data = load(data)
    if not isinstance(data, Dataset):
        raise DataError(f"cannot train on a {type(data).__name__}", "make a data set of it: Dataset.from_frame(…)")
    chosen = resolve(recipe, dataset=known_name(data)) if isinstance(recipe, str) else recipe
    return Run(training.fit(data, chosen, out, **options))


class Run:
    """A finished run: its data, its factors, and what they recommend."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory.require_finished()

    @classmethod
    def open(cls, path: Path | str) -> Run:
        return cls(RunDirectory.open(path))

    def __repr__(self) -> str:
        return f"<Run {self.directory.path}: {self.record['model']} on {self.record['data']['name']}>"

    @property
    def record(self) -> dict[str, Any]:
        return self.directory.record

    @cached_property
    def recipe(self) -> Recipe:
        return self.directory.recipe()

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self.directory.metrics()

    @cached_property
    def factors(self) -> tuple[Any, Any]:
        """Tensors of users (U × F) and items (I × F)."""
        return self.directory.factors()

    @cached_property
    def gates(self) -> pa.Table:
        """node, layer, probability of the non-linear branch, nonlinear."""
        return self.directory.read_table("gates.parquet")

    @cached_property
    def data(self) -> Dataset:
        """The data set that the run was trained on, found where it was and checked by its fingerprint."""
        reference = self.record["data"]
        where = str(self.directory.path / "data") if reference["reference"] == "." else reference["reference"]
        if where not in CATALOG and not Path(where).exists():
            raise RunError(f"the data of {self.directory.path} was at {where}", "put it back, or train again")
        data = load(where)
        if data.fingerprint != reference["fingerprint"]:
            raise RunError(
                f"{where} has changed since {self.directory.path} was trained", "prepare it as it was, or train again"
            )
        return data

    def evaluate(self, split: str = "test", mask: str = "train", k: int = 20, advance: Advance = silent) -> Evaluation:
        """Full-ranking metrics; per-user values are kept in per_user.parquet, so asking again costs nothing."""
        stored = self._stored(split, mask, k)
        if stored is not None:
            return stored
        result = evaluate(self.factors, self.data, split, mask, k, advance=advance)
        try:
            self._store(result)
        except RunError as error:  # the numbers are right, wherever they can be kept
            log.warning("the evaluation is not kept in %s: %s", self.directory.path, error)
        return result

    def _stored(self, split: str, mask: str, k: int) -> Evaluation | None:
        coverage = self.record.get("coverage", {}).get(f"{split} {mask} {k}")
        if coverage is None:
            return None
        try:
            table = self.directory.read_table("per_user.parquet")
        except RunError:  # another process may be adding to it: alone, what is wrong stays wrong
            with self.directory.alone():
                table = self.directory.read_table("per_user.parquet")
        rows = table.filter(_is_of(table, split, mask, k))
        values = {name: rows[name].to_numpy() for name in METRICS}
        return Evaluation(split, mask, k, rows["user"].to_numpy().astype(np.int64), values, coverage)

    def _store(self, result: Evaluation) -> None:
        count = len(result.users)
        rows = pa.table(
            {
                "split": pa.array([result.split] * count, pa.string()),
                "mask": pa.array([result.mask] * count, pa.string()),
                "k": pa.array(np.full(count, result.k, dtype=np.int64)),
                "user": pa.array(result.users.astype(np.int32)),
                **{name: pa.array(values) for name, values in result.per_user.items()},
            }
        )
        key = f"{result.split} {result.mask} {result.k}"
        with self.directory.update():
            if key in self.record.setdefault("coverage", {}):
                return  # another process has been quicker
            if "per_user.parquet" in self.record["files"]:
                before = self.directory.read_table("per_user.parquet")
                # A process that was killed before it recorded this evaluation may have left its rows.
                before = before.filter(pc.invert(_is_of(before, result.split, result.mask, result.k)))
                rows = pa.concat_tables([before, rows], promote_options="permissive")  # k was 32 bits once
            self.directory.write_table("per_user.parquet", rows)
            self.record["coverage"][key] = result.coverage

    # -- recommendations: the users' own ids in and out -----------------------------------------------------------

    def recommend(
        self,
        users: Iterable[Id],
        k: int = 20,
        mask: str = KNOWN,
        *,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> list[dict[str, Any]]:
        """The top-k of users; items of the mask's parts are left out. `allow` and `deny` are lists of items."""
        users_UF, items_IF = self.factors
        indices = self.data.users.indices(users).astype(np.int64)
        seen, allowed_I = seen_items(self.data, mask), self._allowed(allow, deny)
        answers = []
        for block, ranked in rank_blocks(users_UF, items_IF, indices, k, seen, allowed_I, prepared=self._prepared):
            for user, items in zip(block, self._named(self.data.items, "item", ranked), strict=True):
                answers.append({"user": self.data.users.id(int(user)), "items": items})
        return answers

    def recommend_new(
        self,
        item_lists: Iterable[Iterable[Id]],
        k: int = 20,
        *,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
    ) -> list[dict[str, Any]]:
        """The top-k of people the model has never seen, each given by the items it has; these are left out."""
        lists = [np.unique(self.data.items.indices(each)) for each in item_lists]
        factors_BF = self.fold_in.users(lists)
        rows = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        own = torch.from_numpy(rows), torch.from_numpy(np.concatenate([*lists, np.empty(0)]).astype(np.int64))
        ranked = top_k(factors_BF, self.factors[1], k, own, self._allowed(allow, deny), self._prepared)
        return [{"items": items} for items in self._named(self.data.items, "item", ranked)]

    def similar_items(self, item: Id, k: int = 20) -> list[dict[str, Any]]:
        """The items whose factors point most nearly the same way, with the cosine as their score."""
        return self._similar(self.data.items, self.factors[1], item, k)

    def similar_users(self, user: Id, k: int = 20) -> list[dict[str, Any]]:
        """The users whose factors point most nearly the same way, with the cosine as their score."""
        return self._similar(self.data.users, self.factors[0], user, k)

    def explain(self, user: Id, item: Id) -> dict[str, Any]:
        """Why an item is recommended to a user: the score by layer, the gates' choices, the items that carried it."""
        (at_user,), (at_item,) = self.data.users.indices([user]), self.data.items.indices([item])
        return explanation(self.fold_in, self.data, int(at_user), int(at_item))

    def export(
        self,
        out: Path | str,
        k: int = 20,
        users: Iterable[Id] | None = None,
        mask: str = KNOWN,
        *,
        allow: Iterable[Id] | None = None,
        deny: Iterable[Id] | None = None,
        advance: Advance = silent,
        ranks: Ranks = ALONE,
    ) -> int:
        """Write the top-k of users (all of them by default) to a .parquet, .csv or .jsonl file; returns its rows."""
        chosen = None if users is None else self.data.users.indices(users).astype(np.int64)
        return export.export(self, out, k, chosen, mask, self._allowed(allow, deny), advance, ranks)

    @cached_property
    def fold_in(self) -> FoldIn:
        return FoldIn.open(self.directory, self.data)

    @cached_property
    def _prepared(self) -> Prepared:
        return Prepared.of(self.factors[1])

    def _allowed(self, allow: Iterable[Id] | None, deny: Iterable[Id] | None) -> Tensor | None:
        chosen = [None if ids is None else self.data.items.indices(ids).astype(np.int64) for ids in (allow, deny)]
        return allowed_items(self.data.n_items, *chosen)

    def _similar(self, vocabulary: Vocabulary, factors_NF: Tensor, wanted: Id, k: int) -> list[dict[str, Any]]:
        rows_B = torch.from_numpy(vocabulary.indices([wanted]).astype(np.int64))
        return self._named(vocabulary, vocabulary.kind, similar(factors_NF, rows_B, k))[0]

    @staticmethod
    def _named(vocabulary: Vocabulary, key: str, ranked: Ranked) -> list[list[dict[str, Any]]]:
        """Each row's items with their own ids, names where there are any, and scores."""

        def named(index: int, score: float) -> dict[str, Any]:
            name = {} if vocabulary.names is None else {"name": vocabulary.name(index)}
            return {key: vocabulary.id(index), **name, "score": score}

        rows = zip(ranked.items_BK.tolist(), ranked.scores_BK.tolist(), strict=True)
        return [
            [named(item, score) for item, score in zip(items, scores, strict=True) if item != NO_ITEM]
            for items, scores in rows
        ]


def _is_of(table: pa.Table, split: str, mask: str, k: int) -> pa.ChunkedArray:
    """Which rows of per_user.parquet an evaluation has."""
    return pc.and_(pc.and_(pc.equal(table["split"], split), pc.equal(table["mask"], mask)), pc.equal(table["k"], k))
