"""The record of a run, run.json: what was trained, on what, how it went, and a checksum of every other file.

These types are its only definition: `make docs` writes the table in docs/artifacts.md from their docstrings. Unknown
keys, of an older or a newer hmlet, are kept when the record is written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from hmlet.errors import RunError
from hmlet.system.outside import Content, checked
from hmlet.version import VERSION

RECORD = "run.json"
FORMAT_VERSION = 2
RESTORE = "restore it from a copy"


def _split(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


# On disk, one string with spaces between the checksums.
Checksums = Annotated[
    tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...],
    Field(min_length=1),
    BeforeValidator(_split),
    PlainSerializer(" ".join, return_type=str),
]


Count = Annotated[int, Field(ge=1, lt=2**31)]


class Part(BaseModel):
    """A table of the record: frozen, no value is converted to another type, and unknown keys are kept."""

    model_config = ConfigDict(
        frozen=True, extra="allow", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class DataReference(Part):
    """A data set, and how to find it again."""

    name: str
    """Name of the data set."""
    reference: str
    """A named set, the absolute path of a prepared directory, or "." if there is only the copy in `data/`."""
    fingerprint: str
    """SHA-256 over ids and pairs; data with another fingerprint is refused."""


class Versions(Part):
    """The versions of what computed the numbers."""

    hmlet: str
    """This package."""
    python: str
    """The interpreter."""
    torch: str
    """PyTorch, with the build that follows a "+"."""
    numpy: str
    """NumPy."""

    @classmethod
    def here(cls) -> Versions:
        """The versions of this process."""
        return cls(hmlet=VERSION, python=platform.python_version(), torch=str(torch.__version__), numpy=np.__version__)


class Source(Part):
    """The source code that computed the numbers."""

    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None
    """Git commit of the checkout that hmlet ran from; null for an installed package."""
    clean: bool | None
    """Whether `src/` had no change beside that commit; null without a commit."""

    @classmethod
    def here(cls) -> Source:
        """The source of this process.

        A copy of a checkout without its history, as on a rented machine, takes it from HMLET_COMMIT: a commit, followed
        by "+" if `src/` was changed.
        """
        told = re.fullmatch(r"([0-9a-f]{40})(\+?)", os.environ.get("HMLET_COMMIT", ""))
        commit, clean = (told[1], not told[2]) if told else checkout(Path(__file__).resolve().parents[3])
        return cls(commit=commit, clean=clean)


@cache
def checkout(root: Path) -> tuple[str | None, bool | None]:
    """Commit of the Git checkout whose top is `root`, and whether its src/ is unchanged; (None, None) elsewhere."""

    def git(*arguments: str) -> str:
        # Without --no-optional-locks, a git that a signal ends may leave the index of the checkout locked.
        command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        top, commit = git("rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(top).resolve() != root:  # another project, with hmlet installed somewhere below it
            return None, None
        return commit, not git("status", "--porcelain", "--", "src")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None, None


class Hardware(Part):
    """A machine, and the device on it that trains."""

    device: str
    """Name of the GPU, or the processor's architecture."""
    kind: str
    """Device as PyTorch names it, such as "cpu" or "cuda:0"."""
    threads: int
    """Threads that PyTorch used on the CPU."""
    system: str
    """Operating system."""

    @classmethod
    def of(cls, device: str) -> Hardware:
        """This machine, for a training on `device`."""
        return cls(
            device=torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
            kind=device,
            threads=torch.get_num_threads(),
            system=platform.system(),
        )


class Timings(Part):
    """How long the run took."""

    training_seconds: float
    """Wall seconds of training and validation, summed over resumed calls."""


class UpdatedFrom(Part):
    """The run that an update began with, and what came to its data."""

    run: str
    """Absolute path of its directory at that time."""
    model: str
    """SHA-256 of its `model.safetensors`."""
    fingerprint: str
    """Fingerprint of its data."""
    epochs: Count
    """Epochs that the first training of the model took; those of an update are a share of them."""
    learning_rate: float
    """Step size that the first training began with; that of an update is a part of it."""
    interactions: int
    """New training interactions."""
    users: int
    """New users."""
    items: int
    """New items."""


class RefittedFrom(Part):
    """The run that chose the number of epochs of a refit, and its figures: the refit itself has nothing held out."""

    run: str
    """Absolute path of its directory at that time."""
    model: str
    """SHA-256 of its `model.safetensors`."""
    fingerprint: str
    """Fingerprint of its data."""
    best_epoch: Count
    """Epoch that validation chose, and that the refit ends with."""
    valid: Mapping[str, float] | None
    """Validation metrics @20 of that epoch."""
    test: Mapping[str, float] | None
    """Test metrics @20 of that run, items of train left out; null without a test part."""


