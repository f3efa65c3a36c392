"""`hmlet serve` as a process of its own, and what its answers and its log say."""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import Any

import httpx
from forked import Forked

HMLET = "import hmlet.cli; hmlet.cli.run()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A `hmlet serve` process: where it listens, and what it wrote when it has ended."""

    def __init__(self, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = self.start(*arguments)

    def start(self, *arguments: str) -> Forked:
        return Forked(HMLET, "serve", *arguments, "--port", str(self.port))

    def wait_until_ready(self) -> Server:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.status is None:
            try:
                if httpx.get(f"{self.url}/v1/ready", trust_env=False).status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"not ready: {self.stop()}")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def stop(self) -> str:
        """The log, after SIGTERM and an end in good time."""
        self.process.send(signal.SIGTERM)
        return self.process.wait(30)


def error_of(response: httpx.Response) -> dict[str, str]:
    """The error of an answer, which must have the one shape and no more."""
    body = response.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"code", "message", "hint"}
    assert all(isinstance(value, str) for value in body["error"].values())
    assert response.headers["content-type"] == "application/json"
    result: dict[str, str] = body["error"]
    return result


def log_lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def answer_of(client: socket.socket) -> tuple[bytes, bytes]:
    """The head and the body of the next answer."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += client.recv(1 << 16)
    head, _, body = found.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        while not body.endswith(b"\r\n0\r\n\r\n"):
            body += client.recv(1 << 20)
        return head, unchunked(body)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(1 << 20)
    return head, body


def unchunked(body: bytes) -> bytes:
    found = b""
    while (size := int(body.partition(b"\r\n")[0], 16)) > 0:
        start = body.index(b"\r\n") + 2
        found, body = found + body[start : start + size], body[start + size + 2 :]
    return found
