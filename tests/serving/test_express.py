"""Requests that are answered from bytes to bytes: which ones are, and that nobody can tell by the answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from crowd import post
from served import BODIES, GIMP
from server import Server, answer_of
from uvicorn.server import ServerState

from hmlet.api import Run
from hmlet.serving.app import create_guard
from hmlet.serving.express import LONGEST_HEAD, Express
from hmlet.serving.observe import Observe
from hmlet.serving.protocol import impatient
from hmlet.serving.service import Service
from hmlet.serving.settings import Limits, Settings
from hmlet.serving.state import Shelf

ASK = post(GIMP)


def service_of(path: Path, **settings: Any) -> Service:
    settings = Settings(**settings)
    return Service(Shelf(Run.open, path, other=settings.ab, share=settings.share or 0.0), settings)


@pytest.fixture(scope="module")
def express(runs: Path) -> Express:
    service = service_of(runs / "first", token="open sesame")
    return Express(service, create_guard(service))


def asking(*headers: bytes, body: bytes = b'{"users": ["gimp"]}', token: bytes = b"open sesame") -> bytes:
    lines = [b"Host: localhost", b"Content-Type: application/json", b"Authorization: Bearer " + token, *headers]
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join([b"POST /v1/recommend HTTP/1.1", *lines, length, b"", body])


@pytest.mark.parametrize(
    ("request_", "taken"),
    [
        (asking(), True),
        (asking(b"Connection: Keep-Alive", b"X-Anything: a b;c", b"Origin: http://localhost"), True),
        (asking(body=b'{"users": ["gimp", "inkscape"], "k": 5.0, "deny": ["libc6"]}'), True),
        (asking(b"Connection: close"), False),
        (asking(b"Transfer-Encoding: chunked"), False),
        (asking(b"Expect: 100-continue"), False),
        (asking(b"Content-Length: 19"), False),
        (asking(b"Host: localhost"), False),
        (asking(b"Origin: http://evil.example"), False),
        (asking(b"X-Bare: a\nHost: elsewhere"), False),
        (asking(b"X-Folded: a", b" b"), False),
        (asking(b"X-Space : a"), False),
        (asking(b"X-Byte: \xff"), False),
        (asking(b"X-Long: " + b"x" * LONGEST_HEAD), False),
        (asking(token=b"open"), False),
        (asking(body=b'{"users": ["gimp"], "allow": ["' + b"x" * 1000 + b'"]}'), False),
        (asking() + b"P", False),
        (asking()[:-1], False),
        (asking().replace(b"localhost", b"elsewhere"), False),
        (asking().replace(b"POST", b"GET"), False),
        (asking().replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (asking().replace(b"/v1/recommend", b"/v1/recommend?x=1"), False),
        (asking().replace(b"application/json", b"text/plain"), False),
        (asking().replace(b"Content-Length: 19", b"Content-Length: +19"), False),
        (asking(body=b'{"users": ["gimp"], "users": ["inkscape"]}'), False),
        (asking(body=b'{"users": ["gimp"], "k": NaN}'), False),
        (asking(body=b'{"users": ["\xff"]}'), False),
        (asking(body=b'{"users": ["nobody"]}'), False),
        (asking(body=b'{"items": ["libc6"]}'), False),
        (asking(body=json.dumps({"users": ["gimp"] * 9}).encode()), False),
        (b"", False),
    ],
)
def test_only_plain_valid_requests_that_may_enter_are_taken(express: Express, request_: bytes, taken: bool) -> None:
    for _ in range(2):  # the second time from memory
        assert (express.taken(request_) is not None) == taken


def fields(head: bytes) -> dict[bytes, bytes]:
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    return {name: value for name, value in lines.items() if name not in (b"date", b"x-request-id")}


@pytest.mark.parametrize("body", BODIES)
def test_answers_are_those_of_the_general_way(server: Server, body: object) -> None:
    found = []
    for request in (post(body), post(body).replace(b"Host:", b"TE: trailers\r\nHost:")):
        with server.connect() as client:
            client.sendall(request)
            head, content = answer_of(client)
            assert b"date: " in head
            assert b"x-request-id: " in head
            found.append((head.partition(b"\r\n")[0], fields(head), content))
    assert found[0] == found[1]


class Held:
    """A ranking that waits to be released, in place of a run's own."""

    def __init__(self, service: Service) -> None:
        self.entered, self.leave, self.rank = threading.Event(), threading.Event(), service.current.recommend
        service.current.recommend = self  # type: ignore[method-assign, assignment]

    def __call__(self, users: list[Any], k: int, *among: Any) -> Any:
        if k == GIMP["k"]:  # other lists are for the service itself, which warms up
            self.entered.set()
            self.leave.wait(10)
        return self.rank(users, k, *among)


