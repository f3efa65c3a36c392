"""Closed forms do all that trained models do: fold in, explain, find similar ones, export, serve, resume, plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from finished import CLOSED, finished
from planted import checkerboard
from served import client_of

from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.errors import ConfigError, DataError, RunError
from hmlet.graph import Sizes
from hmlet.models import MODELS
from hmlet.runs.loading import load_model
from hmlet.serving.settings import Settings
from hmlet.training.planning import changes, memory_plan

GOWALLA = Sizes(29_858, 40_981, 810_128)
ITEM_ITEM = [name for name in CLOSED if name != "popularity"]


@pytest.fixture(scope="module", params=CLOSED)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(request.param, tmp_path_factory.mktemp("run") / "run")


def test_an_existing_user_as_a_newcomer_gets_its_own_ranking(run: Run) -> None:
    for user in (0, 7, 30):
        own = [run.data.items.id(int(item)) for item in run.data.csr("train").row(user)]
        assert run.recommend_new([own], 9)[0]["items"] == run.recommend([f"u{user}"], 9, "train")[0]["items"]


def test_explanations_add_up(run: Run) -> None:
    for each in run.recommend(["u5"], 3)[0]["items"]:
        parts = run.explain("u5", each["item"])
        assert parts["score"] == pytest.approx(each["score"], abs=1e-12)
        assert [layer["contribution"] for layer in parts["layers"]] == [parts["score"]]
        carried = [item["contribution"] for item in parts["carried_by"]]
        assert carried == sorted(carried, key=abs, reverse=True)
        assert sum(carried) + parts["remainder"] == pytest.approx(parts["score"], abs=1e-6)
        assert parts["gates"] == []
        if run.record.model in ITEM_ITEM:
            assert parts["remainder"] == 0.0
            assert "embedding" not in parts["sentence"]
        else:
            assert carried == [0.0] * len(carried)


def test_items_and_users_of_the_same_colour_are_similar(run: Run) -> None:
    if run.record.model == "popularity":
        pytest.skip("every item and every user is alike")
    assert {int(each["item"][1:]) % 2 for each in run.similar_items("i0", 11)} == {0}
    assert {int(each["user"][1:]) % 2 for each in run.similar_users("u0", 20)} == {0}


def test_newcomers_without_items_and_new_items(run: Run) -> None:
    with pytest.raises(DataError, match=r"new user 2 has no items"):
        run.fold_in.users([[0], []])
    if run.record.model == "popularity":
        assert run.fold_in.items([[0, 1, 2]]).tolist() == [[3.0]]
    else:
        with pytest.raises(ConfigError, match="cannot add an item"):
            run.fold_in.items([[0]])


def test_it_is_exported_and_served(run: Run, tmp_path: Path) -> None:
    assert run.export(tmp_path / "top.parquet", 3) == 3 * run.data.n_users
    table = pq.read_table(tmp_path / "top.parquet").to_pydict()
    assert table["item"][:3] == [each["item"] for each in run.recommend([table["user"][0]], 3)[0]["items"]]
    with client_of(run.directory.path, Settings()) as client:
        answer = client.post("/v1/recommend", json={"users": ["u0"], "k": 2}).json()
        assert answer[0]["items"] == run.recommend(["u0"], 2)[0]["items"]
        assert client.post("/v1/recommend", json={"items": ["i0", "i2"], "k": 2}).status_code == 200
        assert client.post("/v1/explain", json={"user": "u0", "item": "i1"}).status_code == 200
        assert client.get("/v1/model").json()["factor_size"] == (1 if run.record.model == "popularity" else None)


def test_the_module_comes_back(run: Run) -> None:
    model = load_model(run.directory)
    assert (model.n_users, model.n_items) == (run.data.n_users, run.data.n_items)
    for name, tensor in run.directory.weights().items():
        assert torch.equal(model.state_dict()[name], tensor)
    if run.record.model in ITEM_ITEM:
        with pytest.raises(RunError, match="has no factors"):
            _ = run.factors


@pytest.mark.parametrize("model", ITEM_ITEM)
def test_sparse_weights_rank_as_whole_ones_with_the_same_entries(model: str, tmp_path: Path) -> None:
    run = finished(model, tmp_path / "run", "model.neighbours=1")
    weights = run.directory.item_weights()
    assert weights is not None
    assert weights.sparse
    evaluation = run.evaluate("test", "train+valid", 1)
    assert 0.0 <= evaluation.metrics["recall"] <= 1.0
    (answer,) = run.recommend(["u3"], 24, "train")
    own = run.data.csr("train").row(3)
    dense = np.zeros((24, 24))
    for row in range(24):
        entries = slice(*weights.offsets[row : row + 2].tolist())
        dense[row, weights.items[entries].numpy()] = weights.values[entries].numpy()
    scores = dense[own].sum(axis=0)
    assert [each["score"] for each in answer["items"]] == pytest.approx(sorted(np.delete(scores, own), reverse=True))


@pytest.mark.parametrize("model", CLOSED)
def test_a_finished_run_is_resumed_as_it_is(model: str, tmp_path: Path) -> None:
    data, recipe = checkerboard(), resolve(model)
    assert recipe.train.epochs == 1
    first = fit(data, recipe, tmp_path / "run", device="cpu")
    again = fit(data, recipe, tmp_path / "run", device="cpu", resume=True)
    assert again.record == first.record


@pytest.mark.parametrize("model", CLOSED)
def test_memory_is_planned(model: str) -> None:
    """No closed form but EASE holds a matrix of all pairs of 40,981 items, which takes 6.7 GB."""
    plan = memory_plan(resolve(model), GOWALLA)
    pairs, fewer = 4 * GOWALLA.items**2, 4 * GOWALLA.users**2
    assert plan.table < 0.2 * pairs
    if model == "ease":
        assert 3 * fewer < plan.activations < 3 * fewer + 2e9
    else:
        assert plan.total < 3e9


def test_what_makes_a_large_catalogue_fit() -> None:
    """1,000,000 items with 500 weights each take more than 4 GB; fewer neighbours fit."""
    sizes = Sizes(2_000_000, 1_000_000, 50_000_000)
    recipe = resolve("gf-cf", overrides=["model.vectors=8"])
    total = memory_plan(recipe, sizes).total
    found = changes(recipe, sizes, "cpu", 1, total - 10**9)
    assert [change.what for change in found] == ["neighbours=200"]
    assert MODELS["gf-cf"].Config.solved
