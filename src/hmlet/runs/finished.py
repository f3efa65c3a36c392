"""A finished run: what it was trained on, what it learned, and how good that is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Self, overload

import pyarrow as pa
import torch
from torch import Tensor

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.data.catalog import CATALOG, load
from hmlet.data.record import is_prepared
from hmlet.errors import ConfigError, RunError
from hmlet.ranking.evaluation import Evaluation, Evaluations, evaluate_at
from hmlet.ranking.scoring import Scored, factor_scorer, scored_by_weights
from hmlet.runs.choices import GATE_COLUMNS, GATES, Choices
from hmlet.runs.directory import DATA, IDS, Epoch, RunDirectory
from hmlet.runs.evaluations import store_evaluation, stored_evaluation
from hmlet.runs.record import RunRecord
from hmlet.system.frames import html_table
from hmlet.system.progress import Advance, silent
from hmlet.system.spelling import option

log = logging.getLogger(__name__)


class FinishedRun:
    """A finished run; its files are read when they are needed, and once."""

    def __init__(self, directory: RunDirectory | Path | str, data: Path | str | None = None) -> None:
        opened = directory if isinstance(directory, RunDirectory) else RunDirectory.open(directory)
        self.directory = opened.require_finished()
        self.data_now = data

    @classmethod
    def open(cls, path: Path | str, data: Path | str | None = None) -> Self:
        """The finished run in a directory: as `Run(path)`. `data` says where its data is, if it has no copy."""
        return cls(path, data)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory.path}: {self.record.model} on {self.record.data.name}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the epoch that was kept, and its validation metrics."""
        record = self.record
        numbers = {"best epoch": record.best_epoch, "epochs": record.epochs, **(record.valid or {})}
        return html_table(list(numbers), [list(numbers.values())], escape(repr(self)))

    @property
    def record(self) -> RunRecord:
        return self.directory.record

    @cached_property
    def recipe(self) -> Recipe:
        return self.directory.recipe()

    @cached_property
    def metrics(self) -> list[Epoch]:
        """One row per epoch: its loss and, if it was validated, its validation metrics."""
        return self.directory.metrics()

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Tensors of users (U × F) and items (I × F); an item-item model has none."""
        return self.directory.factors()

    @cached_property
    def directions(self) -> tuple[Tensor, Tensor]:
        """The factors without what popularity adds to scores."""
        return self.directory.directions(self.factors)

    @cached_property
    def scored(self) -> Scored:
        """What ranks: the users' factors and the items', or the users' histories and the item-item weights."""
        weights = self.directory.item_weights()
        if weights is None:
            users_UF, items_IF = self.factors
            return users_UF, factor_scorer(items_IF, repeatedly=True)
        return scored_by_weights(weights, self.data.csr("train"))

    @cached_property
    def gates(self) -> pa.Table:
        """node, layer, probability of the non-linear branch, nonlinear."""
        return self.directory.read_table(GATES, GATE_COLUMNS)

    @cached_property
    def choices(self) -> Choices | None:
        """What the gates chose for each node; None if the model has no gates."""
        if GATES not in self.record.files:
            return None
        return Choices.from_table(self.gates, sum(self.directory.nodes), str(self.directory.path / GATES))

    @cached_property
    def data(self) -> Dataset:
        """The data set that the run was trained on, checked by its fingerprint."""
        return recorded_data(self.directory, self.data_now)

    @overload
    def evaluate(
        self, split: str = "test", mask: str = "train", k: int = 20, advance: Advance = silent, device: str = "cpu"
    ) -> Evaluation: ...
    @overload
    def evaluate(
        self,
        split: str = "test",
        mask: str = "train",
        *,
        k: Sequence[int],
        advance: Advance = silent,
        device: str = "cpu",
    ) -> Evaluations: ...
    def evaluate(
        self,
        split: str = "test",
        mask: str = "train",
        k: int | Sequence[int] = 20,
        advance: Advance = silent,
        device: str = "cpu",
    ) -> Evaluation | Evaluations:
        """Full-ranking metrics of lists of one length, or of several at once.

        Per-user values are kept in per_user.parquet, so asking again costs nothing. Factors are ranked on the device,
        or on the CPU if they do not fit there.
        """
        given: Iterable[object] = k if isinstance(k, Iterable) else [k]
        lengths = list(dict.fromkeys(map(list_length, given)))
        if not lengths:
            raise ConfigError(f"k = {k!r} has no length of a list", f"use {option('k', 20)}, say")
        known = {each: stored_evaluation(self.directory, split, mask, each) for each in lengths}
        missing = [each for each, stored in known.items() if stored is None]
        new = self._evaluated(split, mask, missing, advance, device) if missing else []
        for result in new:
            try:
                store_evaluation(self.directory, result)
            except RunError as error:  # the numbers are right even if they cannot be kept
                log.warning("the evaluation could not be stored in %s: %s", self.directory.path, error)
        made = {each.k: each for each in new}
        found = [stored if stored is not None else made[each] for each, stored in known.items()]
        return Evaluations(found) if isinstance(k, Iterable) else found[0]

    def _evaluated(self, split: str, mask: str, k: list[int], advance: Advance, device: str) -> list[Evaluation]:
        if device != "cpu" and self.directory.item_weights() is None:
            users_UF, items_IF = self.factors
            try:
                return evaluate_at(
                    (users_UF.to(device), items_IF.to(device)), self.data, split, mask, k, advance=advance
                )
            except torch.OutOfMemoryError:
                log.warning("%s is evaluated on the CPU: its factors do not fit into %s", self.directory.path, device)
        return evaluate_at(self.scored, self.data, split, mask, k, advance=advance)


def list_length(k: object) -> int:
    """The length of a list, given as a whole number of any library."""
    if isinstance(k, Integral):
        return int(k)
    raise ConfigError(f"k = {k!r} is not the length of a list", f"use {option('k', 20)}, say")


def recorded_data(run: RunDirectory, now: Path | str | None = None) -> Dataset:
    """The data set that a run was trained on, finished or not, checked by its fingerprint.

    It is the copy that the run keeps. Without one it is at `now`, or where it was at the time of the training.
    """
    recorded, copy = run.record.data, run.file(DATA)
    where = str(copy if recorded.reference == "." or is_prepared(copy) else now or recorded.reference)
    if where not in CATALOG and not Path(where).exists():
        raise RunError(f"the data of {run.path} was at {where}", f"pass its new location with {option('data')}")
    data = load(where)
    if data.fingerprint != recorded.fingerprint:
        raise RunError(f"{where} has changed since {run.path} was trained", "restore it, or train again")
    if (data.n_users, data.n_items) != run.nodes:
        users, items = run.nodes
        raise run.origin(IDS).fault(
            f"has {users} users and {items} items, and {where} {data.n_users} and {data.n_items}"
        )
    return data
