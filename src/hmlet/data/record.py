"""dataset.json, the record of a prepared directory: typed, and checked field by field when it is read."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from hmlet.errors import DataError

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
    below_min_rating: NonNegativeInt


class Provenance(_Typed):
    """Where a data set comes from, the options that made it, and the rows that each step removed.

    Only the fields that were set are written. Fields that this hmlet does not know are kept.
    """

    model_config = ConfigDict(extra="allow")

    named_set: str | None = None
    derived_from: str | None = None
    """Name and fingerprint of the data set whose interactions were put into other parts."""
    source: str | None = None
    """Who published the rows of an embedded set."""
    release_date: str | None = None
    licence: str | None = None
    files: list[FileRead] = []
    rows: NonNegativeInt = 0
    below_min_rating: NonNegativeInt = 0
    duplicates: NonNegativeInt = 0
    outside_core: NonNegativeInt = 0
    core: NonNegativeInt = 0
    core_rounds: NonNegativeInt = 0
    min_rating: int | float | None = None
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
        """Write dataset.json into a directory, with the version first."""
        content = {"format_version": self.format_version} | self.model_dump(exclude_unset=True)
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
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
    try:
        content = json.loads((path / RECORD_FILE).read_text(encoding="utf-8"))
        version = content.get("format_version", DATASET_VERSION) if isinstance(content, dict) else DATASET_VERSION
        if version == DATASET_VERSION:
            return DatasetRecord.model_validate(content)
    except ValidationError as error:
        raise _unreadable(path, _first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    raise DataError(
        f"{path} has format version {version}, and this hmlet reads version {DATASET_VERSION}",
        "prepare the data again, or install the hmlet that wrote it",
    )


def _unreadable(path: Path, problem: str) -> DataError:
    return DataError(f"{path / RECORD_FILE} cannot be read ({problem})", "prepare the data again")


def _first_problem(error: ValidationError) -> str:
    """The first field that is wrong, and why."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else first["msg"]
