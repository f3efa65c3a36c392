"""The gate's choice, φ and the mixture on CUDA, in Triton: each embedding is read and written as seldom as can be.

Storage is float32 or bfloat16, arithmetic is float32. Legend: N nodes, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmlet.graph.kernels.edge_hash import FIRST, GOLDEN, SECOND
from hmlet.graph.kernels.language import tl, triton
from hmlet.graph.kernels.launching import launch
from hmlet.graph.kernels.rows import touched
from hmlet.graph.kernels.triton_product import mixed, salt, width_of

# -- the choice -----------------------------------------------------------------------------------------------------

CHOICES = 1024  # nodes that a program chooses for


@triton.jit
def _noisy_choice_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, choice_ptr, soft_ptr, key_ptr, temperature_ptr, n_nodes, hard: tl.constexpr, block: tl.constexpr,
    golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0) * block + tl.arange(0, block)
    inside = node < n_nodes
    bits = mixed(node.to(tl.uint32) ^ salt(key_ptr, golden, first, second), first, second)
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * (2.0**-23)  # float32 has these exactly, and neither 0 nor 1
    # The difference of two Gumbel variables is a logistic one, and a choice of two needs no more.
    noise = tl.log(uniform) - tl.log(1.0 - uniform)
    linear = tl.load(logits_ptr + 2 * node, mask=inside, other=0.0)
    lead = tl.load(logits_ptr + 2 * node + 1, mask=inside, other=0.0) - linear + noise
    scaled = lead / tl.load(temperature_ptr)
    soft_linear, soft_nonlinear = 1.0 / (1.0 + tl.exp(scaled)), 1.0 / (1.0 + tl.exp(-scaled))
    tl.store(soft_ptr + 2 * node, soft_linear, mask=inside)
    tl.store(soft_ptr + 2 * node + 1, soft_nonlinear, mask=inside)
    if hard:
        tl.store(choice_ptr + 2 * node, tl.where(lead > 0, 0.0, 1.0), mask=inside)
        tl.store(choice_ptr + 2 * node + 1, tl.where(lead > 0, 1.0, 0.0), mask=inside)


@triton.jit
def _noisy_choice_backward_kernel(  # type: ignore[no-untyped-def]
    soft_ptr, grad_ptr, out_ptr, temperature_ptr, n_nodes, block: tl.constexpr
):  # fmt: skip
    node = tl.program_id(0) * block + tl.arange(0, block)
    inside = node < n_nodes
    gain = tl.load(grad_ptr + 2 * node + 1, mask=inside, other=0.0) - tl.load(
        grad_ptr + 2 * node, mask=inside, other=0.0
    )
    both = tl.load(soft_ptr + 2 * node, mask=inside, other=0.0) * tl.load(
        soft_ptr + 2 * node + 1, mask=inside, other=0.0
    )
    slope = gain * both / tl.load(temperature_ptr)
    tl.store(out_ptr + 2 * node, -slope, mask=inside)
    tl.store(out_ptr + 2 * node + 1, slope, mask=inside)


class NoisyChoice(torch.autograd.Function):
    """softmax((logits + Gumbel noise) / τ), the noise by the hash of a node's number; `hard` chooses one of the two.

    One kernel each way, where PyTorch's operations would be some twenty small ones.
    """

    @staticmethod
    def forward(ctx: Any, logits_N2: Tensor, temperature: Tensor, hard: bool, key: Tensor) -> Tensor:
        soft_N2 = torch.empty_like(logits_N2)
        choice_N2 = torch.empty_like(logits_N2) if hard else soft_N2
        launch(
            _noisy_choice_kernel, (triton.cdiv(len(logits_N2), CHOICES),),
            logits_N2, choice_N2, soft_N2, key, temperature, len(logits_N2), hard=hard, block=CHOICES,
            golden=GOLDEN, first=FIRST, second=SECOND,
        )  # fmt: skip
        ctx.save_for_backward(soft_N2, temperature)
        return choice_N2

    @staticmethod
    def backward(ctx: Any, grad_N2: Tensor) -> tuple[Tensor | None, ...]:
        soft_N2, temperature = ctx.saved_tensors
        out_N2 = torch.empty_like(soft_N2)
        launch(
            _noisy_choice_backward_kernel, (triton.cdiv(len(soft_N2), CHOICES),),
            soft_N2, grad_N2.contiguous(), out_N2, temperature, len(soft_N2), block=CHOICES,
        )  # fmt: skip
        return out_N2, None, None, None


# -- φ and the mixture ----------------------------------------------------------------------------------------------

SLOPES = {"elu": 0, "leaky-relu": 1, "relu": 1, "tanh": 2}  # how φ'(x) follows from φ(x); relu leaks nothing


@triton.jit
def _activation_kernel(x_ptr, y_ptr, count, leak, slope: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < count, other=0.0).to(tl.float32)
    if slope == 0:
        # Near 0 the difference eˣ - 1 would lose digits that its series has.
        series = x * (1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0))))
        y = tl.where(x > 0, x, tl.where(x > -0.1, series, tl.exp(tl.minimum(x, 0.0)) - 1.0))
    elif slope == 1:
        y = tl.where(x > 0, x, leak * x)
    else:
        square, far = x * x, tl.exp(-2.0 * tl.abs(x))
        series = x * (1.0 - square / 3.0 * (1.0 - square * 0.4))
        y = tl.where(square < 0.0025, series, tl.where(x > 0, 1.0, -1.0) * (1.0 - far) / (1.0 + far))
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < count)


@triton.jit
def _activation_backward_kernel(  # type: ignore[no-untyped-def]
    y_ptr, grad_ptr, addend_ptr, touched_ptr, out_ptr, n_rows, columns, leak, slope: tl.constexpr,
    has_addend: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows), tl.arange(0, block)
    at, inside = row[:, None] * columns + column[None, :], (row < n_rows)[:, None] & (column < columns)[None, :]
    y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if slope == 0:
        out = grad * tl.where(y > 0, 1.0, y + 1.0)
    elif slope == 1:
        out = grad * tl.where(y > 0, 1.0, leak)
    else:
        out = grad * (1.0 - y * y)
    if has_addend:
        width = width_of(touched_ptr, row[:, None], (row < n_rows)[:, None], columns)
        out += tl.load(addend_ptr + at, mask=inside & (column[None, :] < width), other=0.0).to(tl.float32)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


class ForkActivation(torch.autograd.Function):
    """y = φ(x) beside x itself: φ' follows from y, and both gradients are added in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, leak: float) -> tuple[Tensor, Tensor]:
        ctx.slope, ctx.leak = SLOPES[name], leak if name == "leaky-relu" else 0.0
        y, count, block = torch.empty_like(x), x.numel(), 2048
        launch(_activation_kernel, (triton.cdiv(count, block),), x, y, count, ctx.leak, slope=ctx.slope, block=block)
        ctx.save_for_backward(y)
        ctx.set_materialize_grads(False)
        return y, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_x: Tensor | None) -> tuple[Tensor | None, None, None]:
        if grad_y is None:
            return grad_x, None, None
        (y,) = ctx.saved_tensors
        grad_y = grad_y.contiguous()
        grad_x = None if grad_x is None else grad_x.contiguous()
        out, (n_rows, columns) = torch.empty_like(y), y.shape
        block = triton.next_power_of_2(columns)
        rows = max(1, 2048 // block)
        launch(
            _activation_backward_kernel, (triton.cdiv(n_rows, rows),),
            y, grad_y, grad_x, touched(grad_x), out, n_rows, columns, ctx.leak,
            slope=ctx.slope, has_addend=grad_x is not None, rows=rows, block=block,
        )  # fmt: skip
        return out, None, None


@triton.jit
def _row(columns, block_columns: tl.constexpr):  # type: ignore[no-untyped-def]
    node = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block_columns)
    return node, node * columns + column, column < columns


