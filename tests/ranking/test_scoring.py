"""Histories and item-item weights against plain sums: whole and sparse weights, ties, one user or a block."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import csr
from scipy.sparse import csr_matrix
from torch import Tensor

from hmlet.models import ItemWeights
from hmlet.ranking.scoring import (
    FactorScorer,
    Histories,
    HostFactorScorer,
    Scorer,
    WeightScorer,
    scored_by_weights,
    weight_scorer,
)
from hmlet.ranking.top_k import similar_histories, top_k

NOTHING = torch.empty(0)


def scorer_of(weights_II: np.ndarray, histories: Histories, sparse: bool) -> Scorer:
    if not sparse:
        return weight_scorer(ItemWeights(torch.from_numpy(weights_II), NOTHING, NOTHING), histories)
    entries = csr_matrix(weights_II)
    parts = (entries.data, entries.indices.astype(np.int32), entries.indptr.astype(np.int64))
    return weight_scorer(ItemWeights(*map(torch.from_numpy, parts)), histories)


def histories_of(lists: list[list[int]]) -> Histories:
    return Histories.of(csr([(user, item) for user, items in enumerate(lists) for item in items], len(lists)))


def expected(weights_II: np.ndarray, items: list[int], k: int, lists: list[list[int]]) -> list[int]:
    """The best items for a user with these, or for one without any, whom everyone's items stand for."""
    scores_I = weights_II[sorted(items) or sorted(chain(*lists))].astype(np.float64).sum(axis=0)
    return np.argsort(-scores_I, kind="stable")[:k].tolist()


@settings(max_examples=40)
@given(
    n_items=st.integers(1, 60),
    k=st.integers(1, 25),
    values=st.sampled_from([1, 2, 1000]),  # so few distinct numbers give many ties
    sparse=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_order_is_exact(n_items: int, k: int, values: int, sparse: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights_II = rng.integers(-values, values + 1, (n_items, n_items)).astype(np.float32)
    weights_II[rng.random((n_items, n_items)) < 0.5] = 0.0
    lists = [np.flatnonzero(rng.random(n_items) < share).tolist() for share in (0.0, 0.1, 0.5, 1.0)]
    histories = histories_of(lists)
    ranked = top_k(histories, scorer_of(weights_II, histories, sparse), k)
    assert ranked.items_BK.tolist() == [expected(weights_II, items, k, lists) for items in lists]


@pytest.mark.parametrize("sparse", [False, True])
def test_near_ties_and_one_user_or_a_block(sparse: bool) -> None:
    """Differences that float32 sums lose decide, and a user alone gets the same bits as in a block."""
    rng = np.random.default_rng(1)
    weights_II = (1.0 + 1e-6 * rng.random((500, 500))).astype(np.float32)
    lists = [sorted(rng.choice(500, 40, replace=False).tolist()) for _ in range(12)]
    histories = histories_of(lists)
    scorer = scorer_of(weights_II, histories, sparse)
    block = top_k(histories, scorer, 10)
    for row, items in enumerate(lists):
        alone = top_k(histories[row : row + 1], scorer, 10)
        assert np.array_equal(alone.items_BK[0], block.items_BK[row])
        assert np.array_equal(alone.scores_BK[0], block.scores_BK[row])
        best = block.items_BK[row]
        scores = weights_II[items].astype(np.float64).sum(axis=0)
        np.testing.assert_allclose(block.scores_BK[row], scores[best], rtol=1e-14)
        assert scores[best].min() >= np.delete(scores, best).max() - 1e-12


def test_rows_of_histories() -> None:
    histories = histories_of([[0, 3], [], [1, 2, 5], [4]])

    def lists(of: Histories) -> list[list[int]]:
        return [each.tolist() for each in of.items_E.split(of.counts_B.tolist())]

    assert lists(histories[1:3]) == [[], [1, 2, 5]]
    assert lists(histories[torch.tensor([3, 0, 0])]) == [[4], [0, 3], [0, 3]]
    assert histories.owner_E.tolist() == [0, 0, 2, 2, 2, 3]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_model_of_weights_is_scored_by_its_training_histories(sparse: bool) -> None:
    weights_II = np.arange(9, dtype=np.float32).reshape(3, 3)
    whole = ItemWeights(torch.from_numpy(weights_II), NOTHING, NOTHING)
    few = ItemWeights(whole.values.flatten(), torch.arange(3).repeat(3), torch.arange(0, 12, 3))
    histories, scorer = scored_by_weights(few if sparse else whole, csr([(0, 1), (1, 0), (1, 2), (1, 1)], 4))
    assert (histories.items_E.tolist(), histories.offsets.tolist()) == ([1, 0, 1, 2], [0, 1, 4, 4, 4])
    assert (scorer.n_items, scorer.depth) == (3, 4 // 4 + 1)
    scores = [[3, 4, 5], [9, 12, 15], [3, 4, 5], [3, 4, 5]]  # the mean over all four users for those without items
    assert scorer.rough(histories)[0].tolist() == scores
    users, items = np.arange(8) // 2, np.array([2, 0] * 4)
    assert scorer.exact(histories, users, items).tolist() == [score for row in scores for score in (row[2], row[0])]


def test_a_model_without_items_has_no_largest_weight() -> None:
    assert WeightScorer(torch.zeros(0, 0), histories_of([])).largest_I.shape == (0,)
    assert WeightScorer(torch.tensor([[1.0, -3.0], [2.0, 0.0]]), histories_of([])).largest_I.tolist() == [3.0, 2.0]


@pytest.mark.parametrize(
    ("user", "item", "lengths"), [([3.0, 4.0], [0.0, 2.0], (5.0, 2.0)), ([0.0, 0.0], [0.0, 1.0], (0.0, 1.0)),
                                  ([1.0, 0.0], [0.0, 0.0], (1.0, 0.0))],
)  # fmt: skip
def test_the_bound_on_a_dot_products_error(user: list[float], item: list[float], lengths: tuple[float, float]) -> None:
    """4 F ε ‖u‖ ‖i‖ and F times the smallest normal number; a norm may lack the root of that where squares vanish."""
    eps, tiny = 2.0**-23, 2.0**-126
    lost = math.sqrt(2 * tiny)
    bound = 2 * (4 * eps * (lengths[0] + lost) * (lengths[1] + lost) + tiny)
    items, users = torch.tensor([[0.0, 0.0], item]), torch.tensor([user])
    for _, found in (FactorScorer(items).rough(users), HostFactorScorer(items).rough(users.numpy())):
        assert found.tolist() == pytest.approx([bound], rel=1e-12, abs=0)


def test_the_bound_on_a_sums_error() -> None:
    """2 n ε times the sum of the largest weights of the n items; ε times the largest mean score, (1 + 2 · 2) / 3."""
    histories = histories_of([[0, 1], [1], []])
    _, bounds = WeightScorer(torch.tensor([[1.0, -3.0], [2.0, 0.0]]), histories).rough(histories)
    assert bounds.tolist() == [2 * 2 * 2.0**-23 * (3 + 2), 2 * 2.0**-23 * 2, 2.0**-23 * 5 / 3]


def test_similar_histories_by_hand() -> None:
    histories = histories_of([[0, 1], [1, 2], [0, 1, 2, 3], [5], []])
    ranked = similar_histories(histories, _rows(0), 4)
    assert ranked.items_BK.tolist() == [[2, 1, 3, 4]]
    np.testing.assert_allclose(ranked.scores_BK, [[2 / 8**0.5, 0.5, 0.0, 0.0]])


def _rows(*rows: int) -> Tensor:
    return torch.tensor(rows)
