"""Dropout and ReLU in one pass: nothing but the result is kept for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmlet.kernels.operator import draw_key


def dropout_relu(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """ReLU(x) with each entry zeroed with probability `rate` and the rest scaled up; plain ReLU without a generator."""
    if generator is None or rate == 0.0:
        return torch.relu(x)
    y: Tensor = _DropoutReLU.apply(x, rate, generator)  # type: ignore[no-untyped-call]
    return y


class _DropoutReLU(torch.autograd.Function):
    """y = ReLU(x) · kept / (1 - rate). Where y is positive x̄ = ȳ / (1 - rate), and 0 elsewhere: y is all one needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
        y = _on_cuda(x, rate, generator) if x.is_cuda else _plain(x, rate, generator)
        ctx.save_for_backward(y)
        ctx.rate = rate
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, grad * (1.0 / (1.0 - ctx.rate)), 0.0), None, None


def _plain(x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    kept = torch.rand(x.shape, generator=generator, device=x.device) >= rate
    return torch.relu(x).mul_(kept).mul_(1.0 / (1.0 - rate))


def _on_cuda(x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    try:
        from hmlet.kernels import cuda
    except ImportError:
        return _plain(x, rate, generator)
    return cuda.dropout_relu(x, rate, draw_key(generator, x.device))
