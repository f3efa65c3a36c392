"""What stays of a run when its weights are gone: the record behind a cell, and how a recipe finds it again.

OUT/<data set>/<run>/ holds config.toml, run.json, metrics.jsonl, test_mask-train.json, test_mask-train-valid.json (or
valid_mask-train.json, where the test part is left out), wall.json and, where the tables need them, paired.parquet
(metrics by user) and analysis.json. OUT/*.jsonl holds the same files
of many runs, a file on each line: {"run": "<data set>/<run>", "file": "run.json", "content": "…"}, or "base64" of a
Parquet file. A run's id is the name that it is stored under.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmlet.analysis.result import ANALYSIS, Analysis
from hmlet.config import Recipe
from hmlet.errors import DataError, RunError
from hmlet.ranking.evaluation import Evaluation
from hmlet.reporting.material import RunMaterial
from hmlet.reproduction.plan import Planned, identity
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import RECORD, RESTORE, RunRecord
from hmlet.system.files import put
from hmlet.system.outside import Content, Origin
from hmlet.system.tables import Column, read_table

SCORE_FILES = {"train": "test_mask-train.json", "train+valid": "test_mask-train-valid.json"}
VALID_FILE = "valid_mask-train.json"  # in their place where the test part is left out
WALL_FILE, PAIRED_FILE = "wall.json", "paired.parquet"
_LABORATORY = ("classes.parquet", "noisy.json")  # each node's class, and rankings with fresh noise: lab/noisy.py
_OWN_FILES = (*SCORE_FILES.values(), VALID_FILE, WALL_FILE, PAIRED_FILE, ANALYSIS, *_LABORATORY)
RECORD_FILES = ("config.toml", RECORD, "metrics.jsonl", *_OWN_FILES)
TESTED = ("ndcg", "recall", "precision")
TEST_K = 20
_PAIRED = {"user": Column((pa.int32(),)), **dict.fromkeys(TESTED, Column((pa.float32(),)))}
PACKS = "*.jsonl"  # OUT/*.jsonl
_RUN = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+", re.ASCII)


@dataclass(frozen=True, eq=False)
class Record:
    """One finished run's small files, each checked against run.json where that vouches for it."""

    run: RunDirectory
    recipe: Recipe
    scores: dict[str, dict[str, float]]  # mask -> metrics on the test part; "valid" -> on the validation part

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """The record in a directory, or None."""
        return cls.of(RunDirectory.open(path)) if (path / RECORD).is_file() else None

    @classmethod
    def of(cls, run: RunDirectory) -> Record | None:
        """What a run has recorded; None if it is unfinished or was not scored."""
        if not run.has("config.toml") or not (run.has(SCORE_FILES["train"]) or run.has(VALID_FILE)):
            return None
        files = {**SCORE_FILES, "valid": VALID_FILE}
        scores = {mask: _json(run, name)["metrics"] for mask, name in files.items() if run.has(name)}
        return cls(run, run.recipe(), scores) if run.finished else None

    @property
    def path(self) -> Path:
        """Its directory; of a packed run, PACK/<run>."""
        return self.run.path

    @property
    def name(self) -> str:
        """What the run is stored as."""
        return self.path.name

    @property
    def file(self) -> Path:
        """The file with its test metrics, or the pack that holds it."""
        return self.path.parent if isinstance(self.run, _PackedRun) else self.path / SCORE_FILES["train"]

    @cached_property
    def identity(self) -> str:
        return identity(self.recipe)

    @cached_property
    def kind(self) -> str:
        """The recipe's fingerprint without its seed."""
        return identity(self.recipe, seed=False)

    @property
    def dataset(self) -> str:
        return self.run.record.data.name

    @property
    def fingerprint(self) -> str:
        return self.run.record.data.fingerprint

    @property
    def device(self) -> str:
        return self.run.record.hardware.device

    @cached_property
    def seconds(self) -> float:
        """What the run took, from its start to its last file; without a measured wall time, its training."""
        if self.run.has(WALL_FILE):
            return float(_json(self.run, WALL_FILE)["wall_seconds"])
        return self.run.record.timings.training_seconds

    @cached_property
    def paired(self) -> Evaluation | None:
        """Metrics by user on the test part, where they were kept."""
        if not self.run.has(PAIRED_FILE):
            return None
        table = read_table(_content(self.run, PAIRED_FILE), _PAIRED)
        values = {name: table[name].to_numpy().astype(np.float64) for name in TESTED}
        return Evaluation("test", "train", TEST_K, table["user"].to_numpy().astype(np.int64), values, float("nan"))

    @cached_property
    def analysis(self) -> Analysis | None:
        if not self.run.has(ANALYSIS):
            return None
        return Analysis.from_json(_content(self.run, ANALYSIS).data, str(self.path / ANALYSIS))

    def complete(self, planned: Planned) -> bool:
        """Whether all is there that the tables need of this run."""
        scores = [VALID_FILE] if planned.part == "valid" else SCORE_FILES.values()
        needed = [*scores, *[PAIRED_FILE] * planned.tested, *[ANALYSIS] * planned.analysed]
        return all(self.run.has(name) for name in needed)

    def material(self, label: str, scores: Mapping[str, float] | None = None) -> RunMaterial:
        """The record as material for the report's figures."""
        config = _content(self.run, "config.toml").text()
        return RunMaterial(label, self.run.record, config, self.run.metrics(), self.analysis, scores)


