"""How many CPU threads to use, and how they wait for each other.

The number of threads decides the order in which sums are added up, and so the last digits of a result; on tiny data
they can grow to a percent of NDCG. So a command and a call in Python take the same number: as many as the process may
use. It is not measured, because what is fast depends on what else the machine does. A resumed run takes the number of
its first call.

OpenMP's threads spin while they wait. When another process needs the cores, a spinning thread takes the time that the
one it waits for would need, and every further thread makes a step many times as slow. So hmlet asks OpenMP to let them
sleep instead, if hmlet is what loads PyTorch. PyTorch is imported inside functions: OpenMP has to be asked before.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hmlet.errors import ConfigError
from hmlet.system.spelling import option

CGROUPS = Path("/sys/fs/cgroup")
MOST_THREADS = 1024  # OpenMP ends the process where the system refuses it a thread
SLEEPING = "passive"  # the value of OMP_WAIT_POLICY


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


@contextmanager
def working_threads(wanted: int | None = None) -> Iterator[None]:
    """PyTorch's thread count inside the block: `wanted`, or as many as the process may use."""
    import torch

    if wanted is not None and not 1 <= wanted <= MOST_THREADS:
        raise ConfigError(
            f"{wanted} is not a valid number of threads",
            f"use 1 to {MOST_THREADS}, for example {option('threads', possible_threads())}",
        )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(wanted or possible_threads())
        yield
    finally:
        torch.set_num_threads(before)


def wait_without_spinning() -> None:
    """Let OpenMP's threads sleep while they wait, unless the environment says otherwise.

    OpenMP reads this when PyTorch is loaded, so nothing is asked after that.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", SLEEPING)
