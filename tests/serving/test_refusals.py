"""Everything that is refused, is refused in one shape, for the right reason, and leaves the service well."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finished import finished
from planted import dataset
from served import client_of
from server import error_of
from starlette.testclient import TestClient

from hmlet.cli import main
from hmlet.errors import ConfigError
from hmlet.serving.loaded_run import LoadedRun
from hmlet.serving.observe import JsonLines, Metrics, logging_to
from hmlet.serving.service import Service
from hmlet.serving.settings import Limits, Settings

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b'{"users": ["gimp"], "k": NaN}', 422, "not JSON"),
        (b'{"users": ["gimp"], "k": Infinity}', 422, "not JSON"),
        (b'{"users": ["gimp"], "k": 1e999}', 422, "out of range"),
        (b'{"users": ["gimp"], "k": 1000000000000000000000000000000}', 422, "<= 1000"),
        (b'{"users": ["gimp"], "k": ' + b"9" * 5000 + b"}", 422, "out of range"),
        (b'{"users": ["gimp"], "k": 0}', 422, ">= 1"),
        (b'{"users": ["gimp"], "k": "20"}', 422, "`int`"),
        (b'{"users": ["gimp"], "k": true}', 422, "`int`"),
        (b'{"users": ["gimp"], "k": 1.5}', 422, "`int`"),
        (b'{"users": [], "k": 20}', 422, ">= 1"),
        (b'{"users": [null]}', 422, "users[0]"),
        (b'{"users": "gimp"}', 422, "array"),
        (b'{"users": ["gimp"], "items": ["libc6"]}', 422, "users"),
        (b'{"users": ["gimp"], "extra": 1}', 422, "extra"),
        (b'{"k": 20}', 422, "users"),
        (b"[]", 422, "object"),
        (b"null", 422, "object"),
        (b"", 422, "not JSON"),
        (b"{", 422, "not JSON"),
        (b"[" * 100_000, 422, "object"),
        (b'{"users": ["\xff"]}', 422, "UTF-8"),
        (b'{"users": ["\\ud800"]}', 422, "not JSON"),
        (b'{"\\ud800": 1}', 422, ""),
        (b'{"users": ["nobody of this name"]}', 404, "nobody"),
        (b'{"users": [-1]}', 404, "-1"),
        (b'{"items": ["nothing of this name"]}', 404, "nothing"),
        (b'{"users": ["gimp"], "deny": ["nothing of this name"]}', 404, "nothing"),
        (b'{"items": ["libc6"], "allow": ["nothing of this name"]}', 404, "nothing"),
        (b'{"users": ["gimp"], "allow": "libc6"}', 422, "array"),
        (b'{"users": ["gimp"], "deny": [null]}', 422, "deny[0]"),
        (b'{"users": ["gimp"], "on_unknown": "ignore"}', 422, "on_unknown"),
        (json.dumps({"users": ["gimp"], "deny": ["x"] * 10_001}).encode(), 422, "10000"),
        (json.dumps({"users": ["gimp"] * 1001}).encode(), 422, "1000"),
        (json.dumps({"users": ["gimp"] * 10_000}).encode(), 422, "1000"),
        (json.dumps({"users": ["gimp"] * 1000, "k": 101}).encode(), 413, "recommendations"),
        (json.dumps({"items": ["libc6"] * 1001}).encode(), 422, "1000"),
        (json.dumps({"users": ["x" * 501]}).encode(), 422, "500"),
        (b" " * (1 << 20) + b"{}", 413, "1,048,576"),
    ],
)
def test_a_bad_recommend_is_refused(client: TestClient, body: bytes, status: int, word: str) -> None:
    answer = client.post("/v1/recommend", content=body, headers=JSON)
    assert answer.status_code == status
    assert word in error_of(answer)["message"]


EITHER = 'a request has either "users", whom the model knows, or the "items" of a new user'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"users": ["gimp"], "items": ["vim"]}, EITHER),
        ({}, EITHER),
        ({"users": ["gimp"], "k": 5000}, "Expected `int` <= 1000 - at `$.k`"),
        ({"users": ["gimp", True]}, "Expected `int | str`, got `bool` - at `$.users[1]`"),
        ({"users": [1.5]}, "Expected `int | str`, got `float` - at `$.users[0]`"),
        ({"items": "x" * 99}, "Expected `array`, got `str` - at `$.items`"),
        ({"items": ["vim"], "n": 1}, "Object contains unknown field `n`"),
    ],
)
def test_a_refusal_names_the_place_and_what_is_wrong(client: TestClient, body: dict[str, Any], message: str) -> None:
    assert error_of(client.post("/v1/recommend", json=body))["message"] == message


def test_a_body_of_unknown_length_is_cut_off(client: TestClient) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(40):
            sent += 1
            yield b" " * (1 << 16)

    answer = client.post("/v1/recommend", content=endless(), headers=JSON)
    assert (answer.status_code, error_of(answer)["code"]) == (413, "too-large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not-found"),
        ("GET", "/v1/recommend", 405, "method-not-allowed"),
        ("DELETE", "/v1/model", 405, "method-not-allowed"),
        ("GET", "/v1/users?limit=0", 422, "invalid"),
        ("GET", "/v1/users?limit=ten", 422, "invalid"),
        ("GET", f"/v1/users?query={'x' * 101}", 422, "invalid"),
        ("GET", "/v1/history", 422, "invalid"),
        ("GET", "/v1/history?user=nobody", 404, "unknown-id"),
        ("GET", "/v1/overview?limit=10001", 422, "invalid"),
        ("GET", "/../pyproject.toml", 404, "not-found"),
        ("GET", "/app.py", 404, "not-found"),
        ("GET", "/v1/users?offset=-1", 422, "invalid"),
        ("GET", "/v1/items?limit=1001", 422, "invalid"),
        ("GET", "/redoc", 404, "not-found"),
    ],
)
def test_a_bad_request_is_refused(client: TestClient, method: str, path: str, status: int, code: str) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"items": []}, 422),
        ({"items": ["libc6"], "k": 0}, 422),
        ({"items": ["libc6"], "users": ["gimp"]}, 422),
        ({"items": ["libc6"] * 1001}, 422),
        ({"items": ["libc6"] * 1000, "k": 101}, 413),
        ({"items": ["nothing of this name"]}, 404),
    ],
)
def test_a_bad_similar_is_refused(client: TestClient, body: dict[str, Any], status: int) -> None:
    answer = client.post("/v1/similar", json=body)
    assert answer.status_code == status
    error_of(answer)


@pytest.mark.parametrize(
    "body", [{"user": "gimp"}, {"user": "gimp", "item": []}, {"user": "gimp", "item": "libc6", "k": 1}]
)
def test_a_bad_explain_is_refused(client: TestClient, body: dict[str, Any]) -> None:
    answer = client.post("/v1/explain", json=body)
    assert (answer.status_code, error_of(answer)["code"]) == (422, "invalid")


@pytest.mark.parametrize("side", ["user", "item"])
def test_unknown_ids_of_an_explanation(client: TestClient, side: str) -> None:
    answer = client.post("/v1/explain", json={"user": "gimp", "item": "libc6", side: "nobody"})
    assert answer.status_code == 404
    assert side in error_of(answer)["message"]


def test_nodes_without_training_interactions(tmp_path: Path) -> None:
    train = [(user, item) for user in range(6) for item in range(6) if (user + item) % 3]
    run = finished("hmlet-end", tmp_path / "run", data=dataset(7, 7, train=train, valid=[(6, 6)], test=[(0, 6)]))
    with client_of(tmp_path / "run", Settings()) as client:
        answer = client.post("/v1/recommend", json={"items": ["i6"]})
        assert (answer.status_code, error_of(answer)["code"]) == (422, "data")
        assert "no trained items" in error_of(answer)["message"]
        answer = client.post("/v1/explain", json={"user": "u6", "item": "i0"})
        assert answer.status_code == 200
        assert answer.json() == run.explain("u6", "i0")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_only_json_bodies_are_read(client: TestClient, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post("/v1/recommend", content=b'{"users": ["gimp"]}', headers=headers)
    assert (answer.status_code, error_of(answer)["code"]) == (415, "unsupported-media-type")


@pytest.mark.parametrize("path", ["/", "/docs", "/app.js"])
def test_every_page_carries_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/", "/docs", "/v1/health", "/v1/ready", "/v1/model", "/v1/users", "/metrics"])
def test_head_is_get_without_its_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"") or path == "/metrics"
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org"])
def test_other_machines_are_let_in_with_a_token_only(host: str) -> None:
    with pytest.raises(ConfigError, match="no token is set"):
        Settings(host=host)
    assert Settings(host=host, token="t").host == host
    assert "secret-token" not in repr(Settings(host=host, token="secret-token"))


def test_a_root_of_runs_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`reload_root` .*nowhere is not a directory"):
        Settings(reload_root=tmp_path / "nowhere")


@pytest.mark.parametrize("token", ["", "  ", "two\nlines", "schlüssel", "t ", " t"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        Settings(token=token)


def test_a_space_around_the_token_of_the_environment_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Settings] = []
    monkeypatch.setattr("hmlet.serving.server.serve", lambda path, settings, data, listening: given.append(settings))
    monkeypatch.setattr("hmlet.api.Run.open", lambda path, data=None: path)  # which the command opens first
    monkeypatch.setenv("HMLET_TOKEN", "open sesame \n")
    assert main(["serve", "run"]) == 0
    assert [settings.token for settings in given] == ["open sesame"]


@pytest.mark.parametrize("token", ['a"b', "a\\b", "n", "plain"])
def test_the_log_blots_out_any_token(token: str) -> None:
    record = logging.LogRecord("hmlet.serving", logging.INFO, __file__, 1, "request", None, None)
    record.fields = {"path": f"/{token}", "status": 401, "client": None, "traceback": f"one\n{token}"}
    line = json.loads(JsonLines(token).format(record))
    blotted = {name: line[name] for name in ("path", "status", "client", "traceback")}
    end = {"n": "o[token]e\n[token]"}.get(token, "one\n[token]")
    assert blotted == {"path": "/[token]", "status": 401, "client": None, "traceback": end}


def test_every_limit_that_can_be_set_is_kept(runs: Path) -> None:
    limits = Limits(body_bytes=100, pairs=5)
    with client_of(runs / "first", Settings(limits=limits)) as client:
        assert client.post("/v1/recommend", json={"users": ["gimp"], "k": 5}).status_code == 200
        many = client.post("/v1/recommend", json={"users": ["gimp"], "k": 6})
        assert (many.status_code, "more than 5 recommendations" in error_of(many)["message"]) == (413, True)
        large = client.post("/v1/recommend", json={"users": ["x" * 100]})
        assert (large.status_code, "larger than 100 bytes" in error_of(large)["message"]) == (413, True)
    elsewhere = {"in_flight", "large", "large_bodies", "seconds", "load_seconds"}  # test_sockets.py too
    assert {field.name for field in fields(Limits)} == {"body_bytes", "pairs", *elsewhere}


def test_more_requests_than_can_be_held_are_shed(runs: Path) -> None:
    with client_of(runs / "first", Settings(limits=Limits(in_flight=2))) as client:
        entered, leave = threading.Semaphore(0), threading.Event()

        def block(*_: Any) -> list[Any]:
            entered.release()
            leave.wait(10)
            return []

        client.service.current.recommend = block  # type: ignore[attr-defined]
        client.service.current.seconds = lambda *_: 1.0  # type: ignore[attr-defined]  # so that a thread ranks
        ask = {"users": ["gimp"]}
        waiting = [
            threading.Thread(target=client.post, args=("/v1/recommend",), kwargs={"json": ask}) for _ in range(2)
        ]
        for thread in waiting:
            thread.start()
        entered.acquire(timeout=10)
        deadline = time.monotonic() + 10
        while "hmlet_requests_in_flight 2.0" not in client.get("/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        answer = client.post("/v1/recommend", json=ask)
        assert (answer.status_code, error_of(answer)["code"]) == (503, "overloaded")
        assert answer.headers["retry-after"] == "1"
        assert client.get("/v1/health").status_code == 200
        leave.set()
        for thread in waiting:
            thread.join(10)
        assert client.get("/v1/model").status_code == 200


def test_large_requests_are_shed_before_small_ones(runs: Path) -> None:
    with client_of(runs / "first", Settings(limits=Limits(large=0))) as client:
        for ask in ({"users": ["gimp"] * 9}, {"users": ["gimp"] * 2, "k": 501}):
            answer = client.post("/v1/recommend", json=ask)
            assert (answer.status_code, error_of(answer)["code"]) == (503, "overloaded")
        assert client.get("/v1/overview").status_code == 503
        assert client.post("/v1/recommend", json={"users": ["gimp"] * 8}).status_code == 200


def test_a_large_answer_is_computed_as_it_is_read(runs: Path) -> None:
    with client_of(runs / "first", Settings()) as client:
        service: Service = client.service  # type: ignore[attr-defined]
        made: list[int] = []

        def blocks() -> Iterator[bytes]:
            for at in range(3):
                made.append(at)
                yield b"%d" % at

        async def read() -> list[tuple[bytes, int]]:
            return [(block, len(made)) async for block in await service.stream(blocks())]

        assert client.portal is not None
        assert client.portal.call(read) == [(b"0", 1), (b"", 1), (b"1", 2), (b"", 2), (b"2", 3), (b"", 3)]


def test_a_large_answer_that_fails_on_the_way_is_cut_off(runs: Path) -> None:
    with client_of(runs / "first", Settings()) as client:
        served: LoadedRun = client.service.current  # type: ignore[attr-defined]
        sound, answers = served.recommend, iter([served.recommend(np.array([0]), 1000)])
        served.recommend = lambda users, k, _=None: next(answers) if k == 1000 else sound(users, k)  # type: ignore[method-assign]
        answer = client.post("/v1/recommend", json={"users": ["gimp"] * 2, "k": 1000})
        assert answer.status_code == 200
        with pytest.raises(ValueError, match="Expecting"):
            answer.json()
        again = client.post("/v1/recommend", json={"users": ["gimp"] * 2, "k": 1000})  # at the first block
        assert (again.status_code, error_of(again)["code"]) == (500, "internal")


def test_a_log_that_nobody_reads_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    dropped, began = Metrics().log_dropped, time.monotonic()
    try:
        with logging_to(writing, None, dropped):
            for _ in range(50_000):  # more than wait for a reader, and than the writer takes before it is stuck
                logging.getLogger("hmlet.serving").info("x" * 100)
        assert time.monotonic() - began < 10
        (lost,) = (each.value for each in dropped.collect()[0].samples if each.name.endswith("_total"))
        assert lost > 0
    finally:
        os.close(reading)


def test_what_takes_too_long_is_given_up(runs: Path) -> None:
    with client_of(runs / "first", Settings(limits=Limits(seconds=0.1))) as client:
        leave = threading.Event()
        client.service.current.recommend = lambda *_: leave.wait(10)  # type: ignore[attr-defined]
        client.service.current.seconds = lambda *_: 1.0  # type: ignore[attr-defined]  # so that a thread ranks
        answer = client.post("/v1/recommend", json={"users": ["gimp"]})
        leave.set()
        assert (answer.status_code, error_of(answer)["code"]) == (503, "timeout")


def test_a_bug_of_ours_has_the_shape_too(runs: Path) -> None:
    with client_of(runs / "first", Settings()) as client:
        client.service.current.recommend = lambda *_: 1 / 0  # type: ignore[attr-defined]
        answer = client.post("/v1/recommend", json={"users": ["gimp"]})
        assert (answer.status_code, error_of(answer)["code"]) == (500, "internal")
        assert "ZeroDivision" not in answer.text
