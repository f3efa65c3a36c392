"""HTTP clients for bench_serve.py, which shares the cores with the server that it measures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
REST = b"Content-Length: %d\r\nConnection: %s\r\n\r\n%s"


def post(path: str, body: Any, keep: bool = True) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (HEAD + REST) % (path.encode(), len(content), b"keep-alive" if keep else b"close", content)


class Client:
    """Connections that are kept and reused."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, request: bytes) -> int:
        """The status of the answer, read to its end; 0 where the connection broke."""
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof():  # the server closes a connection that nobody used for some seconds
                break
            writer.close()
        else:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                return 0
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            writer.close()
            return 0
        if b"connection: close" in head.lower():
            writer.close()
        else:
            self.idle.append((reader, writer))
        return int(head[9:12])


class Connection(asyncio.Protocol):
    """A connection that sends a request at a time. It does little else, because it shares the server's cores."""

    def __init__(self, answered: Callable[[Connection, int], None]) -> None:
        self.answered = answered  # hears the status of every answer; 0 if the connection broke before it
        self.received, self.size, self.planned = b"", 0, 0.0
        self.is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def ask(self, request: bytes, planned: float = 0.0) -> None:
        self.is_waiting, self.planned = True, planned
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.size and b"\r\n\r\n" in self.received:
            head = self.received.partition(b"\r\n\r\n")[0].lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self.size = len(head) + 4 + int(length)
        if self.size and len(self.received) >= self.size:
            status = int(self.received[9:12])
            self.received, self.size, self.is_waiting = b"", 0, False
            self.answered(self, status)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_waiting:
            self.answered(self, 0)
