"""Power-law interactions of any size, the same for the same arguments: what benchmarks train on beyond real data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from hmlet.data import Dataset
from hmlet.data.dataset import PARTS, Csr
from hmlet.data.interactions import Interactions, Vocabulary

DEGREE = 25  # of a user in power_law_edges, as on Gowalla
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


@dataclass(frozen=True)
class Synthetic:
    """What the steps ask of a data set."""

    train: Csr
    n_users: int
    n_items: int

    def csr(self, *parts: str) -> Csr:
        return self.train

    def count(self, part: str) -> int:
        return len(self.train.items)


def power_law_edges(n_edges: int, device: torch.device, seed: int = 0) -> Synthetic:
    """A bipartite graph of about so many edges, whose degrees follow power laws on both sides, drawn on the device."""
    generator = torch.Generator(device).manual_seed(seed)
    n_users = n_items = max(n_edges // DEGREE, 2)
    # Lomax with shape 2 has mean 1; an item of relative rank r is drawn in proportion to r^-1/2.
    wanted = torch.rand(n_users, generator=generator, device=device).rsqrt() - 1.0
    degree = (wanted / wanted.sum() * n_edges).clamp(1, max(n_items // 2, 1)).long()
    owner = torch.repeat_interleave(torch.arange(n_users, device=device), degree)
    item = (n_items * torch.rand(len(owner), generator=generator, device=device).square()).long().clamp(max=n_items - 1)
    key = torch.unique(owner * n_items + item)  # a pair that is drawn twice is one edge
    offsets = torch.searchsorted(key, torch.arange(n_users + 1, device=device) * n_items)
    return Synthetic(Csr(offsets.cpu().numpy(), (key % n_items).int().cpu().numpy()), n_users, n_items)
