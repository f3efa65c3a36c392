"""Would another seed give a node the same class? Agreement of runs that differ in nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hmlet.runs.choices import CLASSES, Codes


@dataclass(frozen=True)
class Stability:
    """How far two or more runs agree on the nodes' classes."""

    runs: int
    keep: float  # the share of nodes that all runs put into one class
    keep_by_chance: float  # the same of runs with these class sizes and independent choices
    agreement: float  # the share of nodes with one class in two runs, averaged over the pairs of runs
    kappa: float  # Cohen's, averaged over the pairs of runs: 0 is chance, 1 is full agreement
    stays: dict[str, float | None]  # the probability that a node of a class in one run has it in another
    seeds: list[int]


def stability(runs: Sequence[Codes], seeds: Sequence[int]) -> Stability:
    """The agreement of runs from their nodes' classes; `seeds` has the seed of each run."""
    table = np.stack(runs)
    shares = np.stack([np.bincount(run, minlength=len(CLASSES)) / len(run) for run in runs])
    agreement, kappa = [], []
    together, there = np.zeros(len(CLASSES)), np.zeros(len(CLASSES))
    for a, b in combinations(range(len(runs)), 2):
        same = table[a] == table[b]
        observed, expected = float(same.mean()), float(shares[a] @ shares[b])
        agreement.append(observed)
        kappa.append((observed - expected) / (1 - expected) if expected < 1 else 1.0)
        together += 2 * np.bincount(table[a][same], minlength=len(CLASSES))
        there += np.bincount(table[a], minlength=len(CLASSES)) + np.bincount(table[b], minlength=len(CLASSES))
    return Stability(
        runs=len(runs),
        keep=float((table == table[0]).all(axis=0).mean()),
        keep_by_chance=float(shares.prod(axis=0).sum()),
        agreement=float(np.mean(agreement)),
        kappa=float(np.mean(kappa)),
        stays={name: float(together[at] / there[at]) if there[at] else None for at, name in enumerate(CLASSES)},
        seeds=list(seeds),
    )
