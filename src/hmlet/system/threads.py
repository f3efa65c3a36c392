"""How many CPU threads to use, and how they wait for each other.

OpenMP's threads spin while they wait. When another process needs the cores, a spinning thread takes the time that the
one it waits for would need, and every further thread makes a step many times as slow. So the command line asks OpenMP
to let them sleep instead, and then as many threads as the process may use are right on a busy machine too. In a process
that is not ours from the beginning they spin, and a short measurement compares thread counts before work begins.

The number of threads decides the order in which sums are added up, and so the last digits of a result. That is why the
number is measured only where it has to be, fewer threads are taken only if they are clearly faster, and a resumed run
takes the number of its first call. PyTorch is imported inside functions: OpenMP has to be asked before it is loaded.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hmlet.errors import ConfigError
from hmlet.system.spelling import option

CGROUPS = Path("/sys/fs/cgroup")
SLEEPING = "passive"  # the value of OMP_WAIT_POLICY
CLEARLY = 1.5  # how many times as fast fewer threads have to be
ROUNDS = 6  # repetitions of the work for each count; the median counts, since one may be preempted
ROWS, COLUMNS = 8192, 64  # of the product that is timed: about a millisecond


def possible_threads(root: Path = CGROUPS) -> int:
    """How many threads this process can keep busy: its CPU affinity, its cgroup's quota and OMP_NUM_THREADS."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    limits = [cores, quota(root), int(wanted) if wanted.isdecimal() else math.inf]
    return max(1, int(min(limits)))


def quota(root: Path = CGROUPS) -> float:
    """The CPUs' worth of time that the process's cgroup may use, rounded up; infinite if there is no limit."""
    unified = _words(root / "cpu.max")  # version 2: "200000 100000", or "max 100000"
    if len(unified) == 2 and unified[0] != "max":
        return math.ceil(int(unified[0]) / int(unified[1]))
    microseconds, period = _words(root / "cpu" / "cpu.cfs_quota_us"), _words(root / "cpu" / "cpu.cfs_period_us")
    if microseconds and period and int(microseconds[0]) > 0:  # version 1; -1 is no limit
        return math.ceil(int(microseconds[0]) / int(period[0]))
    return math.inf


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return []


def choose_threads(possible: int, seconds: Callable[[int], float]) -> int:
    """The most threads that no smaller count, of a half, a quarter, … and 1, clearly beats; `seconds` times a count."""
    if possible == 1:
        return 1
    counts = [possible]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    times = {count: seconds(count) for count in counts}
    fastest = min(times.values())
    return next(count for count in counts if times[count] <= CLEARLY * fastest)


@contextmanager
def working_threads(wanted: int | None = None, *, measured: bool = True) -> Iterator[None]:
    """PyTorch's thread count inside the block: `wanted`, or what is possible and, if `measured`, fast.

    Threads that sleep while they wait are not measured.
    """
    import torch

    if wanted is not None and wanted < 1:
        raise ConfigError(f"{wanted} is not a valid number of threads", f"use {option('threads', 1)} or more")
    before = torch.get_num_threads()
    try:
        if wanted is None:
            possible = possible_threads()
            wanted = _measured(possible) if measured and _spinning() else possible
        torch.set_num_threads(wanted)
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _measured(possible: int) -> int:
    """The count that is fast, measured once: one seed gives one result for the life of a process."""
    return choose_threads(possible, _seconds)


def _seconds(threads: int) -> float:
    """The median time of a product, and of the short sums that follow it in a step, with so many threads."""
    import torch

    torch.set_num_threads(threads)
    left, right = torch.ones(ROWS, COLUMNS), torch.ones(COLUMNS, COLUMNS)
    times = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        for _ in range(3):
            (left @ right).relu_().sum(0)
        times.append(time.perf_counter() - began)
    return sorted(times[1:])[ROUNDS // 2]  # the first starts the threads


def _spinning() -> bool:
    return os.environ.get("OMP_WAIT_POLICY", "").lower() != SLEEPING


def wait_without_spinning() -> None:
    """Let OpenMP's threads sleep while they wait, unless the environment says otherwise.

    OpenMP reads this when PyTorch is loaded, so only a process that is ours from the beginning can ask for it.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", SLEEPING)
