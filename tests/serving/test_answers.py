"""What the service answers is what the library answers."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gated_run import make_run, small_data
from served import SMALL, client_of
from starlette.testclient import TestClient

from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.data import Dataset
from hmlet.serving.approximate import Approximate
from hmlet.serving.loaded_run import LoadedRun
from hmlet.serving.settings import Settings


def test_every_user_gets_the_offline_top_n(client: TestClient, run: Run) -> None:
    users = run.data.users.ids.to_pylist()
    for start in range(0, len(users), 1000):
        block = users[start : start + 1000]
        answer = client.post("/v1/recommend", json={"users": block, "k": 20})
        assert answer.status_code == 200
        assert answer.json() == run.recommend(block, 20)


def test_a_single_user_and_a_batch_agree_to_the_last_bit(client: TestClient, run: Run) -> None:
    users = run.data.users.ids.to_pylist()[::400]
    batch = client.post("/v1/recommend", json={"users": users}).json()
    single = [client.post("/v1/recommend", json={"users": [user]}).json()[0] for user in users]
    assert batch == single
    assert all(len(each["items"]) == 20 for each in batch)


def test_no_item_that_the_user_has_is_recommended(client: TestClient, run: Run) -> None:
    user = run.data.users.id(7)
    own = {each["item"] for each in client.get("/v1/history", params={"user": user, "limit": 1000}).json()}
    expected = {run.data.items.id(int(item)) for item in run.data.csr("train", "valid", "test").row(7)}
    assert own == expected
    (answer,) = client.post("/v1/recommend", json={"users": [user], "k": 1000}).json()
    assert own.isdisjoint(each["item"] for each in answer["items"])
    assert len(answer["items"]) == min(1000, run.data.n_items - len(own))


def test_a_newcomer_gets_what_fold_in_says(client: TestClient, run: Run) -> None:
    items = [run.data.items.id(index) for index in (3, 50, 700)]
    answer = client.post("/v1/recommend", json={"items": items, "k": 5})
    assert answer.json() == run.recommend_new([items], 5)


def kept(items: list[dict[str, Any]], allow: list[Any] | None, deny: list[Any] | None, k: int) -> list[dict[str, Any]]:
    """What a filter leaves of a whole ranking."""
    left = [each for each in items if (allow is None or each["item"] in allow) and each["item"] not in (deny or [])]
    return left[:k]


@pytest.mark.parametrize(("allowed", "denied"), [(None, 300), (200, None), (200, 300), (0, None), (3, None)])
@pytest.mark.parametrize("approximate", [False, True])
def test_filters_cut_the_whole_ranking(
    runs: Path, run: Run, allowed: int | None, denied: int | None, approximate: bool
) -> None:
    users, own, n_items = ["gimp", "0ad"], ["libc6", "libgtk-3-0"], run.data.n_items
    dice = np.random.default_rng(0)
    best = [each["item"] for each in run.recommend(users, 20)[0]["items"]]  # else a random filter may not matter
    allow, deny = (
        None if size is None else [*best[:size:2], *run.data.items.ids_at(dice.integers(0, n_items, max(0, size - 10)))]
        for size in (allowed, denied)
    )
    filters = {name: ids for name, ids in (("allow", allow), ("deny", deny)) if ids is not None}
    known, new = run.recommend(users, n_items), run.recommend_new([own], n_items)
    with client_of(runs / "first", Settings(approximate=approximate)) as client:
        answer = client.post("/v1/recommend", json={"users": users, "k": 20, **filters}).json()
        stranger = client.post("/v1/recommend", json={"items": own, "k": 20, **filters}).json()
        many = client.post("/v1/recommend", json={"users": users * 5, "k": 20, **filters}).json()
    assert answer == [{"user": each["user"], "items": kept(each["items"], allow, deny, 20)} for each in known]
    assert stranger == [{"items": kept(each["items"], allow, deny, 20)} for each in new]
    assert many == answer * 5
    assert answer == run.recommend(users, 20, **filters)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_similar_items_are_the_library_s(client: TestClient, run: Run, count: int) -> None:
    items = run.data.items.ids_at(range(count))
    answer = client.post("/v1/similar", json={"items": items, "k": 30}).json()
    assert answer == run.similar_items(items, 30)


@pytest.mark.parametrize("many", [1, 5])
def test_unknown_ids_are_skipped_with_a_warning(client: TestClient, run: Run, many: int) -> None:
    skip = {"k": 3, "on_unknown": "skip"}
    unknown = [f"{kind} 'nobody' is not in the data set" for kind in ("user", "item")]
    asked = {"users": ["gimp", "nobody", "0ad"] * many, "deny": ["libc6", "nobody"], **skip}
    answer = client.post("/v1/recommend", json=asked).json()
    assert answer == {"recommendations": run.recommend(["gimp", "0ad"] * many, 3, deny=["libc6"]), "warnings": unknown}
    for ask in ({"users": ["nobody"] * many}, {"items": ["nobody"] * many}):
        answer = client.post("/v1/recommend", json={**ask, **skip}).json()
        assert answer == {"recommendations": [], "warnings": [unknown["items" in ask]]}
    own = {"items": ["libc6", "nobody"], **skip}
    answer = client.post("/v1/recommend", json={**own, "allow": ["nobody"]}).json()
    assert answer == {"recommendations": [{"items": []}], "warnings": unknown[1:]}  # nothing is allowed, and not all
    answer = client.post("/v1/recommend", json=own).json()
    assert answer == {"recommendations": run.recommend_new([["libc6"]], 3), "warnings": unknown[1:]}
    answer = client.post("/v1/similar", json={"items": ["nobody", "libc6"] * many, **skip}).json()
    assert answer == {"similar": run.similar_items(["libc6"] * many, 3), "warnings": unknown[1:]}


@pytest.mark.parametrize("query", ["", "lib"])
@pytest.mark.parametrize("side", ["user", "item"])
def test_pages_together_are_the_whole_search(client: TestClient, side: str, query: str) -> None:
    served: LoadedRun = client.service.current  # type: ignore[attr-defined]
    whole, found, offset = served.search(side, query, 10**9), [], "0"
    while offset is not None:
        page = client.get(f"/v1/{side}s", params={"query": query, "limit": 700, "offset": offset})
        found += page.json()
        offset = page.headers.get("x-hmlet-next")
    assert found == whole
    if not query:
        assert [each[side] for each in found] == list(served.vocabulary(side))
    past = client.get(f"/v1/{side}s", params={"query": query, "offset": len(whole)})
    assert past.json() == []
    assert "x-hmlet-next" not in past.headers


def test_the_reference_loads_only_what_the_service_has(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r"""(?:href|src)="([^"]*)\"""", page.text)
    assert {"/docs.js", "/docs.css", "/openapi.json"} <= set(named)
    assert all(client.get(name).status_code == 200 for name in named)
    for file in (files("hmlet.serving") / "reference").iterdir():
        assert "//" not in re.sub(r"^ *//.*$|<!--.*-->", "", file.read_text("utf-8"), flags=re.MULTILINE).replace(
            "; //", ""
        )
    assert "<script>" not in page.text
    assert not re.search(r"\son\w+=|style=", page.text)  # the content security policy would refuse them


def test_an_explanation_is_the_library_s(client: TestClient, run: Run) -> None:
    user, item = run.data.users.id(0), run.data.items.id(0)
    answer = client.post("/v1/explain", json={"user": user, "item": item})
    assert answer.json() == run.explain(user, item)


def test_answers_say_which_run_they_come_from(client: TestClient) -> None:
    name = client.get("/v1/model").json()["run"]
    user = client.get("/v1/users").json()[0]["user"]
    assert client.post("/v1/recommend", json={"users": [user]}).headers["x-hmlet-run"] == name


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose items have ids that JavaScript would round, and whose users do not."""
    rows = [(user, 2**53 + 7 * (user + at) % 29) for user in range(40) for at in range(6)]
    users, items = map(list, zip(*rows, strict=True))
    data = Dataset.from_frame(pa.table({"user": users, "item": items}), split="ratio:1,0,0")
    return fit(data, resolve("lightgcn", "hmlet", None, SMALL[:2], 1), tmp_path_factory.mktemp("wide") / "run")