@triton.jit
def _mix_kernel(  # type: ignore[no-untyped-def]
    choice_ptr, linear_ptr, nonlinear_ptr, out_ptr, columns, block_columns: tl.constexpr
):  # fmt: skip
    node, at, inside = _row(columns, block_columns)
    linear = tl.load(linear_ptr + at, mask=inside, other=0.0).to(tl.float32)
    nonlinear = tl.load(nonlinear_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mixture = tl.load(choice_ptr + 2 * node) * linear + tl.load(choice_ptr + 2 * node + 1) * nonlinear
    tl.store(out_ptr + at, mixture.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _mix_backward_kernel(  # type: ignore[no-untyped-def]
    choice_ptr, linear_ptr, nonlinear_ptr, grad_ptr, touched_ptr, d_choice_ptr, d_linear_ptr, d_nonlinear_ptr, columns,
    block_columns: tl.constexpr,
):  # fmt: skip
    node, at, inside = _row(columns, block_columns)
    read = tl.arange(0, block_columns) < width_of(touched_ptr, node, True, columns)
    grad = tl.load(grad_ptr + at, mask=read, other=0.0).to(tl.float32)
    linear = tl.load(linear_ptr + at, mask=read, other=0.0).to(tl.float32)
    nonlinear = tl.load(nonlinear_ptr + at, mask=read, other=0.0).to(tl.float32)
    tl.store(d_choice_ptr + 2 * node, tl.sum(grad * linear, axis=0))
    tl.store(d_choice_ptr + 2 * node + 1, tl.sum(grad * nonlinear, axis=0))
    kind = d_linear_ptr.dtype.element_ty
    tl.store(d_linear_ptr + at, (grad * tl.load(choice_ptr + 2 * node)).to(kind), mask=inside)
    tl.store(d_nonlinear_ptr + at, (grad * tl.load(choice_ptr + 2 * node + 1)).to(kind), mask=inside)


class Mixture(torch.autograd.Function):
    """g · [eᴸ, eᴺ] of each node: every embedding is read once, and the three gradients are made in one pass."""

    @staticmethod
    def forward(ctx: Any, choice_N2: Tensor, linear_ND: Tensor, nonlinear_ND: Tensor) -> Tensor:
        ctx.save_for_backward(choice_N2, linear_ND, nonlinear_ND)
        out_ND, columns = torch.empty_like(linear_ND), linear_ND.shape[1]
        launch(
            _mix_kernel, (len(linear_ND),), choice_N2, linear_ND, nonlinear_ND, out_ND, columns,
            block_columns=triton.next_power_of_2(columns), num_warps=2,
        )  # fmt: skip
        return out_ND

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        choice_N2, linear_ND, nonlinear_ND = ctx.saved_tensors
        columns, grad_ND = linear_ND.shape[1], grad_ND.contiguous()
        d_choice_N2, d_linear_ND, d_nonlinear_ND = map(torch.empty_like, (choice_N2, linear_ND, nonlinear_ND))
        launch(
            _mix_backward_kernel, (len(linear_ND),), choice_N2, linear_ND, nonlinear_ND, grad_ND, touched(grad_ND),
            d_choice_N2, d_linear_ND, d_nonlinear_ND, columns,
            block_columns=triton.next_power_of_2(columns), num_warps=2,
        )  # fmt: skip
        return d_choice_N2, d_linear_ND, d_nonlinear_ND
