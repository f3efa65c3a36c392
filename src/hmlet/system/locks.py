"""Lock files, held by one process at a time. The system drops the lock of a process that died, so none can be stale."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hmlet.errors import HmletError
from hmlet.system.files import unwritable


@contextmanager
def held(path: Path, patience: float = 0.0, kind: type[HmletError] = HmletError) -> Iterator[None]:
    """Hold a file for its directory, made where there is none, after waiting for others for up to `patience` seconds.

    A system error, or a lock that another process keeps, raises `kind`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise unwritable(path, error, kind) from error
    try:
        deadline = time.monotonic() + patience
        while not _locked(handle):
            if time.monotonic() >= deadline:
                raise kind(f"{path.parent} is being written by another process", "wait for it, or stop it first")
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Whether the lock on an open file is ours now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
