"""What the gates chose, counted: shares per layer, the sizes of the classes, and how they stand to a node's degree.

Nodes are numbered users first. Shapes: N nodes, L gated layers. Every function returns plain numbers, lists and dicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmlet.runs.choices import CLASSES, Choices, Codes

BOX = ("lower_whisker", "lower_quartile", "median", "upper_quartile", "upper_whisker")
PROBABILITY_BINS = 20
DEGREE_BINS = 24

Values = npt.NDArray[Any]


def gate_share(choices: Choices) -> dict[str, float]:
    """Per gated layer, the share of nodes that choose the non-linear branch."""
    return {
        str(layer): _share(choices.nonlinear_NL[:, at].sum(), len(choices.nonlinear_NL))
        for at, layer in enumerate(choices.layers)
    }


def gate_probability(choices: Choices) -> dict[str, dict[str, Any]]:
    """Per gated layer, mean and quartiles of the non-linear probability, and its histogram over [0, 1]."""
    found = {}
    for at, layer in enumerate(choices.layers):
        values = choices.probability_NL[:, at].astype(np.float64)
        counts, _ = np.histogram(values, bins=PROBABILITY_BINS, range=(0.0, 1.0))
        quartiles = np.quantile(values, (0.25, 0.5, 0.75)).tolist() if len(values) else [None] * 3
        mean = float(values.mean()) if len(values) else None
        found[str(layer)] = {"mean": mean, "quartiles": quartiles, "histogram": counts.tolist()}
    return found


def class_size(classes: Codes) -> dict[str, dict[str, float]]:
    """Per class, how many nodes it has, and which share of all."""
    counts = np.bincount(classes, minlength=len(CLASSES))
    return {
        name: {"nodes": int(count), "share": _share(count, len(classes))}
        for name, count in zip(CLASSES, counts, strict=True)
    }


def deciles(degree: Values) -> Codes:
    """Each node's degree decile, 0 to 9, equal degrees always together.

    A degree's place is the middle of the places that its nodes take in the order of degrees, (below + equal / 2) / N.
    The rule treats small and large degrees alike; where one degree is very frequent, a decile can be empty.
    """
    _, inverse, equal = np.unique(degree, return_inverse=True, return_counts=True)
    twice = 2 * (np.cumsum(equal) - equal) + equal  # whole numbers, so that no rounding moves a border
    return np.asarray((10 * twice // (2 * max(len(degree), 1)))[inverse], dtype=np.int8)


def degree_deciles(classes: Codes, degree: Values) -> list[dict[str, Any]]:
    """Per decile: its smallest and largest degree, its nodes, and each class's share of them (none in an empty one)."""
    decile, rows = deciles(degree), []
    for at in range(10):
        chosen = decile == at
        count = int(chosen.sum())
        sizes = np.bincount(classes[chosen], minlength=len(CLASSES))
        rows.append(
            {
                "decile": at + 1,
                "nodes": count,
                "degree": [int(degree[chosen].min()), int(degree[chosen].max())] if count else None,
                **{name: _share(size, count) if count else None for name, size in zip(CLASSES, sizes, strict=True)},
            }
        )
    return rows


def box(values: Values) -> dict[str, Any]:
    """Tukey's box: quartiles (linear between values), whiskers at the last value within 1.5 times their distance.

    Values that are not numbers are left out; without any there is no box, only `nodes` = 0.
    """
    values = np.sort(np.asarray(values, dtype=np.float64)[np.isfinite(values)])
    if not len(values):
        return {"nodes": 0, "mean": None, "outliers": 0, **dict.fromkeys(BOX)}
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    reach = 1.5 * (high - low)
    inside = values[(values >= low - reach) & (values <= high + reach)]
    # Interpolated quartiles can lie beyond every value that is inside; a whisker does not point into its box.
    five = (min(inside[0], low), low, median, high, max(inside[-1], high))
    return {
        "nodes": len(values),
        "mean": float(values.mean()),
        "outliers": len(values) - len(inside),
        **{name: float(value) for name, value in zip(BOX, five, strict=True)},
    }


def boxes(classes: Codes, values: Values) -> dict[str, dict[str, Any]]:
    """The box of a value in each class."""
    return {name: box(values[classes == at]) for at, name in enumerate(CLASSES)}


def degree_density(choices: Choices, degree: Values) -> dict[str, Any]:
    """Per gated layer, how many nodes have a degree (logarithmic bins) and a non-linear probability (equal bins).

    `counts[layer][d][p]`; nodes without an edge have no place on a logarithmic axis and are left out.
    """
    some = degree > 0
    top = max(int(degree.max(initial=1)), 2)
    edges = np.unique(np.floor(np.geomspace(1, top + 1, DEGREE_BINS + 1)))
    counts = {}
    for at, layer in enumerate(choices.layers):
        grid, _, _ = np.histogram2d(
            degree[some], choices.probability_NL[some, at], bins=(edges, np.linspace(0, 1, PROBABILITY_BINS + 1))
        )
        counts[str(layer)] = grid.astype(int).tolist()
    return {"degree_edges": edges.tolist(), "probability_bins": PROBABILITY_BINS, "counts": counts}


def _share(part: Any, whole: int) -> float:
    return float(part) / whole if whole else 0.0
