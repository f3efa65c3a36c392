"""Which edges are kept: the hash against Python integers, and its statistics."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from hmlet.graph.kernels.edge_hash import keeps

EDGES = 200_000


@example(1, 1 - 2.0**-53, 50)
@given(st.integers(0, 2**63 - 1), st.floats(0, 1, exclude_max=True), st.integers(0, 50))
def test_keeps_equals_the_hash_in_python_integers(key: int, rate: float, n_edges: int) -> None:
    assert keeps(n_edges, rate, key).tolist() == [oracles.keeps(edge, rate, key) for edge in range(n_edges)]


@pytest.mark.parametrize("key", [0, 1, 2, 12345, 2**32, 2**40 + 17])
@pytest.mark.parametrize("rate", [0.001, 0.1, 0.4, 0.9])
def test_share_of_kept_edges_is_binomial(rate: float, key: int) -> None:
    low, high = binom.interval(1 - 1e-6, EDGES, 1 - rate)
    assert low <= int(keeps(EDGES, rate, key).sum()) <= high


@pytest.mark.parametrize(("key", "other"), [(0, 1), (1, 2), (100, 101), (5, 5 + 2**32)])
def test_masks_of_two_keys_are_independent(key: int, other: int) -> None:
    first, second = keeps(EDGES, 0.4, key), keeps(EDGES, 0.4, other)
    observed = [int((first == a).astype(int) @ (second == b)) for a in (True, False) for b in (True, False)]
    assert chisquare(observed, EDGES * np.array([0.36, 0.24, 0.24, 0.16])).pvalue > 1e-4


def test_neighbouring_edges_are_independent() -> None:
    kept = keeps(EDGES, 0.4, 3)
    observed = [int((kept[1:] == a).astype(int) @ (kept[:-1] == b)) for a in (True, False) for b in (True, False)]
    assert chisquare(observed, (EDGES - 1) * np.array([0.36, 0.24, 0.24, 0.16])).pvalue > 1e-4


def test_an_edge_is_kept_under_its_share_of_keys() -> None:
    kept = np.array([keeps(50, 0.4, key) for key in range(4000)])
    low, high = binom.interval(1 - 1e-6, len(kept), 0.6)
    assert ((low <= kept.sum(axis=0)) & (kept.sum(axis=0) <= high)).all()


def test_rate_zero_keeps_everything() -> None:
    assert keeps(1000, 0.0, 5).all()
