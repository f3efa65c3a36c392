"""Two runs behind one service: each user stays with one, and every answer says which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from served import client_of
from server import error_of
from starlette.testclient import TestClient

from hmlet.api import Run
from hmlet.errors import ConfigError
from hmlet.serving.settings import Settings

SHARE = 0.3


@pytest.fixture(scope="module")
def both(runs: Path) -> dict[str, Run]:
    return {"a": Run.open(runs / "first"), "b": Run.open(runs / "second")}


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    with client_of(runs / "first", Settings(ab=runs / "second", share=SHARE, reload_root=runs)) as client:
        yield client


def arm_of(*who: str) -> str:
    number = int(sha256("\0".join(sorted(who)).encode()).hexdigest()[:16], 16)
    return "b" if number / 16**16 < SHARE else "a"


def name_of(run: Run) -> str:
    return f"{run.record.model}-{run.record.files['factors.safetensors'][0][:12]}"


def metric(client: TestClient, arm: str) -> float:
    (found,) = re.findall(rf'hmlet_recommendations_total{{arm="{arm}"}} (\S+)', client.get("/metrics").text)
    return float(found)


def test_each_user_stays_with_one_run_in_the_stated_shares(client: TestClient, both: dict[str, Run]) -> None:
    users = both["a"].data.users.ids.to_pylist()[:1000]
    expected = {arm: {each["user"]: each["items"] for each in run.recommend(users, 5)} for arm, run in both.items()}
    answer = client.post("/v1/recommend", json={"users": users, "k": 5})  # a large call
    assert answer.headers["x-hmlet-run"] == f"{name_of(both['a'])}, {name_of(both['b'])}"
    wanted = [{"user": user, "items": expected[arm_of(user)][user], "arm": arm_of(user)} for user in users]
    assert answer.json() == wanted
    by_b = sum(each["arm"] == "b" for each in wanted)
    assert abs(by_b / len(users) - SHARE) < 0.05  # 3.5 standard deviations
    for start in range(0, 16, 8):
        small = client.post("/v1/recommend", json={"users": users[start : start + 8], "k": 5}).json()
        assert small == wanted[start : start + 8]
    assert (metric(client, "a"), metric(client, "b")) == (
        len(users) - by_b + sum(each["arm"] == "a" for each in wanted[:16]),
        by_b + sum(each["arm"] == "b" for each in wanted[:16]),
    )


def test_a_newcomer_is_known_by_the_items_in_any_order(client: TestClient, both: dict[str, Run]) -> None:
    items = both["a"].data.items.ids_at(range(20))
    seen = set()
    for first, second in pairwise(items):
        arm = arm_of(first, second)
        seen.add(arm)
        for own in ([first, second], [second, first, second]):
            answer = client.post("/v1/recommend", json={"items": own, "k": 3})
            assert answer.headers["x-hmlet-run"] == name_of(both[arm])
            (found,) = answer.json()
            assert found == {**both[arm].recommend_new([own], 3)[0], "arm": arm}
    assert seen == {"a", "b"}


def test_an_explanation_comes_from_the_user_s_run(client: TestClient, both: dict[str, Run]) -> None:
    users = both["a"].data.users.ids.to_pylist()
    for arm in ("a", "b"):
        user = next(user for user in users if arm_of(user) == arm)
        answer = client.post("/v1/explain", json={"user": user, "item": "libc6"})
        assert answer.json() == {**both[arm].explain(user, "libc6"), "arm": arm}
        assert answer.headers["x-hmlet-run"] == name_of(both[arm])
        assert client.get("/v1/history", params={"user": user}).headers["x-hmlet-run"] == name_of(both[arm])


def test_the_service_says_what_its_arms_are(client: TestClient, both: dict[str, Run]) -> None:
    arms = client.get("/v1/model").json()["arms"]
    assert [(each["arm"], each["run"], each["share"]) for each in arms] == [
        ("a", name_of(both["a"]), 1 - SHARE),
        ("b", name_of(both["b"]), SHARE),
    ]
    text = client.get("/metrics").text
    for arm, run in both.items():
        assert f'hmlet_run_info{{arm="{arm}",model="hmlet-end",run="{name_of(run)}"}} 1.0' in text


def test_either_arm_can_be_replaced(client: TestClient, both: dict[str, Run]) -> None:
    assert client.post("/v1/reload", json={"run": "first", "arm": "b"}).json()["run"] == name_of(both["a"])
    assert [each["run"] for each in client.get("/v1/model").json()["arms"]] == [name_of(both["a"])] * 2
    assert client.post("/v1/reload", json={"run": "second"}).status_code == 200
    assert [each["run"] for each in client.get("/v1/model").json()["arms"]] == [name_of(both["b"]), name_of(both["a"])]
    assert client.post("/v1/reload", json={"run": "nowhere", "arm": "b"}).status_code == 409
    assert error_of(client.post("/v1/reload", json={"run": "first", "arm": "c"}))["code"] == "invalid"


def test_one_run_has_no_arms(runs: Path) -> None:
    with client_of(runs / "first", Settings(reload_root=runs)) as client:
        (found,) = client.post("/v1/recommend", json={"users": ["gimp"]}).json()
        assert set(found) == {"user", "items"}
        assert "arms" not in client.get("/v1/model").json()
        answer = client.post("/v1/reload", json={"run": "second", "arm": "b"})
        assert (answer.status_code, error_of(answer)["code"]) == (409, "conflict")
        assert error_of(answer)["message"] == "this service has no arm b"


@pytest.mark.parametrize(("ab", "share"), [(None, 0.1), ("run", 0.0), ("run", 1.0), ("run", float("nan"))])
def test_a_share_that_is_none_is_refused(ab: str | None, share: float) -> None:
    with pytest.raises(ConfigError, match="share="):
        Settings(ab=None if ab is None else Path(ab), share=share)
