"""Does centrality explain the class? The paper's claim (FNL high, PNL moderate, FL low), tested from the numbers.

A verdict rests on three things. Spearman's ρ between a node's centrality and how many gated layers it passes by the
non-linear branch says how strong the tendency is. Kruskal and Wallis' test over the classes says whether it could be
chance. Cliff's δ of neighbouring classes (FNL over PNL, PNL over FL) says whether every step goes the claimed way.

  too weak to say   fewer than two classes have 30 nodes, or p ≥ 0.001, or |ρ| < 0.1 (less than a small effect)
  holds             ρ ≥ 0.1, and δ ≥ 0.147 (a small effect) between all neighbouring classes of at least 30 nodes
  does not hold     otherwise
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import stats

from hmlet.analysis.gates import Values
from hmlet.runs.choices import CLASSES, Codes

HOLDS, FAILS, WEAK = "holds", "does not hold", "too weak to say"
SMALL_CLASS, SIGNIFICANCE_LEVEL, SMALL_EFFECT = 30, 0.001, 0.1
SMALL_STEP = 0.147  # below it, Cliff's δ is customarily called negligible


@dataclass(frozen=True)
class Spearman:
    """The rank correlation between a centrality and the number of non-linear choices."""

    rho: float | None
    p: float | None


@dataclass(frozen=True)
class KruskalWallis:
    """The test over the classes, with its effect size."""

    h: float | None
    p: float | None
    epsilon_squared: float | None


@dataclass(frozen=True)
class Judgement:
    """The verdict on one centrality and the numbers behind it; a number that cannot be computed is None."""

    verdict: str
    spearman: Spearman
    kruskal_wallis: KruskalWallis
    cliffs_delta: dict[str, float | None]  # fnl_over_pnl, pnl_over_fl, fnl_over_fl

    def judged(self, sizes: Mapping[str, int]) -> Judgement:
        """The same numbers with the verdict of the rule above; `sizes` are the classes' nodes."""
        return replace(self, verdict=_verdict(self.spearman, self.kruskal_wallis, self.cliffs_delta, sizes))


def explain(count: npt.NDArray[np.int64], classes: Codes, values: Values) -> Judgement:
    """Whether one centrality explains the classes."""
    finite = np.isfinite(values)
    count, classes, values = count[finite], classes[finite], np.asarray(values[finite], dtype=np.float64)
    groups = {name: values[classes == at] for at, name in enumerate(CLASSES)}
    correlation = Spearman(*spearman(count, values))
    test = KruskalWallis(*kruskal_wallis([group for group in groups.values() if len(group)]))
    steps = {
        f"{a}_over_{b}": cliffs_delta(groups[a], groups[b]) for a, b in (("fnl", "pnl"), ("pnl", "fl"), ("fnl", "fl"))
    }
    sizes = {name: len(group) for name, group in groups.items()}
    return Judgement(_verdict(correlation, test, steps, sizes), correlation, test, steps)


def _verdict(
    correlation: Spearman, test: KruskalWallis, delta: Mapping[str, float | None], sizes: Mapping[str, int]
) -> str:
    rho, p = correlation.rho, test.p
    large = [name for name in CLASSES if sizes[name] >= SMALL_CLASS]
    if len(large) < 2 or rho is None or p is None or p >= SIGNIFICANCE_LEVEL or abs(rho) < SMALL_EFFECT:
        return WEAK
    steps = [delta[f"{high}_over_{low}"] for high, low in pairwise(large)]
    if None in steps:  # the value of no node of a class is known
        return WEAK
    return HOLDS if rho > 0 and all(step >= SMALL_STEP for step in steps if step is not None) else FAILS


def spearman(x: Values, y: Values) -> tuple[float | None, float | None]:
    """The rank correlation, ties at their middle rank, and its p-value; None where one side is constant."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None, None
    found = stats.spearmanr(x, y)
    return float(found.statistic), float(found.pvalue)


def kruskal_wallis(groups: list[Values]) -> tuple[float | None, float | None, float | None]:
    """H with its correction for ties, the p-value, and the effect size ε² = H / (n - 1), from 0 to 1."""
    together = np.concatenate(groups) if groups else np.zeros(0)
    if len(groups) < 2 or np.ptp(together) == 0:
        return None, None, None
    found = stats.kruskal(*groups)
    return float(found.statistic), float(found.pvalue), float(found.statistic) / (len(together) - 1)


def cliffs_delta(high: Values, low: Values) -> float | None:
    """P(a value of `high` is above one of `low`) - P(it is below): from -1 to 1; None where either is empty."""
    if not len(high) or not len(low):
        return None
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, "left").sum(dtype=np.int64)
    above = (len(low) - np.searchsorted(ordered, high, "right")).sum(dtype=np.int64)
    return float(below - above) / (len(high) * len(low))
