"""Who may call: every combination of a host, an origin, a token, a method and a path."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from exchanges import TYPE, Answer, ask, refusal
from server import Server

TOKEN = b"open-sesame"
OPEN = ("/", "/app.js", "/docs", "/docs.js", "/docs.css")  # pages that say nothing about the run
PROBES = ("/v1/health", "/v1/ready")
CLOSED = (
    "/v1/model",
    "/v1/users",
    "/metrics",
    "/openapi.json",
    "/nowhere",
    "/v1/health/",
    "//v1/health",
    "/v1/%68ealth2",
)
HOSTS = {
    **dict.fromkeys(
        [b"localhost", b"LOCALHOST:80", b"127.0.0.1:1", b"[::1]:8000", b"shop.example", b"Shop.Example:443"], True
    ),
    **dict.fromkeys([b"evil.example", b"127.0.0.1.evil.example", b"localhost.", b"[::2]", b"evil@127.0.0.1"], False),
    **dict.fromkeys([b"127.0.0.1@evil", b"localhost evil", b"shop.example.evil", b"0", b"127.1", b""], False),
}
TOKENS = {
    **dict.fromkeys([b"Bearer " + TOKEN, b"bearer " + TOKEN, b"Bearer  " + TOKEN + b" "], True),
    **dict.fromkeys([None, b"", b"Bearer", b"Bearer ", b"Bearer open", b"Bearer open-sesame2"], False),
    **dict.fromkeys([b"Basic " + TOKEN, TOKEN, b"Bearer \xff", b"Bearer,Bearer " + TOKEN], False),
}
ORIGINS = {
    **dict.fromkeys([None, b"http://localhost", b"https://" + b"LOCALHOST"], True),
    **dict.fromkeys([b"http://evil.example", b"null", b"", b"http://localhost:81", b"file://", b"//localhost"], False),
    **dict.fromkeys([b"http://" + b"localhost, http://evil.example", b"http://localhost.evil.example", b"\xff"], False),
    **dict.fromkeys([b"ftp://localhost", b"http://" + b"x@localhost", b"http:// localhost", b"\xef\xbf\xbd"], False),
    **{
        b"http://" + host: False
        for host in (
            b"[",
            b"]",
            b"[::1",
            b"[]",
            b"localhost]",
            b"[v1.]",
            b"localhost/",
            b"localhost\\",
            b"localhost:999999",
        )
    },
}


@pytest.fixture(scope="module")
def port(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A service that asks for a token and is also called shop.example."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_bytes(TOKEN + b"\n")
    server = Server(str(runs / "first"), "--token-file", str(token), "--allow-host", "shop.example")
    yield server.wait_until_ready().port
    server.process.send(signal.SIGTERM)
    assert TOKEN.decode() not in server.process.wait(30)


def call(port: int, line: str, *headers: tuple[bytes, bytes | None], body: bytes = b"") -> Answer:
    sent = b"".join(b"%s: %s\r\n" % (name, value) for name, value in headers if value is not None)
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return ask(port, line.encode() + b" HTTP/1.1\r\n" + sent + length + b"Connection: close\r\n\r\n" + body)


def post(port: int, *headers: tuple[bytes, bytes | None]) -> Answer:
    kind = tuple(TYPE.strip().split(b": "))
    return call(port, "POST /v1/recommend", *headers, kind, body=b'{"users": ["gimp"], "k": 1}')  # type: ignore[arg-type]


@pytest.mark.parametrize("given", TOKENS)
@pytest.mark.parametrize("host", [b"localhost", b"evil.example"])
def test_a_host_and_a_token_are_asked_of_every_path_but_probes_and_pages(
    port: int, host: bytes, given: bytes | None
) -> None:
    headers = ((b"Host", host), (b"Authorization", given))
    for path in (*PROBES, *OPEN, *CLOSED):
        answer = call(port, f"GET {path}", *headers)
        if path in PROBES:
            assert answer.status == 200
            assert set(answer.json()) == {"status"}
            assert "x-hmlet-run" not in answer.headers
        elif not HOSTS[host]:
            assert (answer.status, refusal(answer)["code"]) == (400, "bad-host")
        elif path in OPEN or TOKENS[given]:
            assert answer.status in (200, 307, 404), path
        else:
            assert (answer.status, refusal(answer)["code"]) == (401, "unauthorized"), path
            assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.body


@pytest.mark.parametrize("host", HOSTS)
def test_only_names_of_the_service_are_answered(port: int, host: bytes) -> None:
    answer = post(port, (b"Host", host), (b"Authorization", b"Bearer " + TOKEN))
    assert answer.status == (200 if HOSTS[host] else 400)
    if not HOSTS[host]:
        refusal(answer)


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("given", [b"Bearer " + TOKEN, b"Bearer other"])
def test_only_a_page_of_the_service_may_post(port: int, origin: bytes | None, given: bytes) -> None:
    answer = post(port, (b"Host", b"localhost"), (b"Authorization", given), (b"Origin", origin))
    expected = {200} if ORIGINS[origin] and given.endswith(TOKEN) else {403, 401}
    assert answer.status in expected
    if answer.status != 200:
        refusal(answer)
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("name", [b"Host", b"Authorization", b"Origin"])
def test_what_decides_is_sent_once(port: int, name: bytes) -> None:
    right = {b"Host": b"localhost", b"Authorization": b"Bearer " + TOKEN, b"Origin": b"http://localhost"}
    wrong = {b"Host": b"evil.example", b"Authorization": b"Bearer x", b"Origin": b"http://evil.example"}
    for twice in ([(name, right[name]), (name, wrong[name])], [(name, wrong[name]), (name, right[name])]):
        rest = [(other, value) for other, value in right.items() if other != name]
        assert post(port, *rest, *twice).status in (400, 401, 403)


def test_a_page_elsewhere_gets_no_permission_to_ask(port: int) -> None:
    asked = [(b"Host", b"localhost"), (b"Origin", b"http://evil.example"), (b"Access-Control-Request-Method", b"POST")]
    answer = call(port, "OPTIONS /v1/recommend", *asked)
    assert answer.status >= 400
    assert not any(name.startswith("access-control") for name in answer.headers)