class Records:
    """Every record under a directory, found by data set and recipe."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._found: dict[tuple[str, str], Record] = {}
        self.all: list[Record] = []
        for record in records:
            self.add(record)

    @classmethod
    def read(cls, root: Path) -> Records:
        """The records in `root`/*.jsonl and `root`/<data set>/<run>/; unfinished runs are passed over."""
        packed = [run for path in sorted(root.glob(PACKS)) for run in _packed_runs(path)]
        folders = [RunDirectory.open(path.parent) for path in sorted(root.glob(f"*/*/{RECORD}"))]
        return cls(record for run in [*packed, *folders] if (record := Record.of(run)) is not None)

    def add(self, record: Record) -> None:
        """Take in a record; of two runs of one recipe, the one with values by user counts, else the first."""
        key = (record.dataset, record.identity)
        self.all.append(record)
        if key not in self._found or (record.run.has(PAIRED_FILE) and not self._found[key].run.has(PAIRED_FILE)):
            self._found[key] = record

    def find(self, dataset: str, recipe: Recipe, fingerprint: str | None = None) -> Record | None:
        """The record of a recipe on a data set; with a fingerprint, only on exactly that data."""
        record = self._found.get((dataset, identity(recipe)))
        return None if record is None or fingerprint not in (None, record.fingerprint) else record

    def seconds(self, dataset: str, recipe: Recipe, device: str) -> float | None:
        """How long a run will take, by those made on the same device; None where there is none.

        The longest of its recipe with another seed. Without one, its epochs at the median pace of the nearest kind that
        there is: of its model, of its data set, any.
        """
        here = [record for record in self.all if record.device == device]
        same = [record for record in here if record.dataset == dataset]
        kind = identity(recipe, seed=False)
        seeds = [record.seconds for record in same if record.kind == kind]
        if seeds:
            return max(seeds)
        models = [record for record in same if record.recipe.model.name == recipe.model.name]
        near = models or same or here
        paces = [record.seconds / record.recipe.train.epochs for record in near]
        return recipe.train.epochs * median(paces) if paces else None


def one_dataset(records: Sequence[Record]) -> None:
    """Refuse records that carry one data set's name and were trained on different data."""
    for record in records[1:]:
        if (record.dataset, record.fingerprint) != (records[0].dataset, records[0].fingerprint):
            raise DataError(
                f"{records[0].path} and {record.path} were trained on different data", "keep the records of one of them"
            )


def write_paired(run: RunDirectory, evaluation: Evaluation) -> None:
    """Write a run's metrics by user, small: float32 by dictionary, growing users by their differences."""
    columns = {name: evaluation.per_user[name].astype(np.float32) for name in TESTED}
    table = pa.table({"user": evaluation.users.astype(np.int32), **columns})
    delta = {"user": "DELTA_BINARY_PACKED"}
    run.write(
        PAIRED_FILE,
        lambda path: pq.write_table(
            table, path, compression="zstd", use_dictionary=list(TESTED), column_encoding=delta
        ),
    )


def _content(run: RunDirectory, name: str) -> Content:
    """A file's content, compared with run.json where it is named there; older records have files that are not."""
    return run.content(name) if name in run.record.files else run.unchecked(name)


def _json(run: RunDirectory, name: str) -> Any:
    return _content(run, name).json_object()


# -- many runs in one file ------------------------------------------------------------------------------------------


class _PackedRun(RunDirectory):
    """A run whose small files are lines of a pack."""

    def __init__(self, path: Path, files: Mapping[str, bytes]) -> None:
        self._files = files
        super().__init__(path, RunRecord.from_content(Content(Origin(path / RECORD, RunError, RESTORE), files[RECORD])))

    def has(self, name: str) -> bool:
        return name in self._files

    def unchecked(self, name: str, most: int | None = None) -> Content:  # `most` is for what is not in memory yet
        if name not in self._files:
            raise self.origin(name).fault("is missing")
        return Content(self.origin(name), self._files[name])


def _packed_runs(path: Path) -> list[RunDirectory]:
    return [
        _PackedRun(path / run.rpartition("/")[2], files) for run, files in read_pack(path).items() if RECORD in files
    ]


def read_pack(path: Path) -> dict[str, dict[str, bytes]]:
    """The files of a pack, by run and name. Names that are no record's are refused."""
    origin = Origin(path, DataError, "pack the records again")
    runs: dict[str, dict[str, bytes]] = {}
    for number, line in enumerate(origin.read().text().split("\n")[:-1], 1):
        try:
            about = json.loads(line)
            run, name = about["run"], about["file"]
            data = about["content"].encode() if "content" in about else base64.b64decode(about["base64"], validate=True)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise origin.fault(f"cannot be read (line {number}: {error!r})") from error
        if name not in RECORD_FILES or not isinstance(run, str) or not _RUN.fullmatch(run):
            raise origin.fault(f"has {run}/{name} on line {number}, which is not part of a record")
        runs.setdefault(run, {})[name] = data
    return runs


def write_pack(path: Path, runs: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write a pack, sorted, so that packs of the same runs are equal; an old one stays until the new one is whole."""
    lines = [
        _line(run, name, files[name]) for run, files in sorted(runs.items()) for name in RECORD_FILES if name in files
    ]
    put(path, "".join(lines).encode())


def pack(folders: Iterable[Path], path: Path) -> None:
    """Write the small files of run directories to one file."""
    names = ((folder, name) for folder in folders for name in RECORD_FILES if (folder / name).is_file())
    runs: dict[str, dict[str, bytes]] = {}
    for folder, name in names:
        runs.setdefault(f"{folder.parent.name}/{folder.name}", {})[name] = (folder / name).read_bytes()
    write_pack(path, runs)


def _line(run: str, name: str, data: bytes) -> str:
    content = {"base64": base64.b64encode(data).decode()} if name.endswith(".parquet") else {"content": data.decode()}
    return json.dumps({"run": run, "file": name, **content}, ensure_ascii=False) + "\n"
