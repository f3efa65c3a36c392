"""The sampler: exact on every small case, uniform, and clear about users who cannot be drawn."""

from __future__ import annotations

from collections import Counter

import planted
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hmlet.errors import DataError
from hmlet.losses.sampling import TripletSampler

N_ITEMS = 6
ROWS = st.lists(st.sets(st.integers(0, N_ITEMS - 1)), min_size=1, max_size=6)


def draw(rows: list[set[int]], n_items: int, size: int, seed: int = 0) -> list[tuple[int, int, int]]:
    pairs = [(user, item) for user, items in enumerate(rows) for item in sorted(items)]
    sampler = TripletSampler(planted.csr(pairs, len(rows)), n_items)
    triplets = sampler.sample(size, torch.Generator().manual_seed(seed))
    assert all(column.shape == (size,) and column.dtype == torch.int64 for column in triplets)
    return list(zip(*(column.tolist() for column in triplets), strict=True))


@settings(max_examples=60)
@given(ROWS, st.integers(0, 2**32))
def test_triplets_are_exact_and_reach_every_choice(rows: list[set[int]], seed: int) -> None:
    eligible = {user for user, items in enumerate(rows) if 0 < len(items) < N_ITEMS}
    if not eligible:
        with pytest.raises(DataError, match="training needs users who interacted with some, but not all"):
            draw(rows, N_ITEMS, 1)
        return
    triplets = draw(rows, N_ITEMS, 2000, seed)
    for user, positive, negative in triplets:
        assert positive in rows[user]
        assert 0 <= negative < N_ITEMS
        assert negative not in rows[user]
    # The rarest (user, item) pair has 1/30 of 2,000 draws: missing one has a probability below 1e-28.
    assert {(user, positive) for user, positive, _ in triplets} == {(u, i) for u in eligible for i in rows[u]}
    assert {(user, negative) for user, _, negative in triplets} == {
        (user, item) for user in eligible for item in range(N_ITEMS) if item not in rows[user]
    }


@pytest.mark.parametrize("missing", [0, 3, 999])
def test_a_user_with_all_items_but_one_always_gets_that_one(missing: int) -> None:
    triplets = draw([set(range(1000)) - {missing}, {5}], 1000, 500)
    assert {negative for user, _, negative in triplets if user == 0} == {missing}


def test_users_with_everything_or_nothing_are_never_drawn() -> None:
    triplets = draw([set(), set(range(4)), {1, 2}, set()], 4, 500)
    assert {user for user, _, _ in triplets} == {2}
    assert {negative for _, _, negative in triplets} == {0, 3}


def test_users_positives_and_negatives_are_uniform() -> None:
    """Users, not interactions: one with a single item is drawn as often as one with fifteen."""
    rows = [{3}, set(range(15)), {0, 19}, set(range(1, 20)), set()]
    triplets = draw(rows, 20, 40_000, seed=1)
    users = Counter(user for user, _, _ in triplets)
    assert chisquare([users[user] for user in range(4)]).pvalue > 1e-3
    for user in range(4):
        positives = Counter(positive for each, positive, _ in triplets if each == user)
        negatives = Counter(negative for each, _, negative in triplets if each == user)
        assert len(positives) == len(rows[user])
        assert len(negatives) == 20 - len(rows[user])
        assert chisquare(list(positives.values())).pvalue > 1e-3 or len(positives) == 1
        assert chisquare(list(negatives.values())).pvalue > 1e-3 or len(negatives) == 1


def test_positive_and_negative_are_independent() -> None:
    cells = Counter((positive, negative) for _, positive, negative in draw([{0, 2, 4}], 6, 9000, seed=2))
    assert len(cells) == 9
    assert chisquare(list(cells.values())).pvalue > 1e-3


def test_same_generator_state_same_triplets() -> None:
    rows = [{0, 1}, {2}, {0, 3}]
    assert draw(rows, 5, 100, seed=3) == draw(rows, 5, 100, seed=3)
    assert draw(rows, 5, 100, seed=3) != draw(rows, 5, 100, seed=4)
