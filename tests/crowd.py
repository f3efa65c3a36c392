"""Clients that misbehave, many at a time, and ordinary ones beside them on a fixed timetable, as two processes."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from server import Server

HEAD = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ORDINARY, MISBEHAVING = (Path(__file__).with_name(name) for name in ("ordinary.py", "misbehaving.py"))


def post(body: object) -> bytes:
    content = json.dumps(body).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(content), content)


def memory_mb(pid: int) -> float:
    """The resident memory of a process that is its own: pages of libraries are the system's to take back."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


@dataclass(frozen=True)
class Seen:
    """What ordinary clients saw, how late they were themselves, and the most memory that the service took."""

    statuses: list[int]
    refusals: list[str]
    milliseconds: list[float]
    late: list[float]
    megabytes: float

    @property
    def p99(self) -> float:
        return float(np.percentile(self.milliseconds, 99))

    @property
    def late_p99(self) -> float:
        return float(np.percentile(self.late, 99))


class Crowd:
    """A service, ordinary clients that want `ask` answered, and others that misbehave and come back when closed."""

    def __init__(self, server: Server, ask: object, large: object) -> None:
        self.server = server
        self.ask, self.large = post(ask), post(large)
        self.closed: list[float] = []  # how many seconds each connection of a misbehaving client lasted
        threading.Thread(target=server.process.wait, args=(600,), daemon=True).start()  # reads the log

    def run(self, seconds: float, rate: float, **misbehaving: int) -> Seen:
        """What ordinary requests at a rate see for so long; `slow_headers=1000` has so many of these beside them."""
        return asyncio.run(self._run(seconds, rate, misbehaving))

    async def _run(self, seconds: float, rate: float, misbehaving: dict[str, int]) -> Seen:
        weights: list[float] = []
        weighing = asyncio.create_task(self._weigh(weights))
        others = await _start(MISBEHAVING, self.server.port, json.dumps(misbehaving))
        assert others.stdin is not None
        others.stdin.write(b"%d\n%s" % (len(self.large), self.large))
        if misbehaving:
            await asyncio.sleep(2)  # until all are connected
        ordinary = await _start(ORDINARY, self.server.port, rate, seconds)
        written, _ = await ordinary.communicate(self.ask)
        lasted, _ = await others.communicate(b"")  # ends its standard input
        weighing.cancel()
        self.closed += json.loads(lasted)
        found = json.loads(written)
        statuses, milliseconds, refusals = map(list, zip(*found["answers"], strict=True))
        return Seen(statuses, [each for each in refusals if each], milliseconds, found["late"], max(weights))

    async def _weigh(self, weights: list[float]) -> None:
        while True:
            weights.append(memory_mb(self.server.process.pid))
            await asyncio.sleep(0.2)


async def _start(script: Path, *arguments: object) -> asyncio.subprocess.Process:
    command = [sys.executable, str(script), *map(str, arguments)]
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 24)
