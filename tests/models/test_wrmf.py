"""WRMF's alternating step against a direct least-squares solution."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import oracles
import planted
import pytest
import torch

from hmlet.models.wrmf import WRMF, WRMFConfig

N_USERS, N_ITEMS = 9, 11
PAIRS = planted.random_pairs(4, N_USERS - 1, N_ITEMS - 1, 0.3)  # the last user and item have nothing


def fresh(alpha: float, penalty: float, seed: int = 1) -> WRMF:
    config = WRMFConfig(embedding_size=4, alpha=alpha, regularization=penalty)
    return WRMF(config, planted.graph([], N_USERS, N_ITEMS), torch.Generator().manual_seed(seed))


def sides(model: WRMF) -> tuple[np.ndarray, np.ndarray]:
    values_ND = model.embedding.detach().numpy().astype(np.float64)
    return values_ND[:N_USERS], values_ND[N_USERS:]


@pytest.mark.parametrize(("alpha", "penalty"), [(10.0, 0.01), (1.0, 1.0), (40.0, 0.1)])
def test_one_step_solves_users_then_items_exactly(alpha: float, penalty: float) -> None:
    model = fresh(alpha, penalty)
    _, items_ID = sides(model)
    of_user = [[item for user, item in PAIRS if user == each] for each in range(N_USERS)]
    of_item = [[user for user, item in PAIRS if item == each] for each in range(N_ITEMS)]
    loss = model.solve(planted.csr(PAIRS, N_USERS))
    expected_UD = oracles.wrmf_side(of_user, items_ID, alpha, penalty)
    expected_ID = oracles.wrmf_side(of_item, expected_UD, alpha, penalty)
    users_UD, items_ID = sides(model)
    np.testing.assert_allclose(users_UD, expected_UD, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(items_ID, expected_ID, rtol=1e-5, atol=1e-6)
    assert not users_UD[-1].any()
    assert not items_ID[-1].any()
    # implicit divides the objective by the sum of all confidences.
    confidence = N_USERS * N_ITEMS + alpha * len(PAIRS)
    assert loss == pytest.approx(
        oracles.wrmf_objective(PAIRS, users_UD, items_ID, alpha, penalty) / confidence, rel=1e-6
    )


def test_every_step_continues_from_the_last_and_lowers_the_objective() -> None:
    model, train = fresh(10.0, 0.1), planted.csr(PAIRS, N_USERS)
    objectives = []
    for _ in range(6):
        model.solve(train)
        objectives.append(oracles.wrmf_objective(PAIRS, *sides(model), 10.0, 0.1))
    assert all(later < earlier for earlier, later in pairwise(objectives))


def test_same_start_same_result() -> None:
    train = planted.csr(PAIRS, N_USERS)
    first, second, other = fresh(10.0, 0.1), fresh(10.0, 0.1), fresh(10.0, 0.1, seed=2)
    for model in (first, second, other):
        model.solve(train)
    assert torch.equal(first.embedding, second.embedding)
    assert not torch.equal(first.embedding, other.embedding)


def test_nothing_has_a_gradient() -> None:
    assert not any(parameter.requires_grad for parameter in fresh(1.0, 1.0).parameters())


def test_what_solving_holds() -> None:
    """A copy of the factors of 20 nodes, and 100 interactions by user, by item and with their confidence."""
    assert fresh(1.0, 1.0).solving_bytes(100) == 20 * 4 * 4 + 3 * 12 * 100


def test_the_work_of_solving() -> None:
    """D = 3: each of 100 interactions adds 3 × 3 products to a system on either side, a multiply and an add each.
    Each of 30 nodes adds as many to a Gram matrix, and its system takes 3³ / 3 operations."""
    (part,) = WRMFConfig(embedding_size=3).solving(10, 20, 100)
    assert (part.name, part.operations) == ("systems", 2 * 100 * 2 * 9 + 30 * (2 * 9 + 9))
