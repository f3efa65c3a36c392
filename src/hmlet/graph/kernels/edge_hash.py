"""Which edges a step keeps: a counter-based generator keyed on the undirected edge's number.

Both directions of an edge, forward and backward, and every device see the same fate, and no mask is stored.
The mixing constants are those of a 32-bit integer hash with low bias (Wellons, hash-prospector).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive keys
FIRST = 0x21F0AAAD
SECOND = 0xD35A2D97


def mix(value: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A 32-bit hash of each value, in place."""
    value ^= value >> np.uint32(16)
    value *= np.uint32(FIRST)
    value ^= value >> np.uint32(15)
    value *= np.uint32(SECOND)
    value ^= value >> np.uint32(15)
    return value


def threshold(rate: float) -> int:
    """The smallest hash that is kept: 32 bits, however close the rate is to 1."""
    return min(round(rate * 2**32), 2**32 - 1)


def keeps(n_edges: int, rate: float, key: int) -> npt.NDArray[np.bool_]:
    """Whether each edge 0 … n_edges - 1 is kept under a key: true with probability 1 - rate."""
    salt = mix(np.array([(key * GOLDEN + (key >> 32)) & 0xFFFFFFFF], dtype=np.uint32))
    value = np.arange(n_edges, dtype=np.uint32)
    value ^= salt
    kept: npt.NDArray[np.bool_] = mix(value) >= np.uint32(threshold(rate))
    return kept
