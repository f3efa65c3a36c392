"""What the explorer is told, against the library and plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gated_run import make_run, small_data
from served import SMALL, client_of
from server import error_of
from starlette.testclient import TestClient

from hmlet.analysis import layout
from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.data.catalog import load
from hmlet.errors import ConfigError
from hmlet.serving.explorer.routes import Explorer
from hmlet.serving.observe import Metrics
from hmlet.serving.service import Service
from hmlet.serving.settings import Settings


@pytest.fixture(scope="module")
def lightgcn(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(
        load("debian"), resolve("lightgcn", "hmlet", None, SMALL[:2], 1), tmp_path_factory.mktemp("other") / "lightgcn"
    )


@pytest.fixture(scope="module")
def exploring(runs: Path, lightgcn: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service over the run `first`, beside `second` and a LightGCN run; its map is a quick one."""
    compare = (runs / "second", lightgcn.directory.path)
    with pytest.MonkeyPatch.context() as patch, client_of(runs / "first", Settings(compare=compare)) as client:
        patch.setenv("HMLET_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(layout, "LANDMARKS", 100)
        yield client


def test_what_can_be_shown(exploring: TestClient, lightgcn: Run) -> None:
    about = exploring.get("/v1/explore").json()
    assert about["gated_layers"] == [3, 4]
    assert about["mapped"] is about["held_out"] is True
    assert [each["name"] for each in about["compared"]] == ["second", "lightgcn"]
    with client_of(lightgcn.directory.path, Settings()) as client:
        about = client.get("/v1/explore").json()
    assert (about["gated_layers"], about["compared"]) == ([], [])


def test_a_run_of_other_data_cannot_be_compared(tmp_path: Path, runs: Path) -> None:
    data = small_data()
    data.save(tmp_path / "data")
    make_run(tmp_path / "other", data)
    service = Service(runs / "first", Settings(compare=(tmp_path / "other",)), Metrics())
    with pytest.raises(ConfigError, match="was trained on other data"):
        Explorer(service)


def test_an_item_s_page(exploring: TestClient, run: Run) -> None:
    page = exploring.get("/v1/explore/item", params={"id": "libgtk-3-0"}).json()
    item, train = run.data.items.indices(["libgtk-3-0"])[0], run.data.slice("train")
    degrees = np.bincount(run.data.item[train], minlength=run.data.n_items)
    owners = {run.data.users.id(int(user)) for user in run.data.user[train][run.data.item[train] == item]}
    assert page["degree"] == len(owners) == page["reach"][0]
    assert page["rank"] == 1 + sum(degree > degrees[item] for degree in degrees)
    assert {each["id"] for each in page["joined"]} <= owners
    assert [each["id"] for each in page["similar"]] == [each["item"] for each in run.similar_items("libgtk-3-0", 12)]
    assert [gate["layer"] for gate in page["gates"]] == [3, 4]
    assert error_of(exploring.get("/v1/explore/item", params={"id": "nothing"}))["code"] == "unknown-id"


def test_without_a_change_what_if_is_the_recommendation(exploring: TestClient, run: Run) -> None:
    moves = exploring.post("/v1/explore/what-if", json={"user": "gimp"}).json()
    (expected,) = run.recommend(["gimp"], 20)
    assert [(each["item"], each["score"]) for each in moves["items"]] == [
        (each["item"], each["score"]) for each in expected["items"]
    ]
    assert [each["was"] for each in moves["items"]] == list(range(1, 21))
    assert moves["left"] == []


def test_a_changed_user_is_ranked_by_its_edited_factor(exploring: TestClient, run: Run) -> None:
    user, items = int(run.data.users.indices(["gimp"])[0]), run.data.items
    own = run.fold_in.own_items(user)
    gone, more = items.id(int(own[0])), run.recommend(["gimp"], 1)[0]["items"][0]["item"]
    body = {"user": "gimp", "add": [more], "without": [gone], "k": 10}
    moves = exploring.post("/v1/explore/what-if", json=body).json()
    edited = [*own[1:].tolist(), int(items.indices([more])[0])]
    factor_F = run.fold_in.edited_user(user, [edited])[0].double().numpy()
    scores = run.factors[1].double().numpy() @ factor_F
    hidden = {*run.data.csr("train", "valid", "test").row(user).tolist(), edited[-1]} - {int(own[0])}
    best = [item for item in np.argsort(-scores, kind="stable") if item not in hidden][:10]
    assert [each["item"] for each in moves["items"]] == [items.id(int(item)) for item in best]
    before = [each["item"] for each in run.recommend(["gimp"], 200)[0]["items"]]
    for each in moves["items"]:
        assert each["was"] == (before.index(each["item"]) + 1 if each["item"] in before else None)
    shown = {each["item"] for each in moves["items"]}
    assert {each["item"] for each in moves["left"]} == set(before[:10]) - shown


def test_a_changed_newcomer_is_another_newcomer(exploring: TestClient, run: Run) -> None:
    body = {"items": ["libc6", "libgtk-3-0"], "without": ["libc6"], "k": 5}
    moves = exploring.post("/v1/explore/what-if", json=body).json()
    (expected,) = run.recommend_new([["libgtk-3-0"]], 5)
    assert [each["item"] for each in moves["items"]] == [each["item"] for each in expected["items"]]


@pytest.mark.parametrize("body", [{}, {"user": "gimp", "items": ["libc6"]}, {"user": "gimp", "k": 101}])
def test_a_what_if_about_nobody_is_refused(exploring: TestClient, body: dict[str, object]) -> None:
    assert exploring.post("/v1/explore/what-if", json=body).status_code == 422


def test_lists_side_by_side_are_those_of_an_evaluation(exploring: TestClient, run: Run, lightgcn: Run) -> None:
    answer = exploring.get("/v1/explore/compare", params={"user": "gimp"}).json()
    user = int(run.data.users.indices(["gimp"])[0])
    held_out = {run.data.items.id(int(item)) for item in run.data.csr("valid", "test").row(user)}
    assert answer["held_out"] == len(held_out)
    for shown, compared in ((answer["runs"][0], run), (answer["runs"][2], lightgcn)):
        (expected,) = compared.recommend(["gimp"], 20, "train")
        assert [each["item"] for each in shown["items"]] == [each["item"] for each in expected["items"]]
        assert all(each["hit"] == (each["item"] in held_out) for each in shown["items"])


def test_the_map_has_a_place_for_every_node(exploring: TestClient, run: Run) -> None:
    plane, labels = (exploring.get(f"/v1/explore/{name}").json() for name in ("map", "labels"))
    assert labels["ids"] == [*run.data.users, *run.data.items]
    assert plane["users"] == run.data.n_users
    for name in ("x", "y", "degree", "cluster"):
        assert len(plane[name]) == len(labels["ids"])
    assert min(plane["x"] + plane["y"]) >= 0
    assert max(plane["x"] + plane["y"]) == 65535
    assert sum(each["nodes"] for each in plane["clusters"]) == len(labels["ids"])
    chosen = run.choices
    assert plane["gates"][1]["percent"] == np.round(100 * chosen.probability_NL[:, 1]).astype(int).tolist()


def test_notable_users_have_the_hits_that_they_are_said_to_have(exploring: TestClient, run: Run) -> None:
    start = exploring.get("/v1/explore/start").json()
    for each in start["hits"]:
        user = int(run.data.users.indices([each["user"]])[0])
        held_out = {run.data.items.id(int(item)) for item in run.data.csr("valid", "test").row(user)}
        listed = {entry["item"] for entry in run.recommend([each["user"]], 20, "train")[0]["items"]}
        assert (each["hits"], each["held_out"]) == (len(listed & held_out), len(held_out))
    assert start["popular"][0]["id"] == "libc6"
