"""A strict HTTP client on a raw socket: what it sends is bytes, and it counts every answer that comes back."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

HOST = b"Host: localhost\r\n"
TYPE = b"Content-Type: application/json\r\n"
PROBE = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HEALTHY = {"status": "ok"}
SECONDS = 30.0  # that an answer may take


def post(body: object, path: bytes = b"/v1/recommend", headers: bytes = b"") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = b"POST %s HTTP/1.1\r\n" % path + HOST + TYPE + headers
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(content), content)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    interim: list[int] = field(default_factory=list)  # statuses 1xx before it

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


class Wire:
    """One connection. Whatever does not parse as an answer is an error."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes, pause: float = 0.0) -> None:
        """Send the pieces one by one; a service that has refused may have closed already."""
        try:
            for piece in pieces:
                self.socket.sendall(piece)
                if pause:
                    time.sleep(pause)
        except ConnectionError:
            pass

    def _more(self) -> bool:
        try:
            received = self.socket.recv(1 << 16)
        except ConnectionError:
            received = b""
        self.buffer += received
        return bool(received)

    def _until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            assert self._more(), f"closed within an answer: {self.buffer!r}"
        found, _, self.buffer = self.buffer.partition(end)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            assert self._more(), f"closed within a body: {len(self.buffer)} of {size} bytes"
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    def answer(self, method: str = "GET") -> Answer | None:
        """The next answer; None if the service closes the connection instead."""
        interim: list[int] = []
        while self.buffer or self._more():
            first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            version, status, _ = f"{first} ".split(" ", 2)
            assert version in ("HTTP/1.1", "HTTP/1.0"), first
            headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
            if status.startswith("1"):
                interim.append(int(status))
                continue
            return Answer(int(status), headers, self._body(method, int(status), headers), interim)
        return None

    def _body(self, method: str, status: int, headers: dict[str, str]) -> bytes:
        if method == "HEAD" or status in (204, 304):
            return b""
        if headers.get("transfer-encoding") == "chunked":
            assert "content-length" not in headers
            found = b""
            while size := int(self._until(b"\r\n"), 16):
                found += self._exactly(size)
                assert self._exactly(2) == b"\r\n"
            assert self._exactly(2) == b"\r\n"
            return found
        if "content-length" in headers:
            return self._exactly(int(headers["content-length"]))
        while self._more():
            pass
        found, self.buffer = self.buffer, b""
        return found


def ask(port: int, request: bytes, method: str = "GET") -> Answer:
    """The answer to a request on a connection of its own."""
    with Wire(port) as wire:
        wire.send(request)
        found = wire.answer(method)
        assert found is not None, "closed without an answer"
        return found


def answers(port: int, pieces: Iterable[bytes], expected: int = 1, pause: float = 0.0) -> list[Answer]:
    """All answers to what is sent. A probe follows on the same connection; if it is open, its answer has to be last."""
    found: list[Answer] = []
    with Wire(port) as wire:
        wire.send(*pieces, pause=pause)
        while len(found) < expected and (answer := wire.answer()) is not None:
            found.append(answer)
            if answer.closes:
                break
        if not found or not found[-1].closes:
            wire.send(PROBE)
        is_open = False
        while (answer := wire.answer()) is not None:
            assert not is_open, "an answer after the probe's"
            is_open = answer.status == 200 and answer.body == b'{"status":"ok"}'
            found += [] if is_open else [answer]
    return found


def in_step(port: int) -> None:
    """Other clients, whose requests may share a proxy's connections with earlier ones, get their own answers."""
    for k in (1, 2, 3):
        with Wire(port) as wire:
            wire.send(post({"users": ["gimp"], "k": k}))
            answer = wire.answer()
            assert answer is not None
            assert answer.status == 200, answer
            assert len(answer.json()[0]["items"]) == k
            wire.send(PROBE)
            answer = wire.answer()
            assert answer is not None
            assert answer.json() == HEALTHY


def refusal(answer: Answer) -> dict[str, str]:
    """The error of an answer, which must have the one shape."""
    assert answer.headers.get("content-type") == "application/json", answer
    body = answer.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"code", "message", "hint"}, body
    assert all(isinstance(value, str) for value in body["error"].values()), body
    error: dict[str, str] = body["error"]
    return error
