"""Explanations add up: the layers to the score, the items and the remainder to the score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finished import NAMES, finished
from planted import dataset

from hmlet.api import Run
from hmlet.recommend.explanation import sentence


@pytest.fixture(scope="module", params=["hmlet-all", "hmlet-end", *(n for n in NAMES if not n.startswith("hmlet"))])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(request.param, tmp_path_factory.mktemp("run") / "run")


def test_the_parts_add_up_to_the_score_that_ranking_gives(run: Run) -> None:
    (answer,) = run.recommend(["u5"], 3)
    for each in answer["items"]:
        parts = run.explain("u5", each["item"])
        assert (parts["user"], parts["item"], parts["seen"]) == ("u5", each["item"], False)
        assert parts["score"] == pytest.approx(each["score"], abs=1e-12)
        tolerance = 1e-6 * float(run.factors[0].norm(dim=1).max() * run.factors[1].norm(dim=1).max())
        assert sum(layer["contribution"] for layer in parts["layers"]) == pytest.approx(each["score"], abs=tolerance)
        carried = sum(item["contribution"] for item in parts["carried_by"])
        assert carried + parts["remainder"] == pytest.approx(each["score"], abs=1e-12)


def test_each_item_carries_what_the_score_loses_without_it(run: Run) -> None:
    data, fold = run.data, run.fold_in
    parts = run.explain("u5", "i0")
    own = [int(item) for item in data.csr("train").row(5)]
    assert sorted(each["item"] for each in parts["carried_by"]) == sorted(f"i{item}" for item in own)
    values = [each["contribution"] for each in parts["carried_by"]]
    assert values == sorted(values, key=abs, reverse=True)
    for each in parts["carried_by"]:
        left = [item for item in own if f"i{item}" != each["item"]]
        without = fold.edited_user(5, [left])[0].double() @ run.factors[1][0].double()
        assert each["contribution"] == pytest.approx(parts["score"] - float(without), abs=1e-5)


def test_gates_are_those_of_the_run(run: Run) -> None:
    parts = run.explain("u5", "i0")
    if not run.record.model.startswith("hmlet"):
        assert parts["gates"] == []
        return
    table = run.gates.to_pandas().set_index(["node", "layer"])
    assert [gate["layer"] for gate in parts["gates"]] == ([1, 2, 3, 4] if run.record.model == "hmlet-all" else [3, 4])
    for gate in parts["gates"]:
        for node, key in ((5, "user"), (run.data.n_users, "item")):
            stored = table.loc[node, gate["layer"]]
            assert gate[key]["branch"] == ("non-linear" if stored["nonlinear"] else "linear")
            chosen = stored["probability"] if stored["nonlinear"] else 1 - stored["probability"]
            assert gate[key]["probability"] == pytest.approx(chosen, abs=1e-6)
            assert gate[key]["probability"] >= 0.5


def test_the_sentence_names_user_item_and_the_strongest_reason(run: Run) -> None:
    parts = run.explain("u5", "i0")
    assert parts["sentence"].count(".") >= 1
    assert parts["sentence"].endswith(".")
    assert "u5" in parts["sentence"]
    assert "i0 scores" in parts["sentence"]
    verb = "raise" if parts["score"] > 0 else "lower"
    reasons = [each["item"] for each in parts["carried_by"] if each["contribution"] * parts["score"] > 0]
    if not reasons:
        assert f"None of the user's items {verb}s" in parts["sentence"]
    elif len(reasons) == 1:
        assert f"only {reasons[0]} (" in parts["sentence"]
    else:
        assert f"{verb} it are {reasons[0]} (" in parts["sentence"].replace(" most", "")
    assert "(the user already has it)" in run.explain("u5", parts["carried_by"][0]["item"])["sentence"]


@pytest.mark.parametrize("model", ["hmlet-end", "ngcf", "gc-mc", "pinsage", "bpr", "wrmf"])
def test_a_user_without_training_items_is_explained_by_layers_alone(model: str, tmp_path: Path) -> None:
    train = [(user, item) for user in range(6) for item in range(6) if (user + item) % 3]
    data = dataset(7, 6, train=train, valid=[(6, 0)], test=[(6, 1)])
    run = finished(model, tmp_path / "run", data=data)
    fold = run.fold_in
    torch.testing.assert_close(fold.edited_user(6, [[]])[0], run.factors[0][6], rtol=1e-5, atol=1e-6)
    parts = run.explain("u6", "i2")
    score = float(run.factors[0][6].double() @ run.factors[1][2].double())
    assert (parts["carried_by"], parts["seen"]) == ([], False)
    assert parts["score"] == parts["remainder"] == pytest.approx(score, abs=1e-12)
    assert sum(layer["contribution"] for layer in parts["layers"]) == pytest.approx(score, abs=1e-6)
    assert "The user has no training items that could explain it." in parts["sentence"]


def test_a_linear_model_by_hand(tmp_path: Path) -> None:
    """LightGCN is linear: without item j, each layer loses e(j) / sqrt(d_u d_j), and the rest is rescaled."""
    run = finished("lightgcn", tmp_path / "run")
    fold, own = run.fold_in, run.data.csr("train").row(5).astype(np.int64)
    degree, target = fold.graph.degree, run.factors[1][0].double()
    gone = own[0]
    parts = {each["item"]: each["contribution"] for each in run.explain("u5", "i0")["carried_by"]}
    kept = own[1:]
    layers = [layer.double() for layer in fold.layers]

    def message(items: np.ndarray, layer: torch.Tensor) -> torch.Tensor:
        nodes = fold.graph.n_users + items
        return sum(layer[node] / (len(items) * degree[node]) ** 0.5 for node in nodes)  # type: ignore[return-value]

    change = sum(message(own, layer) - message(kept, layer) for layer in layers[:-1])
    rule = fold.rule("user")
    before, after = (
        rule(lists, fold.messages(lists))[0] for lists in (fold.lists_of("user", [own]), fold.lists_of("user", [kept]))
    )
    expected = float((change + before.double() - after.double()) @ target) / len(layers)
    assert parts[f"i{gone}"] == pytest.approx(expected, abs=1e-6)


def test_a_sentence_by_hand() -> None:
    parts: dict[str, Any] = {
        "user": 7,
        "item": 100,
        "name": "Naima",
        "score": 1.5,
        "seen": False,
        "layers": [{"layer": 0, "contribution": 0.5}, {"layer": 1, "contribution": 1.0}],
        "gates": [
            {
                "layer": 1,
                "user": {"branch": "linear", "probability": 0.75},
                "item": {"branch": "non-linear", "probability": 0.5001},
            }
        ],
        "carried_by": [
            {"item": 200, "name": "So What", "contribution": 0.75},
            {"item": 300, "name": None, "contribution": 0.0123456},
            {"item": 400, "name": "Blue in Green", "contribution": -0.1},
        ],
        "from_popularity": 0.0,
        "remainder": 0.8376544,
    }
    assert sentence(parts) == (
        "Naima scores 1.5 for 7. The user's items that raise it are So What (+0.75) and 300 (+0.0123), together "
        "51% of the score. The rest comes from other items and the user's own embedding. Layer 1 contributes most. "
        "At layer 1 the gate chose the linear branch for the user (75%) and the non-linear one for the item (50%)."
    )
    plain = {**parts, "gates": [], "seen": True, "score": -0.4}
    plain["layers"] = [{"layer": 0, "contribution": -0.5}, {"layer": 1, "contribution": 0.1}]
    assert sentence(plain) == (
        "Naima scores -0.4 for 7 (the user already has it). Of the user's items only Blue in Green (-0.1) lowers it, "
        "25% of the score. The rest comes from other items and the user's own embedding. Layer 0 contributes most."
    )
    against = {**parts, "layers": parts["layers"][:1], "gates": [], "carried_by": parts["carried_by"][2:]}
    assert sentence(against) == "Naima scores 1.5 for 7. None of the user's items raises the score."
    helpful = {**against, "score": -1.0, "carried_by": parts["carried_by"][:1]}
    assert "7. None of the user's items lowers the score." in sentence(helpful)
    assert sentence({**against, "carried_by": []}) == (
        "Naima scores 1.5 for 7. The user has no training items that could explain it."
    )


def test_a_sentence_names_the_three_strongest_and_what_balances_them() -> None:
    carried = [{"item": f"i{at}", "contribution": part} for at, part in enumerate([0.9, 0.5, 0.1, 0.05])]
    parts: dict[str, Any] = {
        "user": "u",
        "item": "x",
        "score": 1.0,
        "seen": False,
        "carried_by": carried,
        "from_popularity": 0.0,
        "remainder": 0.1,
    }
    parts |= {"layers": [{"layer": 0, "contribution": 1.0}], "gates": []}
    assert sentence(parts) == (
        "x scores 1 for u. The user's items that raise it most are i0 (+0.9), i1 (+0.5) and i2 (+0.1), together "
        "150% of the score. The difference comes from other items and the user's own embedding."
    )
    against = [{**each, "contribution": -each["contribution"]} for each in carried]
    assert sentence({**parts, "score": -2.0, "carried_by": against}) == (
        "x scores -2 for u. The user's items that lower it most are i0 (-0.9), i1 (-0.5) and i2 (-0.1), together "
        "75% of the score. The rest comes from other items and the user's own embedding."
    )
    assert sentence({**parts, "score": -0.9001, "carried_by": against[:1]}) == (
        "x scores -0.9 for u. Of the user's items only i0 (-0.9) lowers it, 100% of the score."
    )
    assert sentence({**parts, "score": 0.0, "carried_by": against[:1]}) == (
        "x scores 0 for u. Of the user's items only i0 (-0.9) lowers it."
    )
