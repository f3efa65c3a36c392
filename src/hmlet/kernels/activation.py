"""What stands between the gate's products: dropout with ReLU, and the mixture of the two branches, a pass each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmlet.kernels.operator import draw_key, fused


def dropout_relu(
    x: Tensor, rate: float, generator: torch.Generator | None, first: int = 0, n_rows: int | None = None
) -> Tensor:
    """ReLU(x) with each entry zeroed with probability `rate` and the rest scaled up; plain ReLU without a generator.

    x may be the rows from `first` on of a matrix that has `n_rows`: its entries' fate is then as in the whole matrix.
    """
    if generator is None or rate == 0.0:
        return torch.relu(x)
    y: Tensor = _DropoutReLU.apply(x, rate, generator, first, n_rows or len(x))  # type: ignore[no-untyped-call]
    return y


class _DropoutReLU(torch.autograd.Function):
    """y = ReLU(x) · kept / (1 - rate). Where y is positive x̄ = ȳ / (1 - rate), and 0 elsewhere: y is all one needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, generator: torch.Generator, first: int, n_rows: int) -> Tensor:
        kernels = fused(x)
        if kernels is None:
            y = _plain(x, rate, generator, first, n_rows)
        else:
            y = kernels.dropout_relu(x, rate, draw_key(generator, x.device), first)
        ctx.save_for_backward(y)
        ctx.rate = rate
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (y,) = ctx.saved_tensors
        kernels = fused(y)
        if kernels is not None:
            return kernels.dropout_relu_backward(y, grad, ctx.rate), None, None, None, None
        return torch.ops.aten.threshold_backward(grad, y, 0.0).mul_(1.0 / (1.0 - ctx.rate)), None, None, None, None


def mix(choice_N2: Tensor, linear_ND: Tensor, nonlinear_ND: Tensor) -> Tensor:
    """g · [eᴸ, eᴺ] for each node: N × D in the embeddings' type."""
    if fused(linear_ND) is not None:
        mixed_ND: Tensor = _Mix.apply(  # type: ignore[no-untyped-call]
            choice_N2.contiguous(), linear_ND.contiguous(), nonlinear_ND.contiguous()
        )
        return mixed_ND
    choice_N2 = choice_N2.to(linear_ND.dtype)
    return choice_N2[:, :1] * linear_ND + choice_N2[:, 1:] * nonlinear_ND


class _Mix(torch.autograd.Function):
    """The gate's mixture on CUDA, with the three gradients in one pass."""

    @staticmethod
    def forward(ctx: Any, choice_N2: Tensor, linear_ND: Tensor, nonlinear_ND: Tensor) -> Tensor:
        ctx.save_for_backward(choice_N2, linear_ND, nonlinear_ND)
        mixed_ND: Tensor = fused(linear_ND).mix(choice_N2, linear_ND, nonlinear_ND)
        return mixed_ND

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor, Tensor] = fused(grad_ND).mix_backward(*ctx.saved_tensors, grad_ND)
        return gradients


def _plain(x: Tensor, rate: float, generator: torch.Generator, first: int, n_rows: int) -> Tensor:
    return torch.relu(x).mul_(_kept(x, rate, generator, first, n_rows)).mul_(1.0 / (1.0 - rate))


def _kept(x: Tensor, rate: float, generator: torch.Generator, first: int, n_rows: int) -> Tensor:
    """Which entries stay: 16 random bits each, four from every draw, because drawing is what costs."""
    count = n_rows * x[:1].numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64, device=x.device)
    bits = draws.random_(-(2**63), None, generator=generator).view(torch.int16)[:count].view(n_rows, *x.shape[1:])
    return bits[first : first + len(x)] >= round(rate * 2**16) - 2**15
