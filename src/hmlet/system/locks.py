"""Lock files, held by one process at a time. The system drops the lock of a process that died, so none can be stale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from hmlet.errors import HmletError
from hmlet.system.files import unwritable


@contextmanager
def held(path: Path, patience: float = 0.0, kind: type[HmletError] = HmletError) -> Iterator[None]:
    """Hold a file for its directory, made if it does not exist, after waiting for others for up to `patience` seconds.

    A system error, or a lock that another process keeps, raises `kind`. The file stays: removing it would let two
    processes hold locks of one name.
    """
    lock = FileLock(path, timeout=patience, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise kind(f"{path.parent} is being written by another process", "wait for it, or stop it first") from error
    except OSError as error:
        raise unwritable(path, error, kind) from error
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether anyone holds this lock now."""
    try:
        with FileLock(path, timeout=0.0):
            return False
    except Timeout:
        return True
