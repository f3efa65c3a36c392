"""Services as processes, for the benchmarks over HTTP: started from a tree or a script, weighed, and stopped.

Nothing here imports hmlet, so one script can measure two trees.
"""

from __future__ import annotations

import os
import platform
import random
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pyarrow.parquet as pq
from harness import commit

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
LIBRARIES = ("numpy", "torch", "uvicorn", "httptools", "starlette", "fastapi", "msgspec")


class Service:
    """A process that answers HTTP on a port of 127.0.0.1, with one BLAS thread."""

    def __init__(self, port: int, *command: str, log: Path | None = None, **variables: str) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        began = time.perf_counter()
        with open(log or os.devnull, "wb") as written:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command, "--port", str(port)],
                stdout=written,
                stderr=written,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **variables},
            )
        while not self._answers():
            if self.process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with status {self.process.returncode}")
            time.sleep(0.01)
        self.start_seconds = time.perf_counter() - began

    @classmethod
    def hmlet(cls, run: Path, *options: str, tree: Path = TREE, log: Path | None = None) -> Service:
        """`hmlet serve` from a checkout."""
        return cls(free_port(), "hmlet", "serve", str(run), *options, log=log, PYTHONPATH=str(tree / "src"))

    @classmethod
    def uvicorn(cls, module: str, **variables: str) -> Service:
        """An application beside this file, with the parser and the event loop of `hmlet serve`."""
        options = ["--http", "httptools", "--loop", "asyncio", "--log-level", "error", "--no-access-log"]
        return cls(free_port(), "uvicorn", f"{module}:app", "--app-dir", str(HERE), *options, **variables)

    def _answers(self) -> bool:
        try:
            urlopen(f"{self.url}/v1/ready", timeout=10).close()
        except HTTPError:  # the bare service knows only one path
            return True
        except OSError:
            return False
        return True

    @property
    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Processor time so far, of all threads and of workers."""
        return sum(sum(each.cpu_times()[:2]) for each in self.processes)

    def memory_mb(self) -> dict[str, float]:
        """Resident memory, and the share of it that is this service's alone or its part of what is shared."""
        found = [each.memory_full_info() for each in self.processes]
        return {name: round(sum(getattr(each, name) for each in found) / 2**20, 1) for name in ("rss", "pss")}

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ids_of(run: Path, side: str, most: int | None = None) -> list[int | str]:
    """The ids of a run's users or items, in a fixed random order, as its service takes them in JSON."""
    ids: list[int | str] = pq.read_table(run / "data" / f"{side}s.parquet", columns=["id"])["id"].to_pylist()
    random.Random(0).shuffle(ids)
    return ids[:most]


def circumstances(*trees: Path) -> dict[str, Any]:
    """What a figure depends on: processor, memory, load, versions, commits."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("model name\t: ")[2].partition("\n")[0]
    return {
        "hardware": {
            "cpu": cpu or platform.machine(),
            "cores": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30),
            "load": [round(each, 2) for each in os.getloadavg()],
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "commits": [commit(tree) for tree in trees],
    }


def differing(found: list[dict[str, Any]], expected: list[dict[str, Any]], tolerance: float) -> str | None:
    """How two ranked lists differ, if they do: the items of one rank may differ only if their scores tie."""
    if len(found) != len(expected) or len({each["item"] for each in found}) != len(found):
        return f"{len({each['item'] for each in found})} items, not {len(expected)}"
    scores = {each["item"]: each["score"] for each in expected}
    for rank, (one, other) in enumerate(zip(found, expected, strict=True), 1):
        last = expected[-1]["score"]  # an item beyond the expected list can only tie with its end
        for score in (other["score"], scores.get(one["item"], last)):
            if abs(one["score"] - score) > tolerance * max(abs(score), 1e-3):
                return f"rank {rank} is {one}, not {other}"
    return None
