"""How a newcomer's factor follows from its neighbours', for the models with a rule of their own, against NumPy."""

from __future__ import annotations

import numpy as np
import oracles
import planted
import pytest
import torch

from hmlet.models import MODELS, FoldInRule, Side, build

OTHERS = np.random.default_rng(3).normal(0.2, 0.3, (12, 4))
OWN = [1, 4, 5]


def newcomer(name: str, side: Side, others: np.ndarray, **settings: float) -> FoldInRule:
    model = build(MODELS[name].Config(**settings), planted.graph([(0, 1)], 2, 3), torch.Generator())
    found = model.fold_in(side, torch.from_numpy(others))
    assert found is not None
    return found


def test_bpr_takes_one_newton_step() -> None:
    found = newcomer("bpr", "user", OTHERS)
    centred = OTHERS - OTHERS.mean(axis=0)
    spread = centred.T @ centred / len(OTHERS)
    own = centred[OWN]
    matrix = own.T @ own / len(own) + spread + 4 * np.diag(spread).mean() * np.eye(4)
    expected = np.linalg.solve(matrix, own.mean(axis=0))
    np.testing.assert_allclose(found.solve(torch.from_numpy(OTHERS[OWN])), expected, rtol=1e-12)
    assert (found.rescaled, found.nobody) == (True, 0.0)


def test_bpr_has_a_finite_answer_where_all_others_are_alike() -> None:
    alike = np.ones((5, 4))
    assert newcomer("bpr", "user", alike).solve(torch.from_numpy(alike[:2])).tolist() == [0.0] * 4


@pytest.mark.parametrize("side", ["user", "item"])
def test_wrmf_solves_its_own_least_squares_problem(side: Side) -> None:
    found = newcomer("wrmf", side, OTHERS, alpha=3.0, regularization=0.2)
    (expected,) = oracles.wrmf_side([OWN], OTHERS, 3.0, 0.2)
    np.testing.assert_allclose(found.solve(torch.from_numpy(OTHERS[OWN])), expected, rtol=1e-12)
    assert (found.rescaled, found.nobody) == (False, 0.0)


def test_popularity_gives_a_user_one_and_an_item_its_users() -> None:
    ones = torch.ones(3, 1, dtype=torch.float64)
    user, item = (newcomer("popularity", side, np.ones((5, 1))) for side in ("user", "item"))
    assert (user.solve(2 * ones).tolist(), user.nobody) == ([1.0], 1.0)
    assert (item.solve(ones).tolist(), item.nobody) == ([3.0], 0.0)
