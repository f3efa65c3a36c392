"""The planted mixture is what its docstring says: checked by counting paths in the training graph."""

from __future__ import annotations

import numpy as np
import pytest
from planted import crowd_and_ring


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_crowd_is_three_hops_wide_and_the_ring_holds_out_the_fifth_hop(seed: int) -> None:
    data, crowd_N = crowd_and_ring(seed)
    crowd_U, crowd_I = crowd_N[: data.n_users], crowd_N[data.n_users :]
    likes_UI = dense(data.csr("train"), data.n_items)
    third_UI = likes_UI @ likes_UI.T @ likes_UI
    fifth_UI = third_UI @ likes_UI.T @ likes_UI
    held_UI = dense(data.csr("valid"), data.n_items) + dense(data.csr("test"), data.n_items)

    assert not third_UI[np.ix_(crowd_U, ~crowd_I)].any()
    assert not third_UI[np.ix_(~crowd_U, crowd_I)].any()
    assert (third_UI[np.ix_(crowd_U, crowd_I)] > 0).all()
    ring = np.ix_(~crowd_U, ~crowd_I)
    assert held_UI[ring].sum() == 2 * (~crowd_U).sum()
    assert not third_UI[ring][held_UI[ring] > 0].any()
    assert (fifth_UI[ring][held_UI[ring] > 0] > 0).all()


def test_crowd_users_hold_out_items_of_their_own_group() -> None:
    data, crowd_N = crowd_and_ring(seed=1)
    train, test = data.csr("train"), data.csr("test")
    for user in np.flatnonzero(crowd_N[: data.n_users]):
        group = test.items[test.indptr[user]] // 10
        liked = train.items[train.indptr[user] : train.indptr[user + 1]] // 10
        assert group == user % 8
        assert (liked == group).sum() == 5
        assert len(liked) == 13


def dense(csr, n_items: int) -> np.ndarray:
    matrix = np.zeros((len(csr.indptr) - 1, n_items), dtype=np.int64)
    matrix[np.repeat(np.arange(len(matrix)), csr.counts), csr.items] = 1
    return matrix