def test_ids_that_javascript_would_round_are_strings(wide: Run) -> None:
    (expected,) = wide.recommend([3], 5)
    item = expected["items"][0]["item"]
    assert isinstance(item, int)
    assert item > 2**53
    with client_of(wide.directory.path, Settings()) as client:
        assert client.get("/v1/model").json()["ids"] == {"user": "number", "item": "string"}
        (answer,) = client.post("/v1/recommend", json={"users": [3], "k": 5}).json()
        assert answer["user"] == 3
        assert [each["item"] for each in answer["items"]] == [str(each["item"]) for each in expected["items"]]
        assert [each["score"] for each in answer["items"]] == [each["score"] for each in expected["items"]]
        assert client.get("/v1/items", params={"limit": 1}).json()[0]["item"] == str(wide.data.items.id(0))
        assert all(isinstance(each["item"], str) for each in client.get("/v1/history", params={"user": 3}).json())
        for given in (item, str(item)):  # requests may use either
            assert client.post("/v1/explain", json={"user": "3", "item": given}).json()["item"] == str(item)
            assert client.post("/v1/similar", json={"items": [given], "k": 2}).json()[0]["item"] == str(item)
            (without,) = client.post("/v1/recommend", json={"users": [3], "k": 5, "deny": [given]}).json()
            assert str(item) not in [each["item"] for each in without["items"]]
            assert client.post("/v1/recommend", json={"items": [given], "k": 2}).status_code == 200