@asynccontextmanager
async def listening(service: Service) -> AsyncIterator[tuple[int, ServerState]]:
    """The port of a service in this process, and what uvicorn knows of its connections."""
    guard = create_guard(service)
    http = impatient(service.settings.limits, service.metrics, Express(service, guard))
    config = uvicorn.Config(Observe(guard, service.metrics), http=http, log_config=None)
    config.load()
    state = ServerState()
    service.open()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: http(config=config, server_state=state, app_state={}), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], state
    server.close()
    service.close()


async def read_all(reader: asyncio.StreamReader, answers: int) -> bytes:
    found = b""
    while found.count(b"HTTP/1.1 ") < answers or not found.endswith((b"]", b"}")):
        arrived = await asyncio.wait_for(reader.read(1 << 16), 10)
        assert arrived, found
        found += arrived
    return found


def while_held(runs: Path, act: Callable[[asyncio.StreamWriter, ServerState], None], answers: int) -> tuple[bytes, Any]:
    """What a client receives if something happens while its request is being answered, and the state at the end."""

    async def ask() -> tuple[bytes, Any]:
        service = service_of(runs / "first")
        held = Held(service)
        async with listening(service) as (port, state):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASK)
            await asyncio.to_thread(held.entered.wait, 10)
            act(writer, state)
            await asyncio.sleep(0.1)
            held.leave.set()
            found = await read_all(reader, answers)
            for _ in range(20):
                await asyncio.sleep(0.01)
            closed = reader.at_eof()
            writer.close()
            return found, closed

    return asyncio.run(ask())


def test_a_service_that_stops_answers_first_and_closes_then(runs: Path, run: Run) -> None:
    found, closed = while_held(runs, lambda _, state: [each.shutdown() for each in state.connections], 1)  # type: ignore[func-returns-value]
    assert json.loads(found.partition(b"\r\n\r\n")[2]) == run.recommend(["gimp"], 3)
    assert closed


def test_a_request_sent_too_early_is_answered_next(runs: Path, run: Run) -> None:
    second = post({"users": ["inkscape"], "k": 2})
    found, closed = while_held(runs, lambda writer, _: writer.write(second), 2)
    bodies = [json.loads(part.rpartition(b"\r\n\r\n")[2]) for part in found.split(b"HTTP/1.1 200 ")[1:]]
    assert bodies == [run.recommend(["gimp"], 3), run.recommend(["inkscape"], 2)]
    assert not closed


def test_a_service_that_has_no_more_time_says_so(runs: Path) -> None:
    found, _ = while_held(runs, lambda _, state: [task.cancel() for task in state.tasks], 1)  # type: ignore[func-returns-value]
    assert found.startswith(b"HTTP/1.1 503 ")
    assert b"the service is stopping" in found


@pytest.mark.parametrize(
    ("rank", "limits", "status", "code"),
    [
        (lambda *_: 1 / 0, Limits(), b"500 Internal Server Error", "internal"),
        (lambda *_: threading.Event().wait(0.5), Limits(seconds=0.1), b"503 Service Unavailable", "timeout"),
    ],
)
def test_a_failure_has_the_one_shape_and_is_counted(
    runs: Path, rank: Callable[..., Any], limits: Limits, status: bytes, code: str
) -> None:
    async def ask() -> tuple[bytes, bytes]:
        service = service_of(runs / "first", limits=limits)
        service.current.recommend = rank  # type: ignore[method-assign]
        async with listening(service) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASK)
            found = await read_all(reader, 1)
            writer.close()
            return found, service.metrics.text()

    found, metrics = asyncio.run(ask())
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert set(json.loads(body)["error"]) == {"code", "message", "hint"}
    assert json.loads(body)["error"]["code"] == code
    assert b'hmlet_requests_total{route="/v1/recommend",status="%s"} 1.0' % status[:3] in metrics
    assert b"hmlet_requests_in_flight 0.0" in metrics
