"""k-core and splits against naive implementations, and the rules of docs/decisions/0002."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmlet.data.splits import SplitRule, assign, k_core
from hmlet.errors import ConfigError, DataError

PAIRS = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 12)), min_size=1, max_size=60).map(sorted)
SHARES = st.sampled_from(["0.8,0.1,0.1", "0.5,0.25,0.25", "0.7,0.3,0", "0.6,0,0.4", "1,0,0", "0.29,0.01,0.70"])
SPLITS = st.one_of(SHARES.map("ratio:{}".format), SHARES.map("temporal:{}".format), st.just("leave-one-out"))


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    user, item = np.array(pairs, dtype=np.int32).T
    return user, item


def split(
    rule: str, pairs: list[tuple[int, int]], times: dict[tuple[int, int], int] | None = None, seed: int = 0
) -> dict[tuple[int, int], int]:
    """The part of each pair, as a dictionary."""
    timestamp = None if times is None else np.array([times[pair] for pair in pairs], dtype=np.int64)
    parts = assign(SplitRule.parse(rule), *arrays(pairs), timestamp, seed)
    return dict(zip(pairs, parts.tolist(), strict=True))


def naive_k_core(pairs: list[tuple[int, int]], k: int) -> set[tuple[int, int]]:
    kept = set(pairs)
    while True:
        users, items = Counter(user for user, _ in kept), Counter(item for _, item in kept)
        weak = {pair for pair in kept if users[pair[0]] < k or items[pair[1]] < k}
        if not weak:
            return kept
        kept -= {min(weak)}  # one pair at a time: the slowest way that is surely right


@given(PAIRS, st.integers(0, 5))
def test_k_core_equals_the_naive_one(pairs: list[tuple[int, int]], k: int) -> None:
    kept, _ = k_core(*arrays(pairs), k)
    assert [pairs[at] for at in kept] == sorted(naive_k_core(pairs, k))


def test_k_core_goes_on_until_it_is_stable() -> None:
    chain = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]  # each removal exposes the next
    kept, rounds = k_core(*arrays(chain), 2)
    assert len(kept) == 0
    assert rounds > 2


@given(PAIRS, SPLITS, st.integers(0, 2**63 - 1), st.data())
def test_parts_are_a_partition_that_no_row_order_changes(
    pairs: list[tuple[int, int]], rule: str, seed: int, data: st.DataObject
) -> None:
    times = (
        {pair: data.draw(st.integers(-3, 3)) for pair in pairs}
        if rule.startswith("temporal") or data.draw(st.booleans())
        else None
    )
    parts = split(rule, pairs, times, seed)
    assert set(parts) == set(pairs)
    assert set(parts.values()) <= {0, 1, 2}
    assert split(rule, data.draw(st.permutations(pairs)), times, seed) == parts


@given(PAIRS, SHARES, st.integers(0, 1000))
def test_ratio_sizes_follow_the_rounding_rule(pairs: list[tuple[int, int]], shares: str, seed: int) -> None:
    parts = split(f"ratio:{shares}", pairs, seed=seed)
    a, b, c = (Fraction(share) for share in shares.split(","))
    for user in {user for user, _ in pairs}:
        sizes = Counter(part for (owner, _), part in parts.items() if owner == user)
        n = sizes.total()
        train = max(1, int(a * n))
        assert sizes[0] == train
        exact = (n - train) * b / (b + c) if b + c else Fraction(0)
        assert abs(sizes[1] - exact) < 1


def test_ratio_halves_the_held_out_fairly() -> None:
    """With an odd number held out, as in the published splits, valid and test get the odd one equally often."""
    pairs = [(user, item) for user in range(4000) for item in range(15)]  # 12 train, 3 are held out
    parts = split("ratio:0.8,0.1,0.1", pairs)
    sizes = Counter(parts.values())
    assert sizes[0] == 48_000
    assert abs(sizes[1] - 6000) < 4 * 0.5 * 4000**0.5  # four standard deviations of a fair coin


def test_ratio_draws_every_item_equally_often() -> None:
    pairs = [(user, item) for user in range(3000) for item in range(10)]
    held_out = Counter(item for (_, item), part in split("ratio:0.8,0.1,0.1", pairs).items() if part == 2)
    assert all(abs(held_out[item] - 300) < 4 * (3000 * 0.1 * 0.9) ** 0.5 for item in range(10))


def test_a_split_is_the_same_on_every_platform() -> None:
    """Recorded once: a change here changes every prepared data set and must be a new format version."""
    pairs = [(user, item) for user in range(3) for item in range(10)]
    parts = split("ratio:0.6,0.2,0.2", pairs, seed=7)
    assert "".join(str(parts[pair]) for pair in pairs) == "020001100210002201000120120000"


def test_seeds_differ() -> None:
    pairs = [(user, item) for user in range(20) for item in range(20)]
    assert split("ratio:0.8,0.1,0.1", pairs, seed=1) != split("ratio:0.8,0.1,0.1", pairs, seed=2)


def test_temporal_cuts_by_time_then_user_then_item() -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 5), (2, 6), (3, 0), (3, 1), (3, 2), (3, 3)]
    times = dict.fromkeys(pairs, 50) | {(3, 0): 1, (0, 0): 99}
    parts = split("temporal:0.8,0.1,0.1", pairs, times)
    assert [pair for pair in pairs if parts[pair] == 2] == [(0, 0)]
    assert [pair for pair in pairs if parts[pair] == 1] == [(3, 3)]


def test_leave_one_out_by_time() -> None:
    pairs = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    times = {(0, 0): 9, (0, 1): 5, (0, 2): 9, (1, 0): 2, (1, 1): 1, (2, 0): 3}
    parts = split("leave-one-out", pairs, times)
    assert parts == {(0, 0): 1, (0, 1): 0, (0, 2): 2, (1, 0): 2, (1, 1): 0, (2, 0): 0}


@given(PAIRS, st.integers(0, 100))
def test_leave_one_out_sizes(pairs: list[tuple[int, int]], seed: int) -> None:
    parts = split("leave-one-out", pairs, seed=seed)
    for user, n in Counter(user for user, _ in pairs).items():
        sizes = Counter(part for (owner, _), part in parts.items() if owner == user)
        assert (sizes[1], sizes[2]) == (int(n >= 3), int(n >= 2))


def test_temporal_without_times_is_refused() -> None:
    with pytest.raises(DataError, match="needs timestamps"):
        split("temporal:0.8,0.1,0.1", [(0, 0)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ratio",
        "ratio:",
        "ratio:0.8",
        "ratio:nan,0,1",
        "ratio:1e-9,0,1",
        "ratio:-1,1,1",
        "leave-one-out:2",
        "files:3",
    ],
)
def test_other_splits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="split"):
        SplitRule.parse(text)
