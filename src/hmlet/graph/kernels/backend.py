"""Where a kernel of a model's step runs: in Triton, or on tensors without memory."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from hmlet.graph.kernels import dry


def triton_runs(x: Tensor) -> bool:
    """Whether Triton can work on a tensor, or would on the one that it stands for."""
    return (x.is_cuda and find_spec("triton") is not None) or dry.on_cuda()


def kernels(name: str) -> Any:
    """A module of Triton kernels, or the one that stands for it."""
    return dry if dry.on_cuda() else import_module(f"hmlet.graph.kernels.{name}")
