"""What the parts of a training step or of a solution cannot avoid: each model, loss and the loop state their own."""

from __future__ import annotations

from dataclasses import asdict, dataclass

FLOAT, INDEX = 4, 4  # bytes of a parameter, of a neighbour and of an edge's number
INVERSE = "inverse"  # the part whose operations are those of an inverse, which a device does at a rate of its own


@dataclass(frozen=True)
class Rates:
    """What a device showed: bytes and operations a second."""

    copied: float  # read and written by a plain copy, both counted
    gathered: float  # rows summed from a table in the cache
    multiplied: float  # floating-point operations of a large matrix product, in the type of the largest ones

    def as_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Part:
    """The bytes and operations of one part of a step."""

    name: str
    moved: float = 0.0  # bytes through memory
    gathered: float = 0.0  # bytes of gathered rows, through the cache
    operations: float = 0.0

    def seconds(self, rates: Rates) -> float:
        """The least time of the part: all three overlap at the best, so it is that of the slowest."""
        return max(self._times(rates).values())

    def bound(self, rates: Rates) -> str:
        """What the part waits for: "memory", "gather" or "arithmetic"."""
        times = self._times(rates)
        return max(times, key=lambda name: times[name])

    def _times(self, rates: Rates) -> dict[str, float]:
        return {
            "memory": self.moved / rates.copied,
            "gather": self.gathered / rates.gathered,
            "arithmetic": self.operations / rates.multiplied,
        }
