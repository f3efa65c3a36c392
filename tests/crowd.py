"""Clients that misbehave, many at a time, and ordinary ones beside them on a fixed timetable."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from served import Server

HEAD = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ORDINARY = Path(__file__).with_name("ordinary.py")
Client = Callable[["Crowd"], Awaitable[None]]


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
    """A service, ordinary clients that want `ask` answered, and others that come back whenever they are closed."""

    def __init__(self, server: Server, ask: object, large: object) -> None:
        self.server = server
        self.ask, self.large = post(ask), post(large)
        self.closed: list[float] = []  # how long each connection of a misbehaving client lasted
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
        threading.Thread(target=server.process.wait, args=(600,), daemon=True).start()  # reads the log

    def run(self, seconds: float, rate: float, **misbehaving: int) -> Seen:
        """What ordinary requests at a rate see for so long; `slow_headers=1000` has so many of these beside them."""
        return asyncio.run(self._run(seconds, rate, misbehaving))

    async def _run(self, seconds: float, rate: float, misbehaving: dict[str, int]) -> Seen:
        clients: dict[str, Client] = {each.__name__: each for each in (slow_headers, slow_bodies, slow_readers)}
        tasks = [
            asyncio.create_task(self._return(clients[name]))
            for name, count in misbehaving.items()
            for _ in range(count)
        ]
        weights: list[float] = []
        tasks.append(asyncio.create_task(self._weigh(weights)))
        if misbehaving:
            await asyncio.sleep(2)  # until all are connected
        command = [sys.executable, str(ORDINARY), *map(str, (self.server.port, rate, seconds))]
        ordinary = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 24)
        written, _ = await ordinary.communicate(self.ask)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found = json.loads(written)
        statuses, milliseconds, refusals = map(list, zip(*found["answers"], strict=True))
        return Seen(statuses, [each for each in refusals if each], milliseconds, found["late"], max(weights))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.port)

    async def _weigh(self, weights: list[float]) -> None:
        while True:
            weights.append(memory_mb(self.server.process.pid))
            await asyncio.sleep(0.2)

    async def _return(self, client: Client) -> None:
        while True:
            began = time.monotonic()
            with suppress(OSError):
                await client(self)
            self.closed.append(time.monotonic() - began)
            await asyncio.sleep(1)


async def slow_headers(crowd: Crowd) -> None:
    await _drip(crowd, b"", HEAD)


async def slow_bodies(crowd: Crowd) -> None:
    await _drip(crowd, HEAD + b"Content-Length: 60000\r\n\r\n" + b" " * 50_000, b" " * 9_000)


async def _drip(crowd: Crowd, first: bytes, rest: bytes) -> None:
    """Send a byte a second after the first part, until the service closes the connection."""
    reader, writer = await crowd.connect()
    try:
        writer.write(first)
        for at in range(len(rest)):
            writer.write(rest[at : at + 1])
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 1)
                return
    finally:
        writer.transport.abort()


async def slow_readers(crowd: Crowd) -> None:
    """Ask for a large answer again and again, and read nothing, until the service closes the connection."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", crowd.server.port))
        await loop.sock_sendall(client, 8 * crowd.large)
        while True:
            await asyncio.sleep(1)
            await loop.sock_sendall(client, b" ")  # fails once the connection is reset
