"""Verdicts on planted answers, and the statistics behind them against naive counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from hmlet.analysis.verdict import (
    FAILS,
    HOLDS,
    WEAK,
    Judgement,
    KruskalWallis,
    Spearman,
    cliffs_delta,
    explain,
    kruskal_wallis,
    spearman,
)

RNG = np.random.default_rng(0)


def planted(shift: float, n: int = 400, classes: tuple[int, ...] = (0, 1, 2)) -> tuple[np.ndarray, ...]:
    """Counts, classes and values: each class's values lie `shift` above those of the class after it."""
    code = RNG.choice(classes, n).astype(np.int8)
    return 2 - code.astype(np.int64), code, RNG.normal(size=n) + shift * (2 - code)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (planted(1.0), HOLDS),
        (planted(-1.0), FAILS),
        (planted(0.0), WEAK),
        (planted(1.0, classes=(0, 1)), HOLDS),
        (planted(1.0, classes=(2,)), WEAK),
        (planted(1.0, n=12), WEAK),
    ],
    ids=["as claimed", "the other way", "no difference", "no FL", "one class", "too few"],
)
def test_a_planted_answer_is_found(given: tuple[np.ndarray, ...], verdict: str) -> None:
    assert explain(*given).verdict == verdict


def test_a_step_the_wrong_way_does_not_hold() -> None:
    """FNL is far above FL, but PNL is below both: correlation alone would not see it."""
    code = np.repeat(np.array([0, 1, 2], dtype=np.int8), [400, 100, 300])
    values = RNG.normal(size=800) + np.array([3.0, -1.0, 0.5])[code]
    got = explain(2 - code.astype(np.int64), code, values)
    assert got.spearman.rho > 0.1
    assert got.cliffs_delta["pnl_over_fl"] < 0
    assert got.verdict == FAILS


@pytest.mark.parametrize(("above", "verdict"), [(58, FAILS), (59, HOLDS)])
def test_a_step_needs_a_small_effect_and_not_its_sign_alone(above: int, verdict: str) -> None:
    """PNL is FL but for some values above all of it, so δ is their share."""
    values = np.concatenate([np.full(400, 5.0), np.r_[np.full(400 - above, 1.0), np.full(above, 2.0)], np.ones(400)])
    code = np.repeat(np.array([0, 1, 2], dtype=np.int8), 400)
    got = explain(2 - code.astype(np.int64), code, values)
    assert got.cliffs_delta == {"fnl_over_pnl": 1.0, "pnl_over_fl": above / 400, "fnl_over_fl": 1.0}
    assert got.verdict == verdict


def test_an_older_analysis_is_judged_by_todays_rule() -> None:
    """Its numbers stay; a class that is too small is passed over, as when the verdict was first made."""
    steps = {"fnl_over_pnl": 0.6, "pnl_over_fl": 0.06, "fnl_over_fl": 0.5}
    one = Judgement(HOLDS, Spearman(0.4, 1e-9), KruskalWallis(40.0, 1e-9, 0.3), steps)
    found = [one.judged({"fnl": 50, "pnl": pnl, "fl": 50}) for pnl in (60, 29, 30)]
    assert [each.verdict for each in found] == [FAILS, HOLDS, FAILS]
    assert [replace(each, verdict=HOLDS) for each in found] == [one] * 3


def test_a_class_of_unknown_centrality_is_too_weak_to_say() -> None:
    steps = {"fnl_over_pnl": None, "pnl_over_fl": None, "fnl_over_fl": 0.5}
    one = Judgement(HOLDS, Spearman(0.4, 1e-9), KruskalWallis(40.0, 1e-9, 0.3), steps)
    assert one.judged({"fnl": 50, "pnl": 50, "fl": 50}).verdict == WEAK


def test_values_that_are_not_numbers_are_left_out() -> None:
    count, code, values = planted(1.0)
    holes = values.copy()
    holes[::7] = np.nan
    kept = np.isfinite(holes)
    assert explain(count, code, holes) == explain(count[kept], code[kept], values[kept])


def test_cliffs_delta_equals_a_naive_count() -> None:
    high, low = RNG.integers(0, 6, 40), RNG.integers(0, 5, 30)
    expected = np.mean([np.sign(a - b) for a in high for b in low])
    assert cliffs_delta(high, low) == pytest.approx(expected)
    assert cliffs_delta(high, low[:0]) is None
    assert cliffs_delta(np.array([2, 3]), np.array([0, 1])) == 1.0


def test_spearman_is_the_correlation_of_middle_ranks() -> None:
    x, y = RNG.integers(0, 3, 50), RNG.integers(0, 9, 50)

    def rank(values: np.ndarray) -> list[float]:
        return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]

    rho, p = spearman(x, y)
    assert rho == pytest.approx(np.corrcoef(rank(x), rank(y))[0, 1])
    assert p is not None
    assert 0 <= p <= 1
    assert spearman(np.ones(9), np.arange(9)) == (None, None)


def test_kruskal_wallis_by_its_formula() -> None:
    groups = [RNG.normal(size=n) + shift for n, shift in ((12, 0.0), (15, 1.0), (9, 0.5))]
    rank = stats.rankdata(np.concatenate(groups))
    n, start, total = len(rank), 0, 0.0
    for group in groups:
        total += rank[start : start + len(group)].sum() ** 2 / len(group)
        start += len(group)
    h, p, effect = kruskal_wallis(groups)
    assert h == pytest.approx(12 / (n * (n + 1)) * total - 3 * (n + 1))
    assert p == pytest.approx(stats.chi2.sf(h, 2))
    assert effect == pytest.approx(h / (n - 1))
    assert kruskal_wallis([np.ones(5), np.ones(5)]) == (None, None, None)
