"""The Python twin of the command line: a finished run, and what one asks of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmlet import training
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.data.interactions import Id
from hmlet.errors import RunError
from hmlet.evaluation import MASKS, Evaluation, evaluate, rank_blocks
from hmlet.metrics import METRICS
from hmlet.ranking import NO_ITEM
from hmlet.runs import RunDirectory


def fit(data: Dataset, recipe: Recipe | str = "hmlet-end", out: Path | str = "run", **options: Any) -> Run:
    """Train a recipe (or a model by its name, with the default recipe) and open the run: `hmlet train`."""
    chosen = resolve(recipe) if isinstance(recipe, str) else recipe
    return Run(training.fit(data, chosen, out, **options))


class Run:
    """A finished run: its data, its factors, and what they recommend."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory.require_finished()

    @classmethod
    def open(cls, path: Path | str) -> Run:
        return cls(RunDirectory.open(path))

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
        where = self.directory.path / "data" if reference["reference"] == "." else reference["reference"]
        data = load(where)
        if data.fingerprint != reference["fingerprint"]:
            raise RunError(
                f"{where} has changed since {self.directory.path} was trained", "prepare it as it was, or train again"
            )
        return data

    def evaluate(self, split: str = "test", mask: str = "train", k: int = 20) -> Evaluation:
        """Full-ranking metrics; per-user values are kept in per_user.parquet, so asking again costs nothing."""
        stored = self._stored(split, mask, k)
        if stored is not None:
            return stored
        result = evaluate(self.factors, self.data, split, mask, k)
        self._store(result)
        return result

    def _stored(self, split: str, mask: str, k: int) -> Evaluation | None:
        coverage = self.record.get("coverage", {}).get(f"{split} {mask} {k}")
        if coverage is None:
            return None
        table = self.directory.read_table("per_user.parquet")
        same = pc.and_(pc.and_(pc.equal(table["split"], split), pc.equal(table["mask"], mask)), pc.equal(table["k"], k))
        rows = table.filter(same)
        values = {name: rows[name].to_numpy() for name in METRICS}
        return Evaluation(split, mask, k, rows["user"].to_numpy().astype(np.int64), values, coverage)

    def _store(self, result: Evaluation) -> None:
        count = len(result.users)
        rows = pa.table(
            {
                "split": pa.array([result.split] * count, pa.string()),
                "mask": pa.array([result.mask] * count, pa.string()),
                "k": pa.array(np.full(count, result.k, dtype=np.int32)),
                "user": pa.array(result.users.astype(np.int32)),
                **{name: pa.array(values) for name, values in result.per_user.items()},
            }
        )
        with self.directory.lock():
            if "per_user.parquet" in self.record["files"]:
                rows = pa.concat_tables([self.directory.read_table("per_user.parquet"), rows])
            self.directory.write_table("per_user.parquet", rows)
            self.record.setdefault("coverage", {})[f"{result.split} {result.mask} {result.k}"] = result.coverage
            self.directory.write_record()

    def recommend(self, users: Iterable[Id], k: int = 20, mask: str = "train+valid") -> list[dict[str, Any]]:
        """The top-k of users by their own ids; items of the mask's parts are left out."""
        users_UF, items_IF = self.factors
        indices = self.data.users.indices(users).astype(np.int64)
        answers = []
        for block, ranked in rank_blocks(users_UF, items_IF, indices, k, self.data.csr(*MASKS[mask])):
            for user, items, scores in zip(block, ranked.items_BK.tolist(), ranked.scores_BK.tolist(), strict=True):
                answers.append({"user": self.data.users.id(int(user)), "items": self._named(items, scores)})
        return answers

    def _named(self, items: list[int], scores: list[float]) -> list[dict[str, Any]]:
        vocabulary = self.data.items
        found = [(item, score) for item, score in zip(items, scores, strict=True) if item != NO_ITEM]
        if vocabulary.names is None:
            return [{"item": vocabulary.id(item), "score": score} for item, score in found]
        return [{"item": vocabulary.id(item), "name": vocabulary.name(item), "score": score} for item, score in found]
