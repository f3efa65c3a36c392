"""Arms compared over seeds: against a two-way analysis of variance, and how a family is corrected."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hmlet.ranking.statistics import SIGNIFICANT
from hmlet.reproduction.differences import Difference, differences


def block_p(first: list[float], second: list[float]) -> float:
    """p of the arm's effect in the additive model value = arm + seed + noise, by least squares."""
    seeds = len(first)
    values = np.array([*first, *second])
    seed_columns = np.tile(np.eye(seeds), (2, 1))
    arm_column = np.repeat([0.0, 1.0], seeds)[:, None]

    def residual(design: np.ndarray) -> float:
        fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
        return float(((values - fitted) ** 2).sum())

    with_arm, without = residual(np.hstack([seed_columns, arm_column])), residual(seed_columns)
    freedom = seeds - 1
    return float(stats.f.sf((without - with_arm) / (with_arm / freedom), 1, freedom))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_paired_test_is_the_blocked_analysis_of_variance(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    level = rng.normal(0.12, 0.01, seeds)
    first, second = (list(level + rng.normal(0, 0.001, seeds) + shift) for shift in (0.002, 0.0))
    (found,) = differences([(dict(enumerate(first)), dict(enumerate(second)))])
    assert found.paired_p == pytest.approx(block_p(first, second), rel=1e-6)
    assert found.holm_p == found.paired_p  # a family of one
    assert found.unpaired_p == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)
    assert found.percent == pytest.approx(100 * (np.mean(first) / np.mean(second) - 1))


def test_only_shared_seeds_are_paired() -> None:
    (found,) = differences([({1: 0.10, 2: 0.12, 5: 0.9}, {2: 0.11, 1: 0.08, 3: 0.7})])
    assert found.paired_p == pytest.approx(stats.ttest_rel([0.10, 0.12], [0.08, 0.11]).pvalue)
    assert found.percent == pytest.approx(100 * (0.22 / 0.19 - 1))


def test_a_family_counts_a_repeated_pair_once_and_a_lone_seed_not_at_all() -> None:
    base = {1: 0.100, 2: 0.110, 3: 0.120}
    near, far = {1: 0.102, 2: 0.110, 3: 0.121}, {1: 0.131, 2: 0.140, 3: 0.150}
    one, twice, other, lone, missing = differences(
        [(near, base), (near, base), (far, base), ({1: 0.2}, base), ({}, base)]
    )
    assert one == twice
    assert (one.holm_p, other.holm_p) == (pytest.approx(one.paired_p), pytest.approx(2 * other.paired_p))
    assert (one.verdict, other.verdict, lone.verdict) == ("no clear difference", "higher", "too few seeds")
    assert lone.percent == pytest.approx(100.0)
    assert missing.verdict == missing.unpaired_verdict == "not run"
    (lower,) = differences([(base, far)])
    assert lower.verdict == "lower"


@pytest.mark.parametrize(
    ("percent", "p", "verdict"),
    [
        (0.5, 0.049, "higher"),
        (-0.5, 0.049, "lower"),
        (0.5, SIGNIFICANT, "no clear difference"),
        (0.5, None, "too few seeds"),
    ],
)
def test_a_verdict_needs_a_p_below_the_limit(percent: float, p: float | None, verdict: str) -> None:
    assert Difference(percent, None, None, holm_p=p).verdict == verdict
    assert Difference(percent, None, unpaired_p=p).unpaired_verdict == verdict
