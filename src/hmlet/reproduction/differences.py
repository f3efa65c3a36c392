"""Arms of a table against each other: paired by seed, and corrected for how many arms the table compares.

Runs with the same seed share e⁰ and every random draw, so a seed is a block: what counts is the difference within it.
The unpaired test stays beside it for comparison and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hmlet.ranking.statistics import SIGNIFICANT, holm, spread, t_test, welch_test

BySeed = Mapping[int, float]
HIGHER, LOWER, UNCLEAR, FEW, NOT_RUN = "higher", "lower", "no clear difference", "too few seeds", "not run"


@dataclass(frozen=True)
class Difference:
    """An arm minus another over the seeds that both have; a value that cannot be computed is None."""

    percent: float | None  # of the other's mean
    paired_p: float | None  # t-test of the differences by seed
    unpaired_p: float | None  # Welch's t-test, over all seeds of each
    holm_p: float | None = None  # `paired_p`, corrected for the number of comparisons

    @property
    def verdict(self) -> str:
        """higher, lower or no clear difference, by Holm's p; too few seeds to pair, or not run."""
        return self._told(self.holm_p)

    @property
    def unpaired_verdict(self) -> str:
        """What the unpaired, uncorrected test would say."""
        return self._told(self.unpaired_p)

    def _told(self, p: float | None) -> str:
        if self.percent is None:
            return NOT_RUN
        if p is None:
            return FEW
        if p >= SIGNIFICANT:
            return UNCLEAR
        return HIGHER if self.percent > 0 else LOWER


def differences(pairs: Sequence[tuple[BySeed, BySeed]]) -> list[Difference]:
    """The first arm minus the second for each pair, as one family: a pair that comes twice counts once."""
    found = [_difference(first, second) for first, second in pairs]
    keys = [(tuple(sorted(first.items())), tuple(sorted(second.items()))) for first, second in pairs]
    raw = {key: each.paired_p for key, each in zip(keys, found, strict=True) if each.paired_p is not None}
    corrected = dict(zip(raw, holm(list(raw.values())), strict=True))
    return [replace(each, holm_p=corrected.get(key)) for key, each in zip(keys, found, strict=True)]


def _difference(first: BySeed, second: BySeed) -> Difference:
    shared = sorted(set(first) & set(second))
    if not shared:
        return Difference(None, None, None)
    a, b = (np.array([arm[seed] for seed in shared]) for arm in (first, second))
    percent = 100.0 * float(a.mean() / b.mean() - 1.0)
    if len(shared) < 2:
        return Difference(percent, None, None)
    unpaired = welch_test(spread(list(first.values())), spread(list(second.values())))
    return Difference(percent, t_test(a, b), unpaired)
