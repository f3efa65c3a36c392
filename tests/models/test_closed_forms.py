"""The closed forms against dense float64 NumPy, with weights whole and sparse, and more users than items and fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracles
import planted
import pytest
import torch
from products import IDENTITY
from scipy.sparse import csr_matrix

from hmlet.graph import spectral
from hmlet.models import MODELS, ItemWeights, NodeTensor, Pass, build, chebycf, item_item

SHAPES = [(40, 25), (25, 40)]


def interactions(n_users: int, n_items: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Random pairs, without any of the last user and the last item; and the same as a dense matrix."""
    pairs = planted.random_pairs(3, n_users - 1, n_items - 1, 0.25)
    dense_UI = np.zeros((n_users, n_items))
    for user, item in pairs:
        dense_UI[user, item] = 1.0
    return list(pairs), dense_UI


def solved(name: str, n_users: int, n_items: int, **settings: Any) -> Any:
    pairs, _ = interactions(n_users, n_items)
    config = MODELS[name].Config(name=name, **settings)  # type: ignore[call-arg]
    model = build(config, planted.graph(pairs, n_users, n_items), torch.Generator().manual_seed(1))
    assert model.solve(planted.csr(pairs, n_users)) == 0.0
    return model


def dense(weights: ItemWeights) -> np.ndarray:
    if not weights.sparse:
        return weights.values.numpy()
    n_items = len(weights.offsets) - 1
    values, items, offsets = (each.numpy() for each in weights)
    found: np.ndarray = csr_matrix((values, items, offsets), shape=(n_items, n_items)).toarray()
    return found


@pytest.mark.parametrize(("n_users", "n_items"), SHAPES)
@pytest.mark.parametrize("multiple", [0.5, 5.0])
def test_ease(n_users: int, n_items: int, multiple: float) -> None:
    pairs, dense_UI = interactions(n_users, n_items)
    expected = oracles.ease(dense_UI, multiple * len(pairs) / n_items)
    found = dense(solved("ease", n_users, n_items, regularization=multiple).item_weights())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)
    assert not found.diagonal().any()


def test_every_generator_starts_a_filter_elsewhere() -> None:
    config, graph = MODELS["gf-cf"].Config(name="gf-cf"), planted.graph([(0, 0)], 1, 1)  # type: ignore[call-arg]
    seeds = {build(config, graph, torch.Generator().manual_seed(seed)).seed for seed in range(200)}
    assert len(seeds) == 200


