"""Clients that send a byte a second or read nothing are closed by the service, and others do not notice them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from crowd import Crowd, memory_mb
from exchanges import HEALTHY, HOST, PROBE, TYPE, Wire, ask, post
from served import Server

from hmlet.api import Run

ASK = {"users": ["gimp"], "k": 20}
LONGEST = 25.0  # seconds that a misbehaving connection lasts: some 10 s, and what a busy machine adds


def large(run: Run, pairs: int = 100_000) -> dict[str, object]:
    """A call for some 6 MB: more than the system keeps for a client that does not read."""
    return {"users": (run.data.users.ids.to_pylist() * 1000)[: pairs // 1000], "k": 1000}


BEGUN = {  # what a slow client has sent before it drips
    "nothing": b"",
    "a first line": b"GET /v1/health HTTP/1.1\r\n",
    "headers": b"GET /v1/health HTTP/1.1\r\n" + HOST,
    "a body": b"POST /v1/recommend HTTP/1.1\r\n" + HOST + TYPE + b"Content-Length: 5000\r\n\r\n",
    "chunks": b"POST /v1/recommend HTTP/1.1\r\n" + HOST + TYPE + b"Transfer-Encoding: chunked\r\n\r\n1000\r\n",
    "a refused body": b"POST /v1/recommend HTTP/1.1\r\n" + HOST + TYPE + b"Content-Length: 300000000\r\n\r\n",
    "a body of GET": b"GET /v1/health HTTP/1.1\r\n" + HOST + b"Content-Length: 5000\r\n\r\n",
    "an answer": PROBE.replace(b"Connection: close\r\n", b""),
}


def test_every_kind_of_slow_client_is_closed(server: Server) -> None:
    lasted: dict[str, float] = {}

    def drip(name: str) -> None:
        began = time.monotonic()
        with Wire(server.port) as wire:
            wire.socket.sendall(BEGUN[name])
            try:
                while time.monotonic() - began < 2 * LONGEST:
                    time.sleep(1)
                    wire.socket.sendall(b"x")
            except OSError:
                pass
        lasted[name] = time.monotonic() - began

    clients = [threading.Thread(target=drip, args=(name,)) for name in BEGUN]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert max(lasted.values()) <= LONGEST, lasted
    assert ask(server.port, PROBE).json() == HEALTHY


def test_ordinary_requests_succeed_beside_a_crowd(start: Callable[..., Server], run: Run) -> None:
    figures = beside(start(seconds=2), run, seconds=8, rate=20, slow_headers=100, slow_bodies=70, slow_readers=20)
    assert figures["longest_seconds"] <= 10, figures


@pytest.mark.slow
def test_ordinary_requests_do_not_notice_a_thousand_slow_clients(start: Callable[..., Server], run: Run) -> None:
    figures = beside(start(), run, seconds=60, rate=50, slow_headers=1000, slow_bodies=200, slow_readers=200)
    assert figures["p99_ms"] <= 5 * figures["quiet_p99_ms"], figures
    assert figures["closed"] >= 2 * 1400, figures  # the crowd came back: it was not short of processor time


def beside(server: Server, run: Run, seconds: float, rate: float, **misbehaving: int) -> dict[str, float]:
    assert ask(server.port, post(large(run))).status == 200
    crowd = Crowd(server, ASK, large(run))
    quiet, before = crowd.run(seconds / 3, rate), memory_mb(server.process.pid)
    seen = crowd.run(seconds, rate, **misbehaving)
    figures = {
        "quiet_p99_ms": quiet.p99,
        "p99_ms": seen.p99,
        "client_late_p99_ms": seen.late_p99,
        "memory_mb": seen.megabytes - before,
        "closed": len(crowd.closed),
        "longest_seconds": max(crowd.closed),
    }
    print(figures, Counter(seen.statuses), Counter(seen.refusals))  # noqa: T201 - `pytest -s` shows the numbers
    assert set(quiet.statuses) == set(seen.statuses) == {200}, Counter(seen.statuses)
    assert figures["memory_mb"] <= 64, figures
    assert figures["longest_seconds"] <= LONGEST, figures
    return figures