@pytest.mark.parametrize("query", ["gi", "GIMP", "editor", "", "no such thing at all"])
def test_search_finds_what_a_loop_finds(client: TestClient, run: Run, query: str) -> None:
    page = client.get("/v1/users", params={"query": query, "limit": 100}).json()
    found = [each["user"] for each in page]
    users = list(zip(run.data.users.ids.to_pylist(), run.data.users.names.to_pylist(), strict=True))
    wanted = query.lower()
    first = [user for user, _ in users if user.lower().startswith(wanted)]
    rest = [user for user, name in users if user not in first and wanted in f"{user}\n{name}".lower()]
    assert found == (first + rest)[:100]


def test_degrees_are_training_interactions(client: TestClient, run: Run) -> None:
    (item,) = client.get("/v1/items", params={"query": "libc6", "limit": 1}).json()
    index = run.data.items.indices(["libc6"])[0]
    assert item["item"] == "libc6"
    assert item["degree"] == int(np.sum(run.data.item[run.data.slice("train")] == index))


def test_the_overview_counts_every_node_and_shows_a_sample(client: TestClient, run: Run) -> None:
    answer = client.get("/v1/overview", params={"limit": 50}).json()
    gates = run.gates.to_pylist()
    chosen: dict[int, list[bool]] = {}
    for gate in gates:
        chosen.setdefault(gate["node"], []).append(gate["nonlinear"])
    classes = {"FL": 0, "PNL": 0, "FNL": 0}
    for choices in chosen.values():
        classes["FNL" if all(choices) else "PNL" if any(choices) else "FL"] += 1
    assert answer["classes"] == classes
    assert answer["nodes"] == run.data.n_users + run.data.n_items == sum(classes.values())
    assert len(answer["sample"]) == 50
    for node in answer["sample"]:
        vocabulary = run.data.users if node["side"] == "user" else run.data.items
        index = int(vocabulary.indices([node["id"]])[0]) + (0 if node["side"] == "user" else run.data.n_users)
        assert node["nonlinear"] == chosen[index]


def test_the_map_tells_the_choice_also_where_its_probability_is_rounded_to_a_half(tmp_path: Path) -> None:
    data = small_data()
    make_run(tmp_path, data, probability=np.full((data.n_users + data.n_items, 2), 0.50001))
    (node,) = LoadedRun(Run.open(tmp_path), tmp_path).overview(1).sample
    assert (node.probability, node.nonlinear, node.class_) == ([0.5, 0.5], [True, True], "FNL")


def test_probes_and_metrics(client: TestClient) -> None:
    assert client.get("/v1/health").json() == {"status": "ok"}
    assert client.get("/v1/ready").json() == {"status": "ready"}
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    assert 'hmlet_requests_total{route="/v1/health",status="200"}' in text
    assert 'hmlet_requests_total{route="other",status="404"}' in text
    assert "nowhere" not in text  # a stranger cannot make a new label


def test_the_index_is_built_once_and_again_if_it_is_damaged(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usearch.index import Index

    monkeypatch.setenv("HMLET_CACHE", str(tmp_path))
    built, add = [], Index.add
    monkeypatch.setattr(Index, "add", lambda *given, **named: built.append(1) or add(*given, **named))
    users_UF, items_IF = run.factors
    seen = run.data.csr("train")
    first = Approximate((users_UF, items_IF), seen)
    again = Approximate((users_UF, items_IF), seen)
    assert len(built) == 1
    assert again.recall == first.recall
    assert [again.top_k(user, 20) for user in range(50)] == [first.top_k(user, 20) for user in range(50)]
    (kept,) = (tmp_path / "index").iterdir()
    content = bytearray(kept.read_bytes())
    for damaged in (content[:-1], content[:100] + bytes([content[100] ^ 1]) + content[101:], b""):
        kept.write_bytes(damaged)
        built.clear()
        assert Approximate((users_UF, items_IF), seen).recall > 0.9
        assert len(built) == 1
        assert Approximate((users_UF, items_IF), seen).recall > 0.9
        assert len(built) == 1
    changed_IF = items_IF.clone()
    changed_IF[0, 0] += 1e-3
    Approximate((users_UF, changed_IF), seen)
    assert len(built) == 2
    assert len(list((tmp_path / "index").iterdir())) == 2
    monkeypatch.setenv("HMLET_CACHE", str(kept))  # a file, where nothing can be kept
    assert Approximate((users_UF, items_IF), seen).recall > 0.9


def test_approximate_search_says_how_much_it_finds(runs: Path, run: Run) -> None:
    users = run.data.users.ids.to_pylist()[::100]
    with client_of(runs / "first", Settings(approximate=True)) as client:
        search = client.get("/v1/model").json()["search"]
        found = client.post("/v1/recommend", json={"users": users, "k": 20}).json()
    assert search["kind"] == "approximate"
    exact = run.recommend(users, 20)
    hits = [
        len({each["item"] for each in one["items"]} & {each["item"] for each in other["items"]})
        for one, other in zip(found, exact, strict=True)
    ]
    assert sum(hits) / (20 * len(users)) >= 0.95
    assert search["recall_at_20"] >= 0.95
    scores = {each["item"]: each["score"] for each in exact[0]["items"]}
    assert all(scores.get(each["item"], each["score"]) == each["score"] for each in found[0]["items"])
