"""WRMF's alternating step against a direct least-squares solution."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import oracles
import planted
import pytest
import torch

from hmlet.errors import TrainingError
from hmlet.models import wrmf
from hmlet.models.wrmf import WRMF, WRMFConfig

N_USERS, N_ITEMS = 9, 11
PAIRS = planted.random_pairs(4, N_USERS - 1, N_ITEMS - 1, 0.5)  # the last user and item have nothing


def fresh(alpha: float, penalty: float, seed: int = 1) -> WRMF:
    config = WRMFConfig(embedding_size=4, alpha=alpha, regularization=penalty)
    return WRMF(config, planted.graph([], N_USERS, N_ITEMS), torch.Generator().manual_seed(seed))


def sides(model: WRMF) -> tuple[np.ndarray, np.ndarray]:
    values_ND = model.embedding.detach().numpy().astype(np.float64)
    return values_ND[:N_USERS], values_ND[N_USERS:]


@pytest.mark.parametrize("together", [wrmf.BLOCK, 4 * 4 * 2, 1])
@pytest.mark.parametrize(("alpha", "penalty"), [(10.0, 0.01), (1.0, 1.0), (40.0, 0.1)])
def test_one_step_solves_users_then_items_exactly(
    alpha: float, penalty: float, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one block, where every system has D = 4 unknowns; in blocks of a few nodes; and each node alone.

    Degrees are between 2 and 6, so both kinds of systems are solved, with padding and without.
    """
    monkeypatch.setattr(wrmf, "BLOCK", together)
    monkeypatch.setattr(wrmf, "PIECE", 4)
    model = fresh(alpha, penalty)
    _, items_ID = sides(model)
    of_user = [[item for user, item in PAIRS if user == each] for each in range(N_USERS)]
    of_item = [[user for user, item in PAIRS if item == each] for each in range(N_ITEMS)]
    loss = model.solve(planted.csr(PAIRS, N_USERS))
    expected_UD = oracles.wrmf_side(of_user, items_ID, alpha, penalty)
    expected_ID = oracles.wrmf_side(of_item, expected_UD, alpha, penalty)
    users_UD, items_ID = sides(model)
    np.testing.assert_allclose(users_UD, expected_UD, rtol=1e-6, atol=5e-6)  # of values up to 10
    np.testing.assert_allclose(items_ID, expected_ID, rtol=1e-6, atol=5e-6)  # of values up to 10
    assert not users_UD[-1].any()
    assert not items_ID[-1].any()
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


@pytest.mark.parametrize("setting", [{"alpha": 1e38}, {"regularization": 1e-300}])
def test_systems_without_a_solution_are_refused(setting: dict[str, float]) -> None:
    """An α whose square is beyond float32, and a λ that does not make up for items of rank 1."""
    model = WRMF(WRMFConfig(embedding_size=4, **setting), planted.graph([], N_USERS, N_ITEMS), torch.Generator())  # type: ignore[arg-type]
    if "regularization" in setting:
        model.embedding.fill_(1.0)
    with pytest.raises(TrainingError, match="singular"):
        model.solve(planted.csr(PAIRS, N_USERS))


def test_what_solving_holds() -> None:
    """Four copies of the factors of 20 nodes, 100 interactions by user, by item and with their weights, and a block."""
    assert fresh(1.0, 1.0).peak_bytes(100) == 4 * 20 * 4 * 4 + 3 * 12 * 100 + 2 * 4 * 2**21
