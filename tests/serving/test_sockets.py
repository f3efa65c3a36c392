"""Clients over real sockets that send slowly, do not read, send nonsense, or are too many; and what others notice."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from crowd import HEAD, memory_mb, post
from served import Server
from server import answer_of

from hmlet.api import Run

Start = Callable[..., Server]
ASK = {"users": ["gimp"], "k": 20}


def ask(server: Server, body: object = ASK) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/recommend", json=body, trust_env=False, timeout=30)


def large_request(run: Run, pairs: int = 100_000) -> dict[str, object]:
    """A request for so many recommendations: megabytes, more than the system keeps for a client that does not read."""
    users = run.data.users.ids.to_pylist()
    return {"users": (users * 1000)[: pairs // 1000], "k": 1000}


def received(client: socket.socket) -> bytes:
    """All that comes until the service closes the connection."""
    found = b""
    try:
        while data := client.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


@pytest.fixture(scope="module")
def strict(runs: Path) -> Iterator[Server]:
    """A service that bears little."""
    server = Server(str(runs / "first"), seconds=2, in_flight=2, large_bodies=2)
    yield server.wait_until_ready()
    server.stop()


def test_slow_bodies_take_no_slot(strict: Server, run: Run) -> None:
    server = strict
    clients = [server.connect() for _ in range(20)]
    for client in clients:
        client.sendall(HEAD + b"Content-Length: 50\r\n\r\n{")
    time.sleep(0.2)
    assert all(ask(server).json() == run.recommend(["gimp"], 20) for _ in range(5))
    for client in clients:
        assert received(client).startswith(b"HTTP/1.1 408 ")


def test_large_bodies_that_arrive_are_limited_together(strict: Server) -> None:
    server = strict
    clients = [server.connect() for _ in range(3)]
    for client in clients:
        client.sendall(HEAD + b"Content-Length: 200000\r\n\r\n" + b" " * 100_000)
        time.sleep(0.2)
    head, body = answer_of(clients[2])
    assert (head[9:12], json.loads(body)["error"]["code"]) == (b"503", "overloaded")
    assert ask(server).status_code == 200  # small ones are always received
    for client in clients:
        client.close()
    time.sleep(0.2)  # until the service has seen that they are gone
    with server.connect() as client:
        client.sendall(HEAD + b"Content-Length: 200000\r\n\r\n" + b" " * 200_000)
        assert client.recv(4096).startswith(b"HTTP/1.1 422 ")


def test_a_client_that_does_not_read_is_closed(strict: Server, run: Run) -> None:
    server, before = strict, answered(strict)
    with server.connect() as client:
        began = time.monotonic()
        client.sendall(post(large_request(run)) * 8)  # of which the service takes up one at a time
        with suppress(ConnectionError):
            while time.monotonic() - began < 20:
                client.sendall(b" ")
                time.sleep(0.1)
        assert 1.5 < time.monotonic() - began < 20
    assert answered(server) - before == 1
    assert ask(server).status_code == 200


def answered(server: Server) -> int:
    """How many recommendations the service has given."""
    metrics = httpx.get(f"{server.url}/metrics", trust_env=False).text
    found = re.search(r'hmlet_requests_total{route="/v1/recommend",status="200"} (\d+)', metrics)
    return int(found[1]) if found else 0


def test_large_requests_take_little_memory(start: Start) -> None:
    server = start()
    lists = json.dumps({"users": ["gimp"] * 10_000}).encode()
    bodies = [
        lists,
        b'{"users": ["gimp"], "k": 1%s}' % (b"0" * 30),
        b'{"users": [%s' % (b"[]," * 300_000),
        b"[" * 1_000_000,
    ]

    def send_all() -> None:
        for body in bodies:
            with server.connect() as client:
                client.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                assert client.recv(4096).startswith(b"HTTP/1.1 422 ")
        with server.connect() as client, suppress(ConnectionError):
            client.sendall(HEAD + b"Content-Length: 300000000\r\n\r\n")
            for _ in range(300):
                client.sendall(b" " * 1_000_000)

    send_all()
    before = memory_mb(server.process.pid)
    send_all()
    assert memory_mb(server.process.pid) - before <= 16
    assert ask(server).status_code == 200


NAMES = [
    *(b"Host", b"Origin", b"Authorization", b"Content-Type", b"Content-Length", b"Transfer-Encoding", b"Connection"),
    *(b"Expect", b"Upgrade", b"Accept", b"Accept-Encoding", b"Cookie", b"Range", b"If-None-Match", b"X-Request-Id"),
    *(b"X-Forwarded-For", b"Forwarded", b"Te", b"Trailer", b"Keep-Alive", b"Referer", b"User-Agent", b"X-\xff", b""),
]
PIECES = [
    *(b"http://", b"[", b"]", b"::1", b"127.0.0.1", b"localhost", b":", b"99999999999999999999", b"-1", b"0"),
    *(b"chunked", b"close", b"100-continue", b"websocket", b"bytes=0-", b"Bearer ", b"application/json"),
    *(b";", b"charset=utf-16", b"null"),
    *(b"\xff", b"\xc3\xa9", b"\xb2", b"%00", b"\\", b"\"", b"'", b",", b" ", b"\t", b"a" * 3000, b"*", b"@", b"/"),
]  # fmt: skip


def test_no_header_causes_an_internal_error(server: Server) -> None:
    dice = random.Random(20)
    statuses = set()
    for _ in range(400):
        extra = b"".join(
            b"%s: %s\r\n" % (dice.choice(NAMES), b"".join(dice.choices(PIECES, k=dice.randrange(5))))
            for _ in range(dice.randrange(1, 4))
        )
        host = b"Host: localhost\r\n" if dice.random() < 0.8 else b""
        line = dice.choice([b"GET /v1/model HTTP/1.1\r\n", b"POST /v1/recommend HTTP/1.1\r\n"])
        with server.connect() as client:
            client.sendall(line + host + extra + b"\r\n{}")
            client.shutdown(socket.SHUT_WR)
            answer = received(client)
        status = int(answer[9:12]) if answer else 0
        assert status < 500 or status == 501, (extra, answer)
        statuses.add(status)
    assert {200, 400, 403} <= statuses


@pytest.mark.parametrize(
    "request_",
    [post(ASK), post({"users": ["gimp"], "novelty": 0.5}), b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    ids=["good", "bad", "no body"],
)
def test_a_client_that_sends_no_more_is_answered(server: Server, request_: bytes) -> None:
    for wait in (0.0, 0.05):
        with server.connect() as client:
            client.sendall(request_)
            client.shutdown(socket.SHUT_WR)
            time.sleep(wait)
            began = time.monotonic()
            answer = received(client)
            assert time.monotonic() - began < 3  # the service closes the connection
        assert re.match(rb"HTTP/1.1 [24]\d\d ", answer)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"


def test_half_a_request_has_no_answer(server: Server) -> None:
    with server.connect() as client:
        client.sendall(post(ASK)[:-1])
        client.shutdown(socket.SHUT_WR)
        assert received(client) == b""


def test_pipelined_requests_are_answered_in_order(server: Server, run: Run) -> None:
    users = ["gimp", "inkscape", "0ad"]
    with server.connect() as client:
        client.sendall(b"".join(post({"users": [user], "k": 3}) for user in users))
        found = b""
        while found.count(b"HTTP/1.1 200 ") < 3 or not found.endswith(b"]"):
            arrived = client.recv(1 << 16)
            assert arrived, "closed before the last answer"
            found += arrived
    bodies = [json.loads(part.rpartition(b"\r\n\r\n")[2]) for part in found.split(b"HTTP/1.1 200 ")[1:]]
    assert bodies == [run.recommend([user], 3) for user in users]


def test_few_requests_are_taken_before_their_answers(server: Server) -> None:
    """Each takes memory, so a client that sent 256 KiB of them at once took 14,000 at a time."""
    with server.connect() as client:
        client.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
        assert received(client).count(b"HTTP/1.1 ") < 200
    assert ask(server).status_code == 200


def test_an_upgrade_hides_no_request(server: Server) -> None:
    smuggled = b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for upgrade in (b"Connection: Upgrade\r\nUpgrade: x\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"):
        with server.connect() as client:
            client.sendall(HEAD + upgrade + b"Content-Length: %d\r\n\r\n" % len(smuggled))
            time.sleep(0.1)
            with suppress(ConnectionError):
                client.sendall(smuggled)
            answer = received(client)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1


def test_a_client_that_pipelines_without_end_is_closed(strict: Server, run: Run) -> None:
    with strict.connect() as client:
        client.sendall(post(large_request(run)))
        client.recv(1)  # the answer has begun
        with pytest.raises(ConnectionError):
            client.sendall(post(ASK) * 100_000)
