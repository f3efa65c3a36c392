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
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from hmlet.analysis.gates import Values
from hmlet.runs.choices import CLASSES, Codes

HOLDS, FAILS, WEAK = "holds", "does not hold", "too weak to say"
SMALL_CLASS, LEVEL, SMALL_EFFECT = 30, 0.001, 0.1
SMALL_STEP = 0.147  # below it, Cliff's δ is customarily called negligible


def explain(count: npt.NDArray[np.int64], classes: Codes, values: Values) -> dict[str, Any]:
    """The verdict on one centrality and the numbers behind it; what cannot be computed is None."""
    finite = np.isfinite(values)
    count, classes, values = count[finite], classes[finite], np.asarray(values[finite], dtype=np.float64)
    groups = {name: values[classes == at] for at, name in enumerate(CLASSES)}
    rho, rho_p = spearman(count, values)
    h, h_p, epsilon_squared = kruskal_wallis([group for group in groups.values() if len(group)])
    steps = {
        f"{a}_over_{b}": cliffs_delta(groups[a], groups[b]) for a, b in (("fnl", "pnl"), ("pnl", "fl"), ("fnl", "fl"))
    }
    numbers = {
        "spearman": {"rho": rho, "p": rho_p},
        "kruskal_wallis": {"h": h, "p": h_p, "epsilon_squared": epsilon_squared},
        "cliffs_delta": steps,
    }
    return {"verdict": _verdict(numbers, {name: len(group) for name, group in groups.items()}), **numbers}


def judged(analysis: dict[str, Any]) -> dict[str, Any]:
    """A run's analysis with verdicts by the rule above from its own numbers: it may have been written under another."""

    def side(part: dict[str, Any]) -> dict[str, Any]:
        sizes = {name: each["nodes"] for name, each in part["class_size"].items()}
        found = {name: {**one, "verdict": _verdict(one, sizes)} for name, one in part["verdict"].items()}
        return {**part, "verdict": found}

    return {**side(analysis), **{name: side(analysis[name]) for name in ("users", "items")}}


def _verdict(numbers: dict[str, Any], sizes: Mapping[str, int]) -> str:
    rho, p = numbers["spearman"]["rho"], numbers["kruskal_wallis"]["p"]
    large = [name for name in CLASSES if sizes[name] >= SMALL_CLASS]
    if len(large) < 2 or rho is None or p is None or p >= LEVEL or abs(rho) < SMALL_EFFECT:
        return WEAK
    steps = [numbers["cliffs_delta"][f"{high}_over_{low}"] for high, low in pairwise(large)]
    return HOLDS if rho > 0 and all(step >= SMALL_STEP for step in steps) else FAILS


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
