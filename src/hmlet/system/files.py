"""Files that are replaced whole or not at all: written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from hmlet.errors import HmletError

# What `replacing` and `Dataset.save` write under.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\w+\.tmp(\.old)?")
_UNFINISHED: set[Path] = set()  # what exists under a temporary name now
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@contextmanager
def replacing(path: Path, kind: type[HmletError] = HmletError) -> Iterator[Path]:
    """A path to write to; its content takes the place of `path` once all of it is on disk.

    A failure leaves `path` unchanged and no other file. A failed write raises `kind`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(path.with_name(f".{path.name}.{os.getpid()}.tmp")) as temporary:
            temporary.touch()
            mode = temporary.stat().st_mode  # what the umask gives every file, where safetensors takes 0600
            yield temporary
            temporary.chmod(mode)
            _flush(temporary)
            os.replace(temporary, path)
            _flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise unwritable(path, error, kind) from error


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A file or a directory that is gone after the block, and also when a signal ends the process inside it."""
    _UNFINISHED.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _UNFINISHED.discard(path)


def keep(path: Path) -> None:
    """Have a signal leave this path alone: it is finished, though it still has its temporary name."""
    _UNFINISHED.discard(path)


def remove_unfinished() -> None:
    """Remove what is there under a temporary name. For the end of a process: other threads may still be writing."""
    for path in list(_UNFINISHED):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def put(path: Path, content: bytes) -> Path:
    """The path, with this content."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def temporary_for(name: str) -> str | None:
    """The name that a temporary one, left behind by a process that was killed, was to make room for; else None."""
    found = _TEMPORARY.fullmatch(name)
    return found and found["name"]


def unwritable(path: Path, error: OSError | SafetensorError, kind: type[HmletError]) -> HmletError:
    """The error that names the file and what helps against the system's reason."""
    # safetensors has no number for its reason; it is handed a path in a directory that has just been made or used.
    of_the_disk = getattr(error, "errno", errno.EIO) in _OF_THE_DISK
    hint = "free some space or check the disk" if of_the_disk else "choose another place, or make this one writable"
    return kind(f"cannot write {path}: {getattr(error, 'strerror', None) or error}", hint)


def _flush(path: Path) -> None:
    """Have the system put a file, or a directory's entries, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
