"""More requests than the service can hold: some get 503 in the one shape, probes are answered, and it recovers."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from exchanges import HEALTHY, PROBE, Answer, Wire, ask, post, refusal
from programs import flooded, program
from server import Server

from hmlet.api import Run

GETS = ("/v1/model", "/v1/users?limit=1", "/v1/history?user=gimp", "/v1/overview?limit=5", "/metrics")
pytestmark = pytest.mark.skipif(program("wrk") is None, reason="wrk is not installed")


def get(path: str) -> bytes:
    return PROBE.replace(b"/v1/health", path.encode())


def checked(answer: Answer, right: object) -> int:
    """The status: what is answered is right, and what is refused says so in the one shape and when to come back."""
    if answer.status == 200:
        assert answer.json() == right
    else:
        assert answer.status == 503, answer
        assert refusal(answer)["code"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1
    return answer.status


def test_it_sheds_in_the_one_shape_answers_rightly_and_recovers(server: Server, run: Run, tmp_path: Path) -> None:
    users = run.data.users.ids.to_pylist()
    described = json.loads(ask(server.port, get("/openapi.json")).body)["paths"]

    def one(at: int) -> int:
        user = users[at % len(users)]
        return checked(ask(server.port, post({"users": [user], "k": 5})), run.recommend([user], 5))

    def probe(_: int) -> float:
        began = time.monotonic()
        assert ask(server.port, PROBE).json() == HEALTHY
        return time.monotonic() - began

    with flooded(server.port, tmp_path, 256), ThreadPoolExecutor(8) as pool:
        statuses = Counter(pool.map(one, range(400)))
        waited = list(pool.map(probe, range(50)))
        for path in GETS * 10:
            status = ask(server.port, get(path)).status
            assert str(status) in described[path.partition("?")[0]]["get"]["responses"], (path, status)
    assert statuses[503] > 0, statuses
    assert max(waited) < 2
    time.sleep(5)
    assert Counter(one(at) for at in range(100)) == {200: 100}


def test_a_refused_request_does_not_cost_its_connection(server: Server, tmp_path: Path) -> None:
    statuses = Counter[int]()
    with flooded(server.port, tmp_path, 256), Wire(server.port) as wire:
        for k in range(1, 101):
            wire.send(post({"users": ["gimp"], "k": k}))
            answer = wire.answer()
            assert answer is not None
            statuses[answer.status] += 1
            if answer.status == 200:
                assert len(answer.json()[0]["items"]) == k
            else:
                assert refusal(answer)["code"] == "overloaded"
            if answer.closes:
                break
    assert statuses.total() == 100 or answer.closes
