"""Files that a record vouches for: each is written under a temporary name and renamed, and is checked when it is read.

`run.json` names every other file with its SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from hmlet.data.dataset import sha256
from hmlet.data.record import RECORD_FILE, read_record
from hmlet.errors import ConfigError, RunError
from hmlet.runs import tensors as files
from hmlet.runs.locking import locked
from hmlet.runs.record import RECORD, RESTORE, RunRecord, json_text
from hmlet.system.files import replacing, unwritable
from hmlet.system.outside import MOST_RECORD, Content, Origin
from hmlet.system.spelling import call, option
from hmlet.system.tables import Column, read_table

PATIENCE = 10.0  # seconds; adding to a finished run takes a moment


class RecordedFiles:
    """The files of a directory, and their record. Reading checks them; writing is atomic."""

    def __init__(self, path: Path, record: RunRecord) -> None:
        self.path = path
        self.record = record

    @property
    def finished(self) -> bool:
        return self.record.finished

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, name: str, save: Callable[[Path], None]) -> None:
        """Replace a file by what `save` writes, and record its checksum.

        The record of a finished run vouches for the old content and the new one before it vouches for the new one
        alone: a process may be killed after either of the two renames.
        """
        with replacing(self.path / name, RunError) as temporary:
            save(temporary)
            checksum = sha256(temporary)
            if self.finished and name in self.record.files:
                self.record = self.record.with_file(name, *self.record.files[name], checksum)
                self.write_record()
        self.record = self.record.with_file(name, checksum)

    def write_together(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write the tensors of several files of an unfinished run, side by side; all are in memory at once."""
        with ExitStack() as held, ThreadPoolExecutor(len(tensors)) as pool:
            made = [held.enter_context(replacing(self.path / name, RunError)) for name in tensors]
            checksums = list(pool.map(_saved, made, tensors.values()))
        for name, checksum in zip(tensors, checksums, strict=True):
            self.record = self.record.with_file(name, checksum)

    def write_text(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        def save(path: Path) -> None:
            path.write_bytes(content)

        self.write(name, save)

    def write_json(self, name: str, value: object) -> None:
        self.write_text(name, json_text(value))

    def write_table(self, name: str, table: pa.Table) -> None:
        self.write(name, lambda path: pq.write_table(table, path, compression="zstd"))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.write(name, lambda path: files.save(path, tensors))

    def write_record(self) -> None:
        """Write run.json, the file that vouches for all others."""
        with replacing(self.path / RECORD, RunError) as temporary:
            temporary.write_text(self.record.to_text(), encoding="utf-8")

    def remove(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path / name, error, RunError) from error
        self.record = self.record.without_file(name)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the directory alone, with the record as it is by now."""
        with locked(self.path, PATIENCE):
            self.record = record_in(self.path)
            yield

    @contextmanager
    def update(self) -> Iterator[None]:
        """Hold the directory alone and add to the record, which is written unless something fails."""
        with self.alone():
            yield
            self.write_record()

    # -- reading --------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def file(self, name: str) -> Path:
        """The path of a file in the directory itself; names and links that lead out of it are refused."""
        return inside(self.path, name)

    def origin(self, name: str) -> Origin:
        """A file of the directory, for reading and for errors."""
        return Origin(self.file(name), RunError, RESTORE)

    def content(self, name: str, most: int | None = None) -> Content:
        """The bytes of a recorded file, whose checksum is what the record says."""
        self._recorded(name)
        content = self.unchecked(name, most)
        self._vouch(name, content.sha256)
        return content

    def unchecked(self, name: str, most: int | None = None) -> Content:
        """The bytes of a file that the record may not know."""
        return self.origin(name).read(most)

    def read_bytes(self, name: str) -> bytes:
        return self.content(name).data

    def read_json(self, name: str) -> dict[str, object]:
        return self.content(name, MOST_RECORD).json_object()

    def read_table(self, name: str, columns: Mapping[str, Column]) -> pa.Table:
        """A recorded Parquet file that has these columns, and perhaps others."""
        return read_table(self.content(name), columns)

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of a recorded safetensors file."""
        stored = files.read(self._recorded(name))
        self._vouch(name, stored.sha256)
        return stored.tensors

    def _recorded(self, name: str) -> Origin:
        origin = self.origin(name)
        if name not in self.record.files or not self.has(name):
            raise RunError(f"{origin.path} is missing", "the run is incomplete: resume it or train again")
        return origin

    def _vouch(self, name: str, found: str) -> None:
        if found not in self.record.files[name]:
            raise self.origin(name).fault("is damaged or belongs to another run (its checksum differs from run.json)")


def record_in(path: Path) -> RunRecord:
    """The record of a run directory, checked."""
    file = inside(path, RECORD)
    if not file.is_file():
        problem = "is not a run directory (it has no run.json)" if path.exists() else "does not exist"
        raise RunError(f"{path} {problem}", f"train one with {call('fit', out='RUN')}")
    return RunRecord.from_content(Origin(file, RunError, RESTORE).read(MOST_RECORD))


def require_unrecorded(path: Path) -> None:
    """Refuse to replace a file of a run or of a prepared directory: its record, or a file that the record names."""
    place = path.parent
    if not path.is_file():
        return
    for kind, record in (("run", RECORD), ("data set", RECORD_FILE)):
        if (place / record).is_file():
            recorded = record_in(place).files if record == RECORD else read_record(place).checksums
            if path.name in {record, *recorded}:
                raise ConfigError(f"{path} is a file of the {kind} in {place}", f"choose another {option('out')}")


def _saved(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors; returns the file's checksum."""
    files.save(path, tensors)
    return sha256(path)


def inside(directory: Path, name: str) -> Path:
    """The path of a file in a directory. A run may come from a stranger: nothing leads out of it."""
    path = directory / name
    if Path(name).name != name:
        raise RunError(f"{path} is outside the run directory", "do not trust this run")
    if path.is_symlink():
        raise RunError(f"{path} is a symbolic link", "put the file itself there")
    return path
