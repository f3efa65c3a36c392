"""A run that ranks by cosine, and one that adds popularity: answers against an oracle of its layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import ranked
import torch
from finished import finished
from torch import Tensor
from torch.nn.functional import normalize

from hmlet.api import Run
from hmlet.models.scores import learned_popularity

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


# -- with popularity --------------------------------------------------------------------------------------------------

POPULARITY = 0.3


@pytest.fixture(scope="module", params=["lightgcn", "hmlet-end", "lr-gccf", "pinsage", "bpr"])
def popular(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = "train.loss=multinomial", f"loss.popularity_weight={POPULARITY}"
    unequal = ranked.data()  # items of a checkerboard all have as many interactions
    return finished(request.param, tmp_path_factory.mktemp("popular") / "run", *settings, data=unequal)


def added(run: Run, counts: list[int] | None = None) -> Tensor:
    """What popularity adds to the score of each item, or of items with so many interactions.

    An item that is as popular as those of the training interactions are in the mean would get 0.
    """
    items = run.data.csr("train").items
    known = torch.from_numpy(np.bincount(items, minlength=run.data.n_items)).double().log1p()
    wanted = known if counts is None else torch.tensor(counts).double().log1p()
    return POPULARITY * (wanted - known[items].mean())


def test_popularity_is_one_more_column_of_the_factors(popular: Run) -> None:
    users_UF, items_IF = popular.factors
    length_one = normalize(raw_factors(popular).double(), dim=1)
    torch.testing.assert_close(torch.cat([users_UF, items_IF])[:, :-1].double(), length_one, rtol=1e-5, atol=1e-6)
    assert (users_UF[:, -1] == 1.0).all()
    torch.testing.assert_close(items_IF[:, -1].double(), added(popular), rtol=1e-6, atol=1e-7)
    recorded = popular.metrics[-1]["valid"]["ndcg"]
    assert popular.evaluate("valid", "train", 20).metrics["ndcg"] == pytest.approx(recorded, abs=1e-9)


def test_who_is_alike_does_not_depend_on_popularity(popular: Run) -> None:
    raw, n_users = raw_factors(popular).double(), popular.data.n_users
    for near, rows in (
        (popular.similar_items("i3", 4), raw[n_users:]),
        (popular.similar_users("u3", 4), raw[:n_users]),
    ):
        cosine = torch.cosine_similarity(rows[3][None], rows, dim=1)
        cosine[3] = -2.0
        assert [each["score"] for each in near] == pytest.approx(torch.topk(cosine, 4).values.tolist(), abs=1e-5)


def test_newcomers_have_the_column_too(popular: Run) -> None:
    fold = popular.fold_in
    users, items = fold.users([[0, 2, 4], [1]]), fold.items([[0, 2, 4], [1, 3]])
    assert users[:, -1].tolist() == [1.0, 1.0]
    assert items[:, -1].tolist() == pytest.approx(added(popular, [3, 2]).tolist(), rel=1e-5)
    edited = fold.edited_user(5, [fold.own_items(5)])[0]
    torch.testing.assert_close(edited, popular.factors[0][5], rtol=1e-5, atol=1e-6)


def test_explanations_say_what_popularity_adds(popular: Run) -> None:
    (best,) = popular.recommend(["u5"], 1, "train")[0]["items"]
    parts = popular.explain("u5", best["item"])
    assert parts["from_popularity"] == pytest.approx(float(added(popular)[int(str(best["item"])[1:])]), rel=1e-6)
    by_factors = best["score"] - parts["from_popularity"]
    assert sum(each["contribution"] for each in parts["layers"]) == pytest.approx(by_factors, abs=1e-6)
    carried = sum(each["contribution"] for each in parts["carried_by"])
    assert carried + parts["remainder"] == pytest.approx(by_factors, abs=1e-12)
    assert "how popular the item is" in parts["sentence"]


def test_an_update_counts_interactions_anew(popular: Run, tmp_path: Path) -> None:
    rows = pl.DataFrame({"user": ["u0", "u1", "u2"], "item": ["i1", "i1", "new item"]})
    updated = popular.update(rows, tmp_path / "updated")
    torch.testing.assert_close(updated.factors[1][:, -1].double(), added(updated), rtol=1e-6, atol=1e-7)


# -- with learned popularity ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["lightgcn", "hmlet-end", "bpr"])
def learned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = "train.loss=multinomial", f"loss.popularity_weight={POPULARITY}", "loss.popularity_learned=true"
    return finished(request.param, tmp_path_factory.mktemp("learned") / "run", *settings, data=ranked.data())


def test_what_was_learned_is_what_is_ranked_by(learned: Run) -> None:
    column_I = learned.factors[1][:, -1]
    torch.testing.assert_close(column_I, learned.directory.weights()["popularity"], rtol=0.0, atol=0.0)
    assert (column_I.double() - added(learned)).abs().max() > 1e-3  # training has moved it
    recorded = learned.metrics[-1]["valid"]["ndcg"]
    assert learned.evaluate("valid", "train", 20).metrics["ndcg"] == pytest.approx(recorded, abs=1e-9)
    parts = learned.explain("u5", "i3")
    assert parts["from_popularity"] == pytest.approx(float(column_I[3]), rel=1e-6)


def test_popularity_is_learned_from_nothing_too(tmp_path: Path) -> None:
    """Without a line to lie on, a new item gets the mean."""
    settings = "train.loss=multinomial", "loss.popularity_learned=true"
    run = finished("lightgcn", tmp_path / "run", *settings, data=ranked.data())
    column_I = run.factors[1][:, -1]
    assert run.factors[0].shape[1] == run.directions[0].shape[1] + 1
    assert column_I.std() > 1e-3
    assert run.fold_in.items([[0, 2], [1]])[:, -1].tolist() == pytest.approx([float(column_I.mean())] * 2, rel=1e-4)


def test_new_items_lie_on_the_line_of_the_old_ones(learned: Run) -> None:
    slope, offset = np.polyfit(added(learned).numpy(), learned.factors[1][:, -1].double().numpy(), 1)
    items = learned.fold_in.items([[0, 2, 4], [1, 3]])
    expected = slope * added(learned, [3, 2]) + offset
    assert items[:, -1].tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    assert learned.fold_in.users([[0, 2, 4]])[:, -1].tolist() == [1.0]


def test_an_update_goes_on_from_what_was_learned(learned: Run, tmp_path: Path) -> None:
    """A step is too short to undo it."""
    rows = pl.DataFrame({"user": ["u0", "u1", "u2"], "item": ["i1", "i1", "new item"]})
    updated = learned.update(rows, tmp_path / "updated")
    old_I, new_I = learned.factors[1][:, -1], updated.factors[1][:, -1]
    assert len(new_I) == len(old_I) + 1
    moved, from_start = (
        (new_I[: len(old_I)] - old_I).abs().mean(),
        (new_I[: len(old_I)] - added(updated)[: len(old_I)]).abs().mean(),
    )
    assert moved < from_start


def test_learned_popularity_where_all_items_start_alike_is_their_mean_and_the_difference_to_them() -> None:
    start, found = torch.full((3,), 0.5), torch.tensor([0.1, 0.2, 0.6])
    assert learned_popularity(torch.tensor([0.5, 2.0]), start, found).tolist() == pytest.approx([0.3, 1.8])


def test_a_layers_part_is_its_share_of_the_joined_length(tmp_path: Path) -> None:
    """LightGCN by hand: e_k / (5 ‖mean of all e‖) · v."""
    run = finished("lightgcn", tmp_path / "run", "train.loss=softmax")
    layers = [layer[5].double() for layer in run.fold_in.layers]
    length = torch.stack(layers).mean(dim=0).norm()
    item = run.factors[1][0].double()
    expected = [float(layer / len(layers) / length @ item) for layer in layers]
    assert [each["contribution"] for each in run.explain("u5", "i0")["layers"]] == pytest.approx(expected, abs=1e-6)


def test_without_popularity_nothing_is_read_or_held_twice(run: Run) -> None:
    assert run.directions[0] is run.factors[0]
    assert run.directions[1] is run.factors[1]