@pytest.mark.parametrize(("n_users", "n_items"), SHAPES)
@pytest.mark.parametrize("neighbours", [2, 7, 1000])
def test_item_knn(n_users: int, n_items: int, neighbours: int) -> None:
    """Scores, because which of two equally similar items is kept is left open; the oracle's ties are of random data."""
    _, dense_UI = interactions(n_users, n_items)
    found = dense(solved("itemknn", n_users, n_items, neighbours=neighbours, shrinkage=3.0).item_weights())
    expected = oracles.item_knn(dense_UI, neighbours, 3.0)
    np.testing.assert_allclose(np.sort(found, axis=0), np.sort(expected, axis=0), rtol=1e-5, atol=1e-7)
    every = oracles.item_knn(dense_UI, 1000, 3.0)
    np.testing.assert_allclose(found, np.where(found != 0, every, 0.0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("n_users", "n_items"), SHAPES)
@pytest.mark.parametrize("vectors", [5, 256])
def test_gf_cf(n_users: int, n_items: int, vectors: int) -> None:
    _, dense_UI = interactions(n_users, n_items)
    found = dense(solved("gf-cf", n_users, n_items, vectors=vectors).item_weights())
    np.testing.assert_allclose(found, oracles.gf_cf(dense_UI, vectors, 0.3), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(("n_users", "n_items"), SHAPES)
@pytest.mark.parametrize(
    ("order", "flatness", "vectors", "alpha"), [(8, 1.5, 5, 0.2), (1, 6.0, 256, 0.0), (5, 1.0, 3, 1.0)]
)
def test_cheby_cf(n_users: int, n_items: int, order: int, flatness: float, vectors: int, alpha: float) -> None:
    _, dense_UI = interactions(n_users, n_items)
    settings = {"order": order, "flatness": flatness, "vectors": vectors, "alpha": alpha}
    found = dense(solved("cheby-cf", n_users, n_items, degree_power=0.3, **settings).item_weights())
    expected = oracles.cheby_cf(dense_UI, order, flatness, vectors, alpha, 0.3)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


def test_popularity() -> None:
    _, dense_UI = interactions(40, 25)
    model = solved("popularity", 40, 25)
    users_UF, items_IF = model.propagate(IDENTITY, Pass()).factors().split([40, 25])
    assert model.embedding.shape == (65, 1)
    np.testing.assert_array_equal((users_UF @ items_IF.T).numpy(), np.tile(dense_UI.sum(axis=0), (40, 1)))


@pytest.mark.parametrize("name", ["itemknn", "ease", "gf-cf"])
def test_sparse_weights_are_the_largest_of_the_whole_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each of 40 items two weights: the largest of its row, for ItemKNN of its column. With all kept, as whole."""
    whole = dense(solved(name, 25, 40, neighbours=40).item_weights())
    few = solved(name, 25, 40, neighbours=2).item_weights()
    assert few.sparse
    found = dense(few)
    axis = 0 if name == "itemknn" else 1
    kept = np.sort(np.abs(whole), axis=axis).take([-2, -1], axis)
    np.testing.assert_array_equal(np.sort(np.abs(found), axis=axis).take([-2, -1], axis), kept)
    np.testing.assert_array_equal(found, np.where(found != 0, whole, 0.0))
    monkeypatch.setattr(item_item, "DENSE_SHARE", 0)  # sparse, however much is kept
    everything = solved(name, 25, 40, neighbours=40).item_weights()
    assert everything.sparse
    np.testing.assert_array_equal(dense(everything), whole)


@pytest.mark.parametrize("name", ["itemknn", "ease", "gf-cf", "cheby-cf"])
def test_blocks_of_rows_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dense(solved(name, 25, 40).item_weights())
    monkeypatch.setattr(item_item, "BLOCK_BYTES", 4 * 40 * 7)  # seven items at a time, and five at last
    np.testing.assert_allclose(dense(solved(name, 25, 40).item_weights()), whole, rtol=1e-5, atol=1e-7)


def test_large_catalogues_keep_a_few_weights() -> None:
    config: Any = MODELS["ease"].Config()
    assert (config.kept(16_384), config.sparse(16_384)) == (16_384, False)
    assert (config.kept(16_385), config.sparse(16_385)) == (500, True)


@pytest.mark.parametrize(
    ("name", "settings", "more"),
    [
        ("itemknn", {"neighbours": 1}, 2 * 8 * 25),  # 25 sparse rows of one weight, twice
        ("ease", {}, 3 * 4 * 25 * 25),
        ("gf-cf", {"vectors": 5}, 40 * 100 + 6 * 8 * 65 * (5 + spectral.EXTRA)),
        ("cheby-cf", {"vectors": 5}, 40 * 100 + 6 * 8 * 65 * (5 + spectral.EXTRA) + 6 * 1000),
    ],
)
def test_what_solving_holds(name: str, settings: dict[str, Any], more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 interactions of 40 users with 25 items, twice in 12 bytes; four blocks of rows; and what a model adds."""
    for module in (item_item, chebycf):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1000)
    model = build(MODELS[name].Config(name=name, **settings), planted.graph([], 40, 25), torch.Generator())  # type: ignore[call-arg]
    assert model.peak_bytes(100) == 2 * 12 * 100 + 4 * 1000 + more


@pytest.mark.parametrize(("block", "held"), [(100, 4 * 65), (1000, 1000), (10**6, 4 * 65 * 25)])
def test_the_polynomial_holds_six_blocks(block: int, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 65 nodes: a column at least, and at most one for each of 25 items."""
    for module in (item_item, chebycf):
        monkeypatch.setattr(module, "BLOCK_BYTES", block)
    cheby, plain = (
        build(MODELS[name].Config(name=name, vectors=5), planted.graph([], 40, 25), torch.Generator())  # type: ignore[call-arg]
        for name in ("cheby-cf", "gf-cf")
    )
    assert cheby.peak_bytes(100) - plain.peak_bytes(100) == 6 * held


def test_blocks_cover_the_items_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_item, "BLOCK_BYTES", 4 * 30)
    assert list(item_item.blocks(10)) == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 10)]
    assert list(item_item.blocks(4, 15)) == [slice(0, 2), slice(2, 4)]
    assert list(item_item.blocks(2, 31)) == [slice(0, 1), slice(1, 2)]  # a row at least
    assert list(item_item.blocks(0)) == []
    assert list(item_item.blocks(30, 0)) == [slice(0, 30)]


def test_weights_are_sparse_below_a_sixteenth() -> None:
    config: Any = MODELS["ease"].Config(neighbours=10)  # type: ignore[call-arg]
    assert [config.sparse(n_items) for n_items in (160, 161)] == [False, True]


@pytest.mark.parametrize(
    ("neighbours", "shapes"), [(0, {"values": (40, 40), "items": (0,), "offsets": (0,)}),
                               (2, {"values": (80,), "items": (80,), "offsets": (41,)})]
)  # fmt: skip
def test_an_item_item_model_has_weights_and_no_embedding(neighbours: int, shapes: dict[str, tuple[int, ...]]) -> None:
    model = solved("ease", 25, 40, neighbours=neighbours)
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == shapes
    assert model.node_tensors(25, 40) == {name: NodeTensor(shape, "items") for name, shape in shapes.items()}
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == {
        "values": torch.float32, "items": torch.int32, "offsets": torch.int64,
    }  # fmt: skip
    assert model.embedding.shape == (65, 0)
