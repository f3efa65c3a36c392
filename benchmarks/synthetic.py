"""Power-law interactions of any size, the same for the same arguments: what benchmarks train on beyond real data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hmlet.data import Dataset
from hmlet.data.dataset import PARTS
from hmlet.data.interactions import Interactions, Vocabulary

HELD_OUT = 0.05  # share of the interactions that is the validation part


def power_law(users: int, items: int, interactions: int, seed: int = 0) -> Dataset:
    """A data set of about as many distinct pairs, users and items drawn from Zipf laws (exponents 0.6 and 0.9)."""
    rng = np.random.default_rng(seed)
    drawn = int(1.1 * interactions)
    key = np.unique(_zipf(rng, users, 0.6, drawn).astype(np.int64) * items + _zipf(rng, items, 0.9, drawn))
    if len(key) > interactions:
        key = np.sort(rng.choice(key, interactions, replace=False, shuffle=False))
    part = np.where(rng.random(len(key)) < HELD_OUT, PARTS.index("valid"), PARTS.index("train")).astype(np.uint8)
    found = Interactions(
        (key // items).astype(np.int32),
        (key % items).astype(np.int32),
        Vocabulary("user", pa.array(np.arange(users))),
        Vocabulary("item", pa.array(np.arange(items))),
    )
    return Dataset("power-law", found, part)


def _zipf(rng: np.random.Generator, count: int, exponent: float, draws: int) -> np.ndarray:
    """Draws of 0 … count - 1 with probability ∝ rank^-exponent, ranks in random order: by inverting the continuous
    law, so that no table of probabilities is searched."""
    power = 1.0 - exponent
    rank = ((1.0 + rng.random(draws) * (float(count + 1) ** power - 1.0)) ** (1.0 / power)).astype(np.int64) - 1
    return rng.permutation(count).astype(np.int32)[rank.clip(0, count - 1)]
