"""The run directory: how a run begins, how it is opened, and what its files say that a model learned.

The record is the last file to be written, so a run whose record says "finished" is whole.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.errors import RunError
from hmlet.models import ItemWeights
from hmlet.runs import tensors as files
from hmlet.runs.expected import model_tensors, require_item_weights
from hmlet.runs.locking import require_own
from hmlet.runs.record import (
    FORMAT_VERSION,
    RECORD,
    DataReference,
    Hardware,
    RefittedFrom,
    RunRecord,
    Source,
    UpdatedFrom,
    Versions,
)
from hmlet.runs.recorded import RecordedFiles, record_in
from hmlet.runs.tensors import Shape
from hmlet.system.files import unwritable
from hmlet.system.outside import MOST_METRICS, MOST_RECORD, Origin, checked, is_utf8
from hmlet.system.spelling import call, option
from hmlet.system.tables import Column

IDS = "ids.parquet"
FACTORS = "factors.safetensors"
DATA = "data"  # a copy of the data set, as a prepared directory
ID_COLUMNS = {
    "side": Column((pa.string(),)),
    "index": Column((pa.int32(),)),
    "id": Column((pa.string(),)),
    "name": Column((pa.string(),), nulls=True),
}


class Epoch(TypedDict):
    """A row of metrics.jsonl; the later keys are there if the epoch was validated, or the model has gates."""

    epoch: int
    loss: float
    seconds: float
    valid: NotRequired[dict[str, float]]
    temperature: NotRequired[float]
    gate_share: NotRequired[dict[str, float]]


class _EpochRow(BaseModel):
    """What a row of metrics.jsonl has to be; keys of a newer hmlet are welcome."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    epoch: NonNegativeInt
    loss: float
    seconds: float
    valid: dict[str, float] = {}
    temperature: float = 1.0
    gate_share: dict[str, float] = {}


