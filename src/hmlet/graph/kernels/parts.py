"""The parts of a training step, by name: what a profile divides a step's time into."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

from torch._C._profiler import _RecordFunctionFast

Part = Literal[
    "sampling",
    "edge dropout",
    "product",
    "matrix products",
    "BatchNorm, dropout, activation",
    "mixture",
    "readout and loss",
    "optimizer",
    "sums of gradients",
]
PREFIX = "hmlet::"


def part(name: Part) -> AbstractContextManager[None]:
    """A scope whose work a profile counts for this part, unless an inner scope claims it.

    Without a profiler a scope costs a quarter of a microsecond. PyTorch's public record_function costs 25 times as
    much, and the profiler does not link the Triton kernels launched in it to it; this is the class that PyTorch's own
    compiler uses for its Triton kernels.
    """
    scope: AbstractContextManager[None] = _RecordFunctionFast(PREFIX + name)
    return scope
