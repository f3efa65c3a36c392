"""uvicorn's HTTP connection with what it lacks: a bound on a head, time-outs for heads and readers, our error shape.

This relies on names inside uvicorn (`cycle`, `flow`, `send_400_response`), so pyproject.toml bounds its version, and
tests/serving/test_sockets.py notices a change.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hmlet.serving.errors import Refusal, shape

MOST_HEAD = 1 << 16  # bytes of a head, or of anything else that is no body
MOST_PIPELINED = 128  # requests that wait for the answer to one before
BAD_REQUEST = Refusal(400, "this is not an HTTP request with a head of at most 64 KiB", "check the client")


class Connection(HttpToolsProtocol):
    """One connection. `since` is when it began to wait for a head, `stuck` when its client stopped reading."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since, self.unframed = self.loop.time(), 0
        self.stuck: float | None = None

    def data_received(self, data: bytes) -> None:
        self.unframed += len(data)
        super().data_received(data)
        if self.unframed > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        self.unframed = 0
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests came before their answers")
        framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        if framed and self.parser.should_upgrade():  # the parser would take the body for the next request
            raise ValueError("a request to upgrade has a body")
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            raise ValueError("the head is too long")  # the parser turns each of these into a bad request
        super().on_headers_complete()
        self.scope["headers"] = list(self.headers)  # without trailers, which would be added to these
        if self.parser.should_upgrade():  # which this server never does, and what follows is not parsed
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self.unframed = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self.stuck = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stuck = None
        super().resume_writing()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to stay open although the client sends no more: until its whole request has been answered."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, after the answer to the request before it."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self.cycle.keep_alive = False
            return
        body = shape(BAD_REQUEST)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(head + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        self.transport.close()

    def is_overdue(self, seconds: float) -> bool:
        """Whether its client has sent no whole head, or read nothing of its answer, for so long."""
        waits = self.cycle is None or self.cycle.response_complete
        since = self.stuck if self.stuck is not None else self.since if waits else None
        return since is not None and self.loop.time() - since > seconds


async def sweep(connections: set[Any], seconds: float) -> None:
    """Close overdue connections, once a second."""
    while True:
        await asyncio.sleep(1)
        for each in [each for each in connections if each.is_overdue(seconds)]:
            each.transport.abort()