class RunDirectory(RecordedFiles):
    """One run's files, and what they say."""

    # -- creating and opening -------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path | str,
        recipe: Recipe,
        data: Dataset,
        device: str,
        compared: Mapping[str, float] | None = None,
        compared_seconds: float = 0.0,
        origin: UpdatedFrom | RefittedFrom | None = None,
        keep_data: bool = True,
    ) -> RunDirectory:
        """A new run directory with its recipe, its ids, its data and a record that says "running".

        Without `keep_data` it only says where the data is, if that is on disk.
        """
        path = Path(path)
        require_own(path)
        require_new(path)
        record = RunRecord(
            format_version=FORMAT_VERSION,
            status="running",
            model=recipe.model.name,
            seed=recipe.seed,
            data=_reference(path, data, keep_data),
            versions=Versions.here(),
            source=Source.here(),
            hardware=Hardware.of(device),
        )
        if compared:
            record = record.model_copy(update={"compared": compared, "compared_seconds": compared_seconds})
        if origin is not None:
            key = "updated_from" if isinstance(origin, UpdatedFrom) else "refitted_from"
            record = record.model_copy(update={key: origin})
        run = cls(path, record)
        run.write_text("config.toml", recipe.to_toml())
        run.write_table(IDS, _ids_table(data))
        run.write_record()
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """An existing run directory, finished or not; its record is checked here, other files when they are read."""
        path = Path(path)
        return cls(path, record_in(path))

    def require_finished(self) -> RunDirectory:
        if not self.finished:
            raise RunError(f"{self.path} is not finished", f"continue it with {call('fit', resume=True)}")
        return self

    def recipe(self) -> Recipe:
        file = self.content("config.toml", MOST_RECORD)
        recipe = Recipe.from_toml(file.text(), str(file.origin.path))
        for key, own, recorded in (
            ("model.name", recipe.model.name, self.record.model),
            ("seed", recipe.seed, self.record.seed),
        ):
            if own != recorded:
                raise file.origin.fault(f": {key} is {own!r}, and {RECORD} has {recorded!r}")
        return recipe

    def reopen(self, recipe: Recipe) -> None:
        """Make the run unfinished, with another recipe; what was written about its model is removed.

        As in `write`, the record vouches for both recipes while one replaces the other.
        """
        text = recipe.to_toml()
        both = {*self.record.files["config.toml"], hashlib.sha256(text.encode()).hexdigest()}
        self.record = self.record.with_file("config.toml", *sorted(both))
        self.write_record()
        self.write_text("config.toml", text)
        outdated = {*self.record.files} - {"config.toml", IDS}
        self.record = self.record.reopened(("config.toml", IDS))
        self.write_record()
        for name in outdated:
            self.remove(name)

    def append_metrics(self, row: Mapping[str, object]) -> None:
        """One more line of metrics.jsonl."""
        try:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise unwritable(self.path / "metrics.jsonl", error, RunError) from error

    def metrics(self) -> list[Epoch]:
        """The rows of metrics.jsonl."""
        name = "metrics.jsonl"
        if not self.finished and not self.has(name):
            return []
        content = self.content(name, MOST_METRICS) if self.finished else self.origin(name).read(MOST_METRICS)
        return [check_epoch(row, content.origin, f"line {number}") for number, row in content.json_lines()]

    # -- what was learned -----------------------------------------------------------------------------------------

    @cached_property
    def nodes(self) -> tuple[int, int]:
        """How many users and items the run was trained with."""
        table, origin = self.read_table(IDS, ID_COLUMNS), self.origin(IDS)
        n_users = pc.sum(pc.equal(table["side"], "user")).as_py() or 0
        n_items = len(table) - n_users
        if table["side"] != pa.chunked_array([pa.repeat("user", n_users), pa.repeat("item", n_items)]):
            raise origin.fault(": column 'side': it is not `user` for every user and then `item` for every item")
        index = np.from_dlpack(table["index"].combine_chunks())
        if not np.array_equal(index, np.concatenate([np.arange(n_users), np.arange(n_items)])):
            raise origin.fault(": column 'index': it does not count the users and then the items from 0")
        return n_users, n_items

    def factors(self) -> tuple[Tensor, Tensor]:
        """The finished factors of users (U × F) and items (I × F), whose dot products are the scores."""
        name = FACTORS
        if name not in self.require_finished().record.files:
            raise RunError(
                f"{self.path} has no factors: {self.record.model} ranks by item-item weights",
                "use a run of a model that has factors",
            )
        tensors, (n_users, n_items) = self.read_tensors(name), self.nodes
        width = tensors["items"].shape[-1] if "items" in tensors and tensors["items"].dim() else None
        files.require(tensors, {"users": Shape((n_users, width)), "items": Shape((n_items, width))}, self.origin(name))
        return tensors["users"], tensors["items"]

    def directions(self, factors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The run's factors without what popularity adds to scores: they say how alike two users or two items are."""
        scoring, (users_UF, items_IF) = self.recipe().scoring, factors
        return scoring.directions(users_UF), scoring.directions(items_IF)

    def item_weights(self) -> ItemWeights | None:
        """The finished weights of an item-item model, which are all that it learned; None if factors rank."""
        if FACTORS in self.require_finished().record.files:
            return None
        tensors = self.weights()
        lacking = [name for name in ItemWeights._fields if name not in tensors]
        if lacking:
            raise RunError(f"{self.path / FACTORS} is missing", "train again")
        weights = ItemWeights(**{name: tensors[name] for name in ItemWeights._fields})
        require_item_weights(weights, self.nodes[1], self.origin("model.safetensors"))
        return weights

    def weights(self) -> dict[str, Tensor]:
        """The finished model's parameters."""
        name = "model.safetensors"
        tensors = self.require_finished().read_tensors(name)
        files.require(tensors, model_tensors(self.recipe(), *self.nodes, tensors, self.origin(name)), self.origin(name))
        return tensors

    def layers(self) -> list[Tensor] | None:
        """Every layer's embeddings in float32, e⁰ first: N × D; None if the run has not stored them."""
        name = "layers.safetensors"
        if name not in self.require_finished().record.files:
            return None
        tensors, model = self.read_tensors(name), self.recipe().model
        shape = Shape((sum(self.nodes), model.columns), (torch.float32, torch.bfloat16))
        files.require(tensors, {str(layer): shape for layer in range(model.depth + 1)}, self.origin(name))
        return [tensors[str(layer)].float() for layer in range(len(tensors))]


def check_epoch(row: object, origin: Origin, where: str) -> Epoch:
    """A row of metrics.jsonl, checked."""
    checked(_EpochRow, row, origin, where)
    return cast("Epoch", row)


def require_new(path: Path) -> None:
    """Refuse a directory that has a run already."""
    if (path / RECORD).is_file():
        raise RunError(
            f"{path} exists already",
            f"choose another {option('out')}, or continue that run with {option('resume', True)}",
        )


def keep_only(path: Path, names: Collection[str]) -> None:
    """Remove everything from a run directory but these files, such as weights that nobody needs any more."""
    for entry in list(path.iterdir()) if path.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name not in names:
            entry.unlink(missing_ok=True)


def _reference(path: Path, data: Dataset, keep: bool) -> DataReference:
    """How to find the data again: a named set or a prepared directory. The run keeps a copy of data from memory, and of
    all other data if asked to."""
    reference = data.reference
    if keep or reference is None:
        shutil.rmtree(path / DATA, ignore_errors=True)  # of a start that was killed
        data.save(path / DATA)
    if reference is None:
        reference = "."
    if not is_utf8(reference):
        raise RunError(f"the path {reference!r} of the data is not UTF-8", "rename the folder that is not")
    return DataReference(name=data.name, reference=reference, fingerprint=data.fingerprint)


def _ids_table(data: Dataset) -> pa.Table:
    """Both sides' ids and names; ids as text, so that one column holds both."""
    sides = []
    for vocabulary in (data.users, data.items):
        count = len(vocabulary)
        names = vocabulary.names if vocabulary.names is not None else pa.nulls(count, pa.string())
        sides.append(
            pa.table(
                {
                    "side": pa.array([vocabulary.kind] * count),
                    "index": pa.array(np.arange(count, dtype=np.int32)),
                    "id": vocabulary.ids.cast(pa.string()),
                    "name": names.cast(pa.string()),
                }
            )
        )
    return pa.concat_tables(sides)
