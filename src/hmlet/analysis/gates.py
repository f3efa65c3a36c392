"""What the gates chose, counted: shares per layer, the sizes of the classes, and how both depend on a node's degree.

Nodes are numbered users first. Shapes: N nodes, L gated layers. In every mapping a layer's key is its number as text
and a class's key is its name in CLASSES, as in analysis.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmlet.runs.choices import CLASSES, Choices, Codes

PROBABILITY_BINS = 20
DEGREE_BINS = 24

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class GateProbability:
    """One layer's non-linear probability over the nodes: mean, quartiles, and a histogram over [0, 1]."""

    mean: float | None
    quartiles: list[float | None]
    histogram: list[int]


@dataclass(frozen=True)
class ClassSize:
    """How many nodes a class has, and their share of all nodes."""

    nodes: int
    share: float


@dataclass(frozen=True)
class DegreeDecile:
    """A tenth of the nodes by degree, from 1 (fewest edges): its extreme degrees and each class's share of its nodes.

    An empty decile has neither degrees nor shares.
    """

    decile: int
    nodes: int
    degree: list[int] | None  # smallest and largest
    fnl: float | None
    pnl: float | None
    fl: float | None

    @property
    def shares(self) -> dict[str, float | None]:
        """Each class's share by its name."""
        return dict(zip(CLASSES, (self.fnl, self.pnl, self.fl), strict=True))


@dataclass(frozen=True)
class Box:
    """Tukey's box over some nodes' values; without any value, `nodes` is 0 and the rest None."""

    nodes: int
    mean: float | None = None
    outliers: int = 0
    lower_whisker: float | None = None
    lower_quartile: float | None = None
    median: float | None = None
    upper_quartile: float | None = None
    upper_whisker: float | None = None


@dataclass(frozen=True)
class DegreeDensity:
    """How many nodes fall into each bin of degree and of non-linear probability: `counts[layer][d][p]`."""

    degree_edges: list[float]
    probability_bins: int
    counts: dict[str, list[list[int]]]


def gate_share(choices: Choices) -> dict[str, float]:
    """Per gated layer, the share of nodes that choose the non-linear branch."""
    return {
        str(layer): _share(choices.nonlinear_NL[:, at].sum(), len(choices.nonlinear_NL))
        for at, layer in enumerate(choices.layers)
    }


def gate_probability(choices: Choices) -> dict[str, GateProbability]:
    """Per gated layer, how the non-linear probability is distributed."""
    found = {}
    for at, layer in enumerate(choices.layers):
        values = choices.probability_NL[:, at].astype(np.float64)
        counts, _ = np.histogram(values, bins=PROBABILITY_BINS, range=(0.0, 1.0))
        quartiles = np.quantile(values, (0.25, 0.5, 0.75)).tolist() if len(values) else [None] * 3
        mean = float(values.mean()) if len(values) else None
        found[str(layer)] = GateProbability(mean, quartiles, counts.tolist())
    return found


def class_size(classes: Codes) -> dict[str, ClassSize]:
    """The size of each class."""
    counts = np.bincount(classes, minlength=len(CLASSES))
    return {
        name: ClassSize(int(count), _share(count, len(classes))) for name, count in zip(CLASSES, counts, strict=True)
    }


def deciles(degree: Values) -> Codes:
    """Each node's degree decile, 0 to 9, equal degrees always together.

    A degree's place is the middle of the places that its nodes take in the order of degrees, (below + equal / 2) / N.
    The rule treats small and large degrees alike; where one degree is very frequent, a decile can be empty.
    """
    _, inverse, equal = np.unique(degree, return_inverse=True, return_counts=True)
    twice = 2 * (np.cumsum(equal) - equal) + equal  # whole numbers, so that no rounding moves a border
    return np.asarray((10 * twice // (2 * max(len(degree), 1)))[inverse], dtype=np.int8)


def degree_deciles(classes: Codes, degree: Values) -> list[DegreeDecile]:
    """The ten deciles, smallest degrees first."""
    decile, rows = deciles(degree), []
    for at in range(10):
        chosen = decile == at
        count = int(chosen.sum())
        sizes = np.bincount(classes[chosen], minlength=len(CLASSES))
        extremes = [int(degree[chosen].min()), int(degree[chosen].max())] if count else None
        fnl, pnl, fl = (_share(size, count) if count else None for size in sizes)
        rows.append(DegreeDecile(at + 1, count, extremes, fnl, pnl, fl))
    return rows


def box(values: Values) -> Box:
    """Tukey's box: quartiles (linear between values), whiskers at the last value within 1.5 times their distance.

    Values that are not numbers are left out.
    """
    values = np.sort(np.asarray(values, dtype=np.float64)[np.isfinite(values)])
    if not len(values):
        return Box(nodes=0)
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    reach = 1.5 * (high - low)
    inside = values[(values >= low - reach) & (values <= high + reach)]
    # Interpolated quartiles can lie beyond every value that is inside; a whisker does not point into its box.
    five = (min(inside[0], low), low, median, high, max(inside[-1], high))
    return Box(len(values), float(values.mean()), len(values) - len(inside), *map(float, five))


def boxes(classes: Codes, values: Values) -> dict[str, Box]:
    """The box of a value in each class."""
    return {name: box(values[classes == at]) for at, name in enumerate(CLASSES)}


def degree_density(choices: Choices, degree: Values) -> DegreeDensity:
    """Per gated layer, how many nodes have a degree (logarithmic bins) and a non-linear probability (equal bins).

    Nodes without an edge have no place on a logarithmic axis and are left out.
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
    return DegreeDensity(edges.tolist(), PROBABILITY_BINS, counts)


def _share(part: np.integer, whole: int) -> float:
    return float(part) / whole if whole else 0.0
