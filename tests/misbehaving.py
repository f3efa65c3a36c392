"""Clients that misbehave, as a process of their own: they come back whenever the service closes their connection.

`python misbehaving.py PORT '{"slow_headers": 1000}'` runs so many of each kind until its standard input ends, and then
prints how many seconds each connection lasted, as JSON. Standard input begins with what slow readers ask for: its
length on a line, then the request.

A real crowd is on other machines. This one shares the processors with the service, so it takes them last.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

HEAD = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
NICENESS = 10


async def slow_headers(port: int, large: bytes) -> None:
    await _drip(port, b"", HEAD)


async def slow_bodies(port: int, large: bytes) -> None:
    await _drip(port, HEAD + b"Content-Length: 60000\r\n\r\n" + b" " * 50_000, b" " * 9_000)


async def _drip(port: int, first: bytes, rest: bytes) -> None:
    """Send a byte a second after the first part, until the service closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(first)
        for at in range(len(rest)):
            writer.write(rest[at : at + 1])
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 1)
                return
    finally:
        writer.transport.abort()


async def slow_readers(port: int, large: bytes) -> None:
    """Ask for a large answer again and again, and read nothing, until the service closes the connection."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, 8 * large)
        while True:
            await asyncio.sleep(1)
            await loop.sock_sendall(client, b" ")  # fails once the connection is reset


async def come_back(
    client: Callable[[int, bytes], Awaitable[None]], port: int, large: bytes, lasted: list[float]
) -> None:
    while True:
        began = time.monotonic()
        with suppress(OSError):
            await client(port, large)
        lasted.append(time.monotonic() - began)
        await asyncio.sleep(1)


async def main(port: int, counts: dict[str, int]) -> None:
    length = int(sys.stdin.buffer.readline())
    large, lasted = sys.stdin.buffer.read(length), list[float]()
    clients = {each.__name__: each for each in (slow_headers, slow_bodies, slow_readers)}
    tasks = [
        asyncio.create_task(come_back(clients[name], port, large, lasted))
        for name, count in counts.items()
        for _ in range(count)
    ]
    await asyncio.to_thread(sys.stdin.buffer.read)
    for task in tasks:
        task.cancel()
    json.dump(lasted, sys.stdout)


os.nice(NICENESS)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
asyncio.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
