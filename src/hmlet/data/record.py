"""dataset.json, the record of a prepared directory: typed, and checked field by field when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from hmlet.errors import DataError
from hmlet.system.outside import MOST_RECORD, Origin, checked

DATASET_VERSION = 1  # of the prepared directory's format
RECORD_FILE = "dataset.json"


class _Typed(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class FileRead(_Typed):
    """One file that was read."""

    file: str | None
    """Its name; a frame has none."""
    format: str
    rows: NonNegativeInt
    """Rows that were used: skipped ones are not among them."""
    below_min_rating: NonNegativeInt
    skipped: NonNegativeInt = 0


class Provenance(_Typed):
    """Where a data set comes from, the options that made it, and the rows that each step removed.

    Only the fields that were set are written. Unknown fields are kept.
    """

    model_config = ConfigDict(extra="allow")

    named_set: str | None = None
    derived_from: str | None = None
    """Name and fingerprint of the data set whose interactions were put into other parts."""
    extends: str | None = None
    """Name and fingerprint of the data set that new interactions were added to."""
    source: str | None = None
    """Who published the rows of an embedded set."""
    release_date: str | None = None
    licence: str | None = None
    files: list[FileRead] = []
    rows: NonNegativeInt = 0
    below_min_rating: NonNegativeInt = 0
    duplicates: NonNegativeInt = 0
    skipped: NonNegativeInt = 0
    """Rows that could not be used and were left out; skipped.csv lists them."""
    outside_core: NonNegativeInt = 0
    core: NonNegativeInt = 0
    core_rounds: NonNegativeInt = 0
    min_rating: int | float | None = None
    columns: dict[str, str] = {}
    """The column of each role that was named, rather than guessed."""
    split: str | None = None
    seed: NonNegativeInt = 0
    users_without_training: NonNegativeInt = 0

    def to_json(self) -> dict[str, object]:
        """The fields that were set, as JSON values."""
        return self.model_dump(exclude_unset=True)


class Statistics(_Typed):
    """The counts that `hmlet data stats` prints and the paper's table of data sets has."""

    name: str
    users: NonNegativeInt
    items: NonNegativeInt
    interactions: NonNegativeInt
    density: float
    sparsity_percent: float
    train: NonNegativeInt
    valid: NonNegativeInt
    test: NonNegativeInt
    fingerprint: str

    def to_json(self) -> dict[str, object]:
        """The counts as JSON values."""
        return self.model_dump()


class DatasetRecord(Statistics):
    """What dataset.json holds."""

    format_version: int
    provenance: Provenance
    checksums: dict[str, str]
    """SHA-256 of each file beside the record."""

    def write(self, directory: Path) -> None:
        """Write dataset.json into a directory, with the version first and a checksum of the rest last."""
        content = {"format_version": self.format_version} | self.model_dump(exclude_unset=True)
        content["checksum"] = _checksum(content)
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        (directory / RECORD_FILE).write_text(text, encoding="utf-8")


def is_prepared(path: Path) -> bool:
    """Whether a path is a prepared directory."""
    return (path / RECORD_FILE).is_file()


def read_record(path: Path) -> DatasetRecord:
    """The record of a prepared directory, in the format version that this hmlet reads."""
    if not path.exists():
        raise DataError(f"{path} does not exist", "name a prepared directory or a set that `hmlet data list` shows")
    if not is_prepared(path):
        raise DataError(
            f"{path} is not a prepared directory (it has no dataset.json)", "make one with `hmlet data prepare`"
        )
    origin = origin_of(path / RECORD_FILE)
    content = origin.read(MOST_RECORD).json_object()
    recorded = content.pop("checksum", None)
    version = content.get("format_version", DATASET_VERSION)
    if version != DATASET_VERSION:
        raise DataError(
            f"{path} has format version {version}, and this hmlet reads version {DATASET_VERSION}",
            "prepare the data again, or install the hmlet that wrote it",
        )
    if recorded != _checksum(content):
        raise origin.fault("is damaged (its checksum differs)")
    return checked(DatasetRecord, content, origin)


def origin_of(path: Path) -> Origin:
    """A file of a prepared directory, for reading and for errors."""
    return Origin(path, DataError, "prepare the data again")


def _checksum(content: Mapping[str, object]) -> str:
    """SHA-256 of the record as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