class RunRecord(Part):
    """The record of one run."""

    format_version: int
    """Version of the directory's format; see below."""
    status: Literal["running", "finished"]
    """"running" until every file is written, then "finished"."""
    model: str
    """Name of the model."""
    seed: int
    """Seed of the recipe."""
    data: DataReference
    """The data set that the run was trained on."""
    versions: Versions
    """Versions of hmlet and of the libraries that computed the numbers."""
    source: Source = Source(commit=None, clean=None)
    """The source code that the run was started with; absent in some recorded runs."""
    hardware: Hardware
    """The machine that the run was trained on."""
    compared: Mapping[str, float] = Field(default_factory=dict)
    """Validation NDCG@20 of a short training by each loss, where the best of them was chosen so; else absent."""
    compared_seconds: float = 0.0
    """Wall seconds of these short trainings; absent without them."""
    best_epoch: Count = 0
    """Epoch that the stored model comes from, counted from 1; absent while training."""
    epochs: Count = 0
    """Number of epochs trained; absent while training."""
    valid: Mapping[str, float] | None = None
    """Validation metrics @20 of the best epoch; null without a validation part."""
    timings: Timings = Timings(training_seconds=0.0)
    """Durations; absent while training."""
    updated_from: UpdatedFrom | None = None
    """The run that `hmlet update` made this one from; absent for other runs."""
    refitted_from: RefittedFrom | None = None
    """The run whose number of epochs this one trained on all interactions (`--refit-all`); absent for other runs."""
    note: str = ""
    """What was unusual about the end of the training, such as that `hmlet finish` ended it; absent if nothing was."""
    coverage: Mapping[str, float] = Field(default_factory=dict)
    """Catalogue coverage of each stored evaluation, by its split, mask and k ("test train 20")."""
    files: Mapping[str, Checksums] = Field(default_factory=dict)
    """SHA-256 of every file but the record, the checkpoint, the lock and `data/`."""

    @model_validator(mode="after")
    def _has_an_outcome(self) -> RunRecord:
        for name in ("best_epoch", "epochs", "timings"):
            if self.finished and name not in self.model_fields_set:
                raise ValueError(f"a finished run needs {name}")
        if self.best_epoch > self.epochs:
            raise ValueError(f"best_epoch is {self.best_epoch}, and there are {self.epochs} epochs")
        return self

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    # -- the record after a change --------------------------------------------------------------------------------

    def with_file(self, name: str, *checksums: str) -> RunRecord:
        """The record that vouches for these contents of a file: one, or several while it is being replaced."""
        return self.model_copy(update={"files": {**self.files, name: checksums}})

    def without_file(self, name: str) -> RunRecord:
        """The record that no longer names a file."""
        return self.model_copy(update={"files": {key: each for key, each in self.files.items() if key != name}})

    def with_coverage(self, evaluation: str, coverage: float) -> RunRecord:
        """The record with one more stored evaluation."""
        return self.model_copy(update={"coverage": {**self.coverage, evaluation: coverage}})

    def concluded(
        self, best_epoch: int, epochs: int, valid: Mapping[str, float] | None, training_seconds: float, note: str = ""
    ) -> RunRecord:
        """The record of the finished run."""
        timings = Timings(training_seconds=training_seconds)
        changes = {"best_epoch": best_epoch, "epochs": epochs, "valid": valid, "timings": timings}
        return self.model_copy(update={"status": "finished", **changes, **({"note": note} if note else {})})

    def reopened(self, files: Collection[str]) -> RunRecord:
        """The record of a run that is trained further, which has only these files yet."""
        outcome = {"best_epoch", "epochs", "valid", "timings", "note", "coverage"}
        content = self.model_dump(exclude_unset=True, exclude=outcome)
        kept = {name: checksums for name, checksums in content["files"].items() if name in files}
        return RunRecord.model_validate({**content, "status": "running", "files": kept})

    def portable(self) -> RunRecord:
        """The record of a copy that has its data with it: earlier runs by their names, and no path of this machine."""
        changes: dict[str, Part] = {"data": self.data.model_copy(update={"reference": "."})}
        for key in ("updated_from", "refitted_from"):
            origin = getattr(self, key)
            if origin is not None:
                changes[key] = origin.model_copy(update={"run": Path(origin.run).name})
        return self.model_copy(update=changes)

    # -- on disk --------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, object]:
        """The record as JSON has it; keys that were never set are left out."""
        return self.model_dump(exclude_unset=True)

    def to_text(self) -> str:
        """The content of run.json: the record and its checksum."""
        content = self.as_json()
        return json_text({**content, "checksum": json_checksum(content)})

    @classmethod
    def from_content(cls, file: Content) -> RunRecord:
        """The record in a run.json, checked."""
        content, origin = file.json_object(), file.origin
        recorded = content.pop("checksum", None)
        try:
            computed = json_checksum(content)
        except ValueError as error:  # half of a surrogate pair has no UTF-8
            raise origin.fault(f"cannot be read ({error})") from error
        if recorded != computed:
            raise origin.fault("is damaged (its checksum differs)")
        version = content.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise RunError(
                f"{origin.path.parent} has format version {version}, and this hmlet reads version {FORMAT_VERSION}",
                "open it with the hmlet that wrote it, or train again",
            )
        return checked(cls, content, origin)


def json_text(value: object) -> str:
    """JSON as hmlet writes it into files."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def json_checksum(value: object) -> str:
    """SHA-256 of a value as JSON with sorted keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
