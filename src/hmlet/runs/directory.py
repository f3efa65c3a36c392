"""The run directory: every file written under a temporary name and renamed, with a format version and a checksum.

`run.json` is the last file to be written: it names every other file with its SHA-256, so a run whose record says
"finished" is whole. The checkpoint checks itself, because it is replaced while the record is not.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.data.dataset import read_parquet, sha256
from hmlet.errors import RunError
from hmlet.system.files import replacing, temporary_for, unwritable
from hmlet.system.locks import held
from hmlet.version import VERSION

FORMAT_VERSION = 2
READABLE = (1, 2)  # 1: gates had a bias in every dense layer, which `weights` folds into the running means
RECORD = "run.json"
CHECKPOINT = "checkpoint.safetensors"
LOCK = "run.lock"
PATIENCE = 10.0  # seconds; adding to a finished run takes a moment
_FIRST_FILES = {LOCK, "config.toml", "ids.parquet", "data", RECORD}


class RunDirectory:
    """One run's files. Reading checks them; writing is atomic."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record

    # -- creating and opening -------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path | str, recipe: Recipe, data: Dataset, device: str) -> RunDirectory:
        """A new run directory with its recipe, its ids and a record that says "running"."""
        run = cls(Path(path), {})
        run._require_own()
        if run.has(RECORD):
            raise RunError(f"{path} exists already", "choose another --out, or continue that run with --resume")
        run.write_text("config.toml", recipe.to_toml())
        run.write_table("ids.parquet", _ids_table(data))
        run.record.update(
            format_version=FORMAT_VERSION,
            status="running",
            model=recipe.model.name,
            seed=recipe.seed,
            data=run._reference(data),
            versions=versions(),
            hardware=hardware(device),
        )
        run.write_record()
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """An existing run directory, finished or not; its record is checked here, other files when they are read."""
        path = Path(path)
        if not cls(path, {}).file(RECORD).is_file():
            problem = "is not a run directory (it has no run.json)" if path.exists() else "does not exist"
            raise RunError(f"{path} {problem}", "train one with `hmlet train DATA --model MODEL --out RUN`")
        try:
            with _reading(path / RECORD):
                record = json.loads((path / RECORD).read_text(encoding="utf-8"))
            checksum = record.pop("checksum")
            version = record["format_version"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{path / RECORD} cannot be read ({error!r})", "restore it from a copy") from error
        if checksum != _json_checksum(record):
            raise RunError(f"{path / RECORD} is damaged (its checksum differs)", "restore it from a copy")
        if version not in READABLE:
            raise RunError(
                f"{path} has format version {version}, and this hmlet reads {' and '.join(map(str, READABLE))}",
                "open it with the hmlet that wrote it, or train again",
            )
        return cls(path, record)

    def _reference(self, data: Dataset) -> dict[str, Any]:
        """How to find the data again: a named set, a prepared directory, or a copy that the run keeps."""
        reference = data.reference
        if reference is None:
            data.save(self.path / "data", overwrite=True)
            reference = "."
        return {"name": data.name, "reference": reference, "fingerprint": data.fingerprint}

    @property
    def finished(self) -> bool:
        return bool(self.record.get("status") == "finished")

    def require_finished(self) -> RunDirectory:
        if not self.finished:
            raise RunError(f"{self.path} is not finished", "continue it with `hmlet train … --resume`")
        return self

    def recipe(self) -> Recipe:
        return Recipe.from_toml(self.read_bytes("config.toml").decode(), str(self.path / "config.toml"))

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, name: str, save: Callable[[Path], None], *, record: bool = True) -> None:
        """Replace a file by what `save` writes, and record its checksum.

        The record of a finished run vouches for the old content and the new one before it vouches for the new one
        alone: a process may be killed after either of the two renames.
        """
        files = self.record.setdefault("files", {})
        with replacing(self.path / name, RunError) as temporary:
            save(temporary)
            checksum = sha256(temporary) if record else ""
            if record and self.finished and name in files:
                files[name] += f" {checksum}"
                self.write_record()
        if record:
            files[name] = checksum

    def write_bytes(self, name: str, content: bytes) -> None:
        self.write(name, lambda path: _save_bytes(path, content))

    def write_text(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def write_table(self, name: str, table: pa.Table) -> None:
        self.write(name, lambda path: pq.write_table(table, path, compression="zstd"))

    def write_tensors(
        self, name: str, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None, *, record: bool = True
    ) -> None:
        """Tensors and a few strings in one safetensors file that carries its own checksum."""
        contiguous = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        described = {**(metadata or {}), "checksum": _tensor_checksum(contiguous, metadata or {})}
        self.write(name, lambda path: save_file(contiguous, path, described), record=record)

    def write_record(self) -> None:
        """Write run.json, the file that vouches for all others."""
        content = {**self.record, "checksum": _json_checksum(self.record)}
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        self.write(RECORD, lambda path: _save_bytes(path, text.encode()), record=False)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        try:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise unwritable(self.path / "metrics.jsonl", error, RunError) from error

    def remove(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path / name, error, RunError) from error
        self.record.get("files", {}).pop(name, None)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove every file and folder but these: what stays of a run whose weights nobody needs any more."""
        for entry in list(self.path.iterdir()) if self.path.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name not in names:
                entry.unlink(missing_ok=True)

    # -- reading --------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def file(self, name: str) -> Path:
        """The path of a file in the directory itself. A run may come from a stranger: nothing leads out of it."""
        path = self.path / name
        if Path(name).name != name:
            raise RunError(f"{path} would lie outside the run", "do not trust this run")
        if path.is_symlink():
            raise RunError(f"{path} is a symbolic link", "put the file itself there")
        return path

    def checked(self, name: str) -> Path:
        """The path of a recorded file whose content is what the record says."""
        path = self.file(name)
        expected = self.record.get("files", {}).get(name, "").split()
        if not (expected and path.is_file()):
            raise RunError(f"{path} is missing", "the run is incomplete: finish it with --resume or train again")
        with _reading(path):
            found = sha256(path)
        if found not in expected:
            raise RunError(
                f"{path} is damaged or of another run (its checksum differs from run.json)", "restore it from a copy"
            )
        return path

    def read_bytes(self, name: str) -> bytes:
        path = self.checked(name)
        with _reading(path):
            return path.read_bytes()

    def read_json(self, name: str) -> Any:
        return json.loads(self.read_bytes(name))

    def read_table(self, name: str) -> pa.Table:
        return read_parquet(self.read_bytes(name))

    def read_tensors(self, name: str, device: str = "cpu") -> dict[str, Tensor]:
        """A recorded safetensors file, memory-mapped."""
        path = self.checked(name)
        with _reading(path), safe_open(path, framework="pt", device=device) as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        if not self.finished and not self.has("metrics.jsonl"):
            return []
        text = self.read_bytes("metrics.jsonl") if self.finished else self.file("metrics.jsonl").read_bytes()
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def factors(self) -> tuple[Tensor, Tensor]:
        """The finished factors of users (U × F) and items (I × F)."""
        tensors = self.require_finished().read_tensors("factors.safetensors")
        return tensors["users"], tensors["items"]

    def weights(self) -> dict[str, Tensor]:
        """The finished model's parameters by today's names, whichever format version they were written in."""
        tensors = self.require_finished().read_tensors("model.safetensors")
        return _without_hidden_biases(tensors) if self.record["format_version"] < 2 else tensors

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def save_checkpoint(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        metadata = {"state": json.dumps(state, allow_nan=False), "run": self._identity()}
        self.write_tensors(CHECKPOINT, tensors, metadata, record=False)

    def _identity(self) -> str:
        """A checksum of recipe and data: what a run's checkpoint carries, and no other run's does."""
        return _json_checksum([self.record["files"]["config.toml"], self.record["data"]["fingerprint"]])

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors and the loop state of the last checkpoint, or None where none has been written."""
        path = self.file(CHECKPOINT)
        if not path.is_file():
            return None
        if self.record["format_version"] != FORMAT_VERSION:
            raise RunError(f"{path} was begun by an older hmlet", "finish it with that one, or choose another --out")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = dict(file.metadata() or {})
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise RunError(f"{path} is damaged ({error})", "delete it to train from the start") from error
        if metadata.pop("checksum", "") != _tensor_checksum(tensors, metadata):
            raise RunError(f"{path} is damaged (its checksum differs)", "delete it to train from the start")
        if metadata["run"] != self._identity():
            raise RunError(f"{path} is of another run", "put the right one there, or delete it to train from the start")
        return tensors, json.loads(metadata["state"])

    @contextmanager
    def lock(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the directory alone, after waiting for others for up to `patience` seconds."""
        self._require_own()
        with held(self.path / LOCK, patience, RunError):
            self._remove_leftovers()
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the directory alone, with the record as it is by now."""
        with self.lock(PATIENCE):
            self.record = RunDirectory.open(self.path).record
            yield

    @contextmanager
    def update(self) -> Iterator[None]:
        """Hold the directory alone and add to the record; it is written when all has gone well."""
        with self.alone():
            yield
            self.write_record()

    def _require_own(self) -> None:
        """Refuse a place that holds anything but a run, or what is left of a start killed before its record."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise unwritable(self.path, error, RunError) from error
        begun = LOCK in names and all((temporary_for(name) or name) in _FIRST_FILES for name in names)
        if names and RECORD not in names and not begun:
            raise RunError(
                f"{self.path} is not a run directory (it has no run.json), and it is not empty", "choose another --out"
            )

    def _remove_leftovers(self) -> None:
        """Remove what a killed process was about to rename."""
        for entry in list(self.path.iterdir()):
            if temporary_for(entry.name) is None:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Names the file in what the system or safetensors say against reading it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot read {path}: {error}", "mend the disk, or restore it from a copy") from error


def _save_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _json_checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _tensor_checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, and over the strings beside them."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _without_hidden_biases(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Version 1's gates as version 2 has them: (x + b) - mean is x - (mean - b), and the last bias has no number."""
    upgraded = dict(tensors)
    for name in tensors:
        gate, dot, number = name.rpartition(".bias.")
        if not (gate.startswith("gates.") and dot and number.isdigit()):
            continue
        mean = f"{gate}.norm.{number}.running_mean"
        if mean in tensors:
            upgraded[mean] = tensors[mean] - tensors[name]
        else:
            upgraded[f"{gate}.bias"] = tensors[name]
        del upgraded[name]
    return upgraded


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


def versions() -> dict[str, str]:
    """The versions that a run records of what computes its numbers."""
    return {
        "hmlet": VERSION,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def hardware(device: str) -> dict[str, Any]:
    """The machine that a device is on, as a run records it."""
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "kind": device,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }
