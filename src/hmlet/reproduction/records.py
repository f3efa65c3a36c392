"""What stays of a run when its weights are gone: the record behind a cell, and how a recipe finds it again.

OUT/<data set>/<run>/ holds config.toml, run.json, metrics.jsonl, test_mask-train.json, test_mask-train-valid.json (or
valid_mask-train.json, where the test part is left out), wall.json and, where the tables need them, paired.parquet
(metrics by user), analysis.json, classes.parquet (each node's class) and noisy.json. results/ has the same layout.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmlet.analysis.result import ANALYSIS, Analysis
from hmlet.config import Recipe
from hmlet.errors import DataError
from hmlet.ranking.evaluation import Evaluation
from hmlet.reporting.material import RunMaterial
from hmlet.reproduction.plan import Planned, identity
from hmlet.runs.choices import Codes
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import RECORD
from hmlet.system.files import replacing
from hmlet.system.outside import Content
from hmlet.system.tables import Column, read_table

SCORE_FILES = {"train": "test_mask-train.json", "train+valid": "test_mask-train-valid.json"}
VALID_FILE = "valid_mask-train.json"  # in their place where the test part is left out
WALL_FILE, PAIRED_FILE, CLASSES_FILE, NOISY_FILE = "wall.json", "paired.parquet", "classes.parquet", "noisy.json"
_OWN_FILES = (*SCORE_FILES.values(), VALID_FILE, WALL_FILE, PAIRED_FILE, ANALYSIS, CLASSES_FILE, NOISY_FILE)
RECORD_FILES = ("config.toml", RECORD, "metrics.jsonl", *_OWN_FILES)
TESTED = ("ndcg", "recall", "precision")
TEST_K = 20
_PAIRED = {"user": Column((pa.int32(),)), **dict.fromkeys(TESTED, Column((pa.float32(),)))}
SEARCH_FOLDER = "search"  # OUT/search/<data set>/<model>.json
_PACKED = re.compile(
    rf"[\w.-]+/[\w.-]+/({'|'.join(map(re.escape, RECORD_FILES))})|{SEARCH_FOLDER}/[\w.-]+/[\w.-]+\.json", re.ASCII
)
_LARGEST = 64 << 20  # bytes of one packed file: many times what a record has


class NoisyRanking(TypedDict):
    """noisy.json: the test metrics of one trained model, ranked with fresh noise in its gates at each draw."""

    gate_ranking: Literal["noisy"]
    draws: int
    mask: str
    k: int
    metrics: dict[str, list[float]]  # metric -> one value per draw


@dataclass(frozen=True, eq=False)
class Record:
    """One finished run's small files, each checked against run.json where that vouches for it."""

    run: RunDirectory
    recipe: Recipe
    scores: dict[str, dict[str, float]]  # mask -> metrics on the test part; "valid" -> on the validation part

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """The record in a directory, or None."""
        scored = any((path / name).is_file() for name in (SCORE_FILES["train"], VALID_FILE))
        if not scored or not all((path / name).is_file() for name in ("config.toml", RECORD)):
            return None
        run = RunDirectory.open(path)
        files = {**SCORE_FILES, "valid": VALID_FILE}
        scores = {mask: _json(run, name)["metrics"] for mask, name in files.items() if run.has(name)}
        return cls(run, run.recipe(), scores) if run.finished else None

    @property
    def path(self) -> Path:
        return self.run.path

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

    @cached_property
    def classes(self) -> Codes | None:
        """Each node's class, as `hmlet analyze` numbers them."""
        if not self.run.has(CLASSES_FILE):
            return None
        table = read_table(_content(self.run, CLASSES_FILE), {"class": Column((pa.int8(),))})
        return np.asarray(table["class"].to_numpy(), dtype=np.int8)

    @cached_property
    def noisy(self) -> NoisyRanking | None:
        return _json(self.run, NOISY_FILE) if self.run.has(NOISY_FILE) else None

    def complete(self, planned: Planned) -> bool:
        """Whether all is there that the tables need of this run."""
        scores = [VALID_FILE] if planned.part == "valid" else SCORE_FILES.values()
        needed = [*scores, *[PAIRED_FILE] * planned.tested, *[CLASSES_FILE, NOISY_FILE] * planned.gated]
        return all(self.run.has(name) for name in [*needed, *[ANALYSIS] * planned.analysed])

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
        """The records in `root`/<data set>/<run>/; unfinished runs and other directories are passed over."""
        folders = sorted(path.parent for path in root.glob(f"*/*/{RECORD}"))
        return cls(record for folder in folders if (record := Record.read(folder)) is not None)

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
    return run.content(name) if name in run.record.files else run.origin(name).read()


def _json(run: RunDirectory, name: str) -> Any:
    return _content(run, name).json_object()


# -- one file for a whole campaign ----------------------------------------------------------------------------------


def pack(root: Path, folders: Iterable[Path], out: Path) -> int:
    """Write the small files of run directories, and every search, of a campaign to one .tar.gz; returns their number.

    The old file stays until the new one is complete.
    """
    chosen = [folder / name for folder in sorted(folders) for name in RECORD_FILES if (folder / name).is_file()]
    chosen += sorted((root / SEARCH_FOLDER).glob("*/*.json"))
    with replacing(out) as temporary, tarfile.open(temporary, "w:gz", compresslevel=6) as archive:
        for path in chosen:
            archive.add(path, str(path.relative_to(root)), recursive=False, filter=_plain)
    return len(chosen)


def unpack(packed: Path, root: Path) -> list[Path]:
    """Put packed records under a directory; the files written. Names that are no record's are refused, all of them."""
    try:
        with tarfile.open(packed) as archive:
            content = list(_members(archive, packed))
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{packed} cannot be unpacked ({error})", "pack the records again") from error
    written = []
    for name, data in content:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        written.append(path)
    return written


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _members(archive: tarfile.TarFile, packed: Path) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        strange = not member.isfile() or member.size > _LARGEST or ".." in member.name.split("/")
        if strange or not _PACKED.fullmatch(member.name):
            raise DataError(f"{packed} has {member.name!r}, which is not part of a record", "do not use this file")
        file = archive.extractfile(member)
        assert file is not None
        yield member.name, file.read()
