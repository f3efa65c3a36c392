"""Who may write into a run directory: one process at a time, and only into a directory that holds a run or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hmlet.errors import RunError
from hmlet.runs.record import RECORD
from hmlet.system.files import temporary_for, unwritable
from hmlet.system.locks import held
from hmlet.system.spelling import option

LOCK = "run.lock"
_FIRST_FILES = {LOCK, "config.toml", "ids.parquet", "data", RECORD}


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold a run directory alone, after waiting for other processes for up to `patience` seconds."""
    require_own(path)
    with held(path / LOCK, patience, RunError):
        _remove_leftovers(path)
        yield


def require_own(path: Path) -> None:
    """Refuse a directory that holds anything but a run, or what a start that was killed before its record left."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unwritable(path, error, RunError) from error
    begun = LOCK in names and all((temporary_for(name) or name) in _FIRST_FILES for name in names)
    if names and RECORD not in names and not begun:
        raise RunError(
            f"{path} is not a run directory (it has no run.json), and it is not empty",
            f"choose another {option('out')}",
        )


def _remove_leftovers(path: Path) -> None:
    """Remove what a killed process was about to rename."""
    for entry in list(path.iterdir()):
        if temporary_for(entry.name) is None:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
