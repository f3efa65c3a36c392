"""A run that ranks by cosine: recommendations, newcomers and explanations against an oracle of its layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from finished import finished
from torch import Tensor
from torch.nn.functional import normalize

from hmlet.api import Run

MODELS = ["lightgcn", "hmlet-end", "lr-gccf", "gc-mc", "pinsage", "bpr"]


@pytest.fixture(scope="module", params=MODELS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(request.param, tmp_path_factory.mktemp("run") / "run", "train.loss=softmax")


def raw_factors(run: Run) -> Tensor:
    """What the stored layers are joined into, before they are scaled."""
    if run.record.model == "bpr":
        return run.directory.weights()["embedding"]
    layers = run.fold_in.layers
    if run.record.model == "lr-gccf":
        return torch.cat(list(layers), dim=1)
    return layers[-1] if run.record.model in ("gc-mc", "pinsage") else torch.stack(list(layers)).mean(dim=0)


def test_stored_factors_are_the_joined_layers_with_length_one(run: Run) -> None:
    expected = normalize(raw_factors(run).double(), dim=1)
    torch.testing.assert_close(torch.cat(run.factors).double(), expected, rtol=1e-5, atol=1e-6)


def test_recommendations_are_the_best_cosines(run: Run) -> None:
    raw, data = raw_factors(run).double(), run.data
    cosine = torch.cosine_similarity(raw[5][None], raw[data.n_users :], dim=1)
    cosine[torch.from_numpy(data.csr("train").row(5).astype(np.int64))] = -2.0
    expected = torch.topk(cosine, 3)
    (answer,) = run.recommend(["u5"], 3, "train")
    assert [each["item"] for each in answer["items"]] == [f"i{item}" for item in expected.indices.tolist()]
    assert [each["score"] for each in answer["items"]] == pytest.approx(expected.values.tolist(), abs=1e-5)


def test_newcomers_and_edited_users_have_length_one(run: Run) -> None:
    fold = run.fold_in
    for found in (fold.users([[0, 2, 4], [1]]), fold.items([[0, 2, 4], [1, 3]])):
        torch.testing.assert_close(found.norm(dim=1), torch.ones(2), rtol=1e-5, atol=1e-6)
    edited = fold.edited_user(5, [fold.own_items(5)])[0]
    torch.testing.assert_close(edited, run.factors[0][5], rtol=1e-5, atol=1e-6)


def test_explanations_add_up_to_the_cosine(run: Run) -> None:
    (best,) = run.recommend(["u5"], 1, "train")[0]["items"]
    parts = run.explain("u5", best["item"])
    assert parts["score"] == pytest.approx(best["score"], abs=1e-12)
    assert sum(each["contribution"] for each in parts["layers"]) == pytest.approx(parts["score"], abs=1e-6)
    carried = sum(each["contribution"] for each in parts["carried_by"])
    assert carried + parts["remainder"] == pytest.approx(parts["score"], abs=1e-12)


def test_a_layers_part_is_its_share_of_the_joined_length(tmp_path: Path) -> None:
    """LightGCN by hand: e_k / (5 ‖mean of all e‖) · v."""
    run = finished("lightgcn", tmp_path / "run", "train.loss=softmax")
    layers = [layer[5].double() for layer in run.fold_in.layers]
    length = torch.stack(layers).mean(dim=0).norm()
    item = run.factors[1][0].double()
    expected = [float(layer / len(layers) / length @ item) for layer in layers]
    assert [each["contribution"] for each in run.explain("u5", "i0")["layers"]] == pytest.approx(expected, abs=1e-6)
