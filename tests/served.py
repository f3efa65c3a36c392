"""Small trained runs, and the service over them: in this process, or in one of its own."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from forked import Forked
from starlette.testclient import TestClient

from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.data.catalog import load
from hmlet.serving.app import create_app
from hmlet.serving.observe import Metrics
from hmlet.serving.service import Service
from hmlet.serving.settings import Settings

GIMP = {"users": ["gimp"], "k": 3}
BODIES: list[Any] = [  # requests of every kind, good and bad
    GIMP,
    {"users": ["gimp", "inkscape"], "k": 2, "deny": ["libc6"]},
    {"users": ["gimp"] * 9, "k": 3},  # a large one, which is streamed
    {"users": ["gimp"], "allow": ["libc6", "no such item"], "on_unknown": "skip"},
    {"users": ["nobody"]},
    {"users": ["nobody"], "on_unknown": "skip"},
    {"users": ["gimp"] * 1000, "k": 1000},  # too large
    {"items": ["libc6"], "k": 3},
    {"items": ["no such item"]},
    {"users": ["gimp"], "items": ["libc6"]},
    {"users": ["gimp"], "k": 0},
    {"users": ["gimp"], "k": "3"},
    {"users": [True]},
    {"users": []},
    {"users": ["gimp"], "more": 1},
    {},
    [],
    None,
    "gimp",
]
SMALL = ["train.epochs=1", "model.embedding_size=8", "model.gate_hidden=[8]"]


def train(out: Path, seed: int = 1) -> Run:
    return fit(load("debian"), resolve("hmlet-end", "hmlet", None, SMALL, seed), out)


@contextmanager
def client_of(path: Path, settings: Settings) -> Iterator[TestClient]:
    service = Service(path, settings, Metrics())
    app: Any = create_app(service)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.service = service  # type: ignore[attr-defined]
        yield client


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


HMLET = "import hmlet.cli; hmlet.cli.run()"
# `hmlet serve` with other limits than those that it always has.
LIMITED = """\
import json, sys
from pathlib import Path
from hmlet.serving.server import serve
from hmlet.serving.settings import Limits, Settings
run, port, limits = sys.argv[1:]
serve(Path(run), Settings(port=int(port), limits=Limits(**json.loads(limits))))
"""


class Server:
    """A `hmlet serve` process: where it listens, and what it wrote when it has ended."""

    def __init__(self, *arguments: str, port: int | None = None, **limits: float) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        if limits:
            self.process = Forked(LIMITED, *arguments, str(self.port), json.dumps(limits))
        else:
            self.process = Forked(HMLET, "serve", *arguments, "--port", str(self.port))

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
