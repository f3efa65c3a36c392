"""Memory that a step frees and the next one needs again.

The C library of Linux gives large blocks back to the system at once. The system then hands out the same pages again,
filled with zeros, one page fault each, and a step on the CPU waits for that. Blocks that are kept lie in one heap,
which may grow beyond what the blocks need.
"""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
KEPT = (1 << 31) - 1  # bytes: the largest value that fits the C library's int
USUAL = 1 << 25  # bytes: where the C library's own thresholds end up in a process with large blocks


def keep_freed_memory() -> None:
    """Let this process keep freed blocks for later ones. Does nothing with a C library other than GNU's."""
    if (library := _gnu_library()) is not None:
        library.mallopt(_MMAP_THRESHOLD, KEPT)
        library.mallopt(_TRIM_THRESHOLD, KEPT)


def give_back_freed_memory() -> None:
    """Return to the system what was kept so far, and keep no more than usual from now on."""
    if (library := _gnu_library()) is not None:
        library.mallopt(_MMAP_THRESHOLD, USUAL)
        library.mallopt(_TRIM_THRESHOLD, 2 * USUAL)
        library.malloc_trim(0)


@cache
def _gnu_library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows has no library of the process
        return None
    return library if hasattr(library, "malloc_trim") else None
