"""The sampler: exact on every small case, uniform, and clear about users who cannot be drawn."""

from __future__ import annotations

from collections import Counter

import planted
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hmlet.data import Csr
from hmlet.errors import DataError
from hmlet.losses.sampling import Draw, PairSampler, TripletSampler

N_ITEMS = 6
ROWS = st.lists(st.sets(st.integers(0, N_ITEMS - 1)), min_size=1, max_size=6)


def csr(rows: list[set[int]]) -> Csr:
    return planted.csr([(user, item) for user, items in enumerate(rows) for item in sorted(items)], len(rows))


def draw(rows: list[set[int]], n_items: int, size: int, seed: int = 0, by: Draw = "user") -> list[tuple[int, int, int]]:
    sampler = TripletSampler(csr(rows), n_items, draw=by)
    triplets = sampler.sample(size, torch.Generator().manual_seed(seed))
    assert all(column.shape == (size,) and column.dtype == torch.int64 for column in triplets)
    return list(zip(*(column.tolist() for column in triplets), strict=True))


@settings(max_examples=60)
@given(ROWS, st.integers(0, 2**32), st.sampled_from(["user", "root", "interaction"]))
def test_triplets_are_exact_and_reach_every_choice(rows: list[set[int]], seed: int, by: Draw) -> None:
    eligible = {user for user, items in enumerate(rows) if 0 < len(items) < N_ITEMS}
    if not eligible:
        with pytest.raises(DataError, match="training needs users who interacted with some, but not all"):
            draw(rows, N_ITEMS, 1, by=by)
        return
    triplets = draw(rows, N_ITEMS, 2000, seed, by)
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


def test_interactions_are_uniform_where_they_are_drawn() -> None:
    """A user with fifteen items is drawn fifteen times as often as one with a single item; whoever has all is not."""
    rows = [{3}, set(range(20)), set(range(15)), set(), {0, 19}]
    triplets = draw(rows, 20, 18_000, seed=1, by="interaction")
    pairs = Counter((user, positive) for user, positive, _ in triplets)
    assert set(pairs) == {(user, item) for user in (0, 2, 4) for item in rows[user]}
    assert chisquare(list(pairs.values())).pvalue > 1e-3
    negatives = Counter(negative for user, _, negative in triplets if user == 4)
    assert chisquare(list(negatives.values())).pvalue > 1e-3


def test_users_are_drawn_by_the_root_of_how_many_items_they_have() -> None:
    """A user with sixteen items is drawn four times as often as one with a single item, and with any of them."""
    rows = [{3}, set(range(20)), set(range(16)), set(), {0, 1, 18, 19}]
    triplets = draw(rows, 20, 14_000, seed=1, by="root")
    users = Counter(user for user, _, _ in triplets)
    assert set(users) == {0, 2, 4}
    assert chisquare([users[0], users[2], users[4]], [2000, 8000, 4000]).pvalue > 1e-3
    positives = Counter(positive for user, positive, _ in triplets if user == 2)
    assert set(positives) == rows[2]
    assert chisquare(list(positives.values())).pvalue > 1e-3


@pytest.mark.parametrize("by", ["user", "root", "interaction"])
def test_pairs_have_own_items_and_items_of_anyone_to_compare(by: Draw) -> None:
    rows = [{3}, set(range(20)), set(range(15)), set(), {0, 19}]
    sampler = PairSampler(csr(rows), 20, draw=by, positives=3, others=4000)
    pairs = sampler.sample(54_001, torch.Generator().manual_seed(2))
    assert pairs.positive.shape == (18_000, 3)
    users = Counter(pairs.user.tolist())
    power = {"user": 0.0, "root": 0.5, "interaction": 1.0}[by]
    expected = {0: 1.0, 2: 15**power, 4: 2**power}
    share = 18_000 / sum(expected.values())
    assert chisquare([users[user] for user in expected], [share * times for times in expected.values()]).pvalue > 1e-3
    for place in range(3):  # each of a user's three items is any of theirs, the first of an interaction too
        drawn = Counter(pairs.positive[pairs.user == 2, place].tolist())
        assert set(drawn) == rows[2]
        assert chisquare(list(drawn.values())).pvalue > 1e-3
    assert pairs.others is not None
    assert chisquare(list(Counter(pairs.others.tolist()).values())).pvalue > 1e-3
