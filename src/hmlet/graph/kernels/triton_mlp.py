"""Operations between the products of the gate's MLP on CUDA, in Triton: BatchNorm, dropout, ReLU, and the last layer.

Storage is float32 or bfloat16, arithmetic is float32. Legend: N rows, H columns, P parts that rows are summed in.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hmlet.graph.kernels.edge_hash import FIRST, GOLDEN, SECOND, threshold
from hmlet.graph.kernels.language import tl, triton
from hmlet.graph.kernels.launching import launch
from hmlet.graph.kernels.triton_product import keeps, salt

ROWS, COLUMNS = 32, 128  # a tile
PART, SUMMED = 256, 16  # rows whose sums one program adds up, so many at once; parts are then added in a fixed order
SUM_PARTS, SUM_COLUMNS = 256, 16  # a tile of those parts


@triton.jit
def _tile(first_row, n_rows, columns, rows: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """The places of a tile's entries, and which of them exist."""
    row = first_row + tl.arange(0, rows)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = (row < n_rows)[:, None] & (column < columns)[None, :]
    return row[:, None].to(tl.int64) * columns + column[None, :], inside


# -- BatchNorm, dropout and ReLU ------------------------------------------------------------------------------------


@triton.jit
def _moments_kernel(  # type: ignore[no-untyped-def]
    x_ptr, part_ptr, n_rows, columns, part: tl.constexpr, rows: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    column = tl.program_id(1) * block + tl.arange(0, block)
    # Any row of the data will do as an origin: sums of squares about it lose nothing, however far away the mean is.
    origin = tl.load(x_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    # Sums of a whole tile: adding its rows up makes the warps of a program wait for each other, so that comes last.
    first = tl.zeros([rows, block], dtype=tl.float32)
    second = tl.zeros([rows, block], dtype=tl.float32)
    for start in tl.range(0, part, rows, num_stages=3):
        at, inside = _tile(tl.program_id(0) * part + start, n_rows, columns, rows, block)
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        away = tl.where(inside, x - origin[None, :], 0.0)
        first += away
        second += away * away
    _store_sums(part_ptr, first, second, column, columns)


@triton.jit
def _store_sums(part_ptr, first, second, column, columns):  # type: ignore[no-untyped-def]
    """A part's two sums of each column."""
    at = tl.program_id(0) * 2 * columns + column
    tl.store(part_ptr + at, tl.sum(first, axis=0), mask=column < columns)
    tl.store(part_ptr + at + columns, tl.sum(second, axis=0), mask=column < columns)


@triton.jit
def _sum_parts(part_ptr, n_parts, columns, parts: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both sums of some columns, many parts at a time: one after the other each would wait for the memory."""
    column = tl.program_id(0) * block + tl.arange(0, block)
    first = tl.zeros([block], dtype=tl.float32)
    second = tl.zeros([block], dtype=tl.float32)
    for start in range(0, n_parts, parts):
        part = start + tl.arange(0, parts)
        inside = (part < n_parts)[:, None] & (column < columns)[None, :]
        at = part[:, None] * 2 * columns + column[None, :]
        first += tl.sum(tl.load(part_ptr + at, mask=inside, other=0.0), axis=0)
        second += tl.sum(tl.load(part_ptr + at + columns, mask=inside, other=0.0), axis=0)
    return first, second, column


@triton.jit
def _statistics_kernel(  # type: ignore[no-untyped-def]
    x_ptr, part_ptr, mean_ptr, deviation_ptr, running_mean_ptr, running_variance_ptr, tracked_ptr, n_parts, n_rows,
    columns, epsilon, momentum, parts: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    first, second, column = _sum_parts(part_ptr, n_parts, columns, parts, block)
    real = column < columns
    shift = first / n_rows
    mean = tl.load(x_ptr + column, mask=real, other=0.0).to(tl.float32) + shift
    variance = tl.maximum(second / n_rows - shift * shift, 0.0)
    tl.store(mean_ptr + column, mean, mask=real)
    tl.store(deviation_ptr + column, tl.sqrt(variance + epsilon), mask=real)
    running = tl.load(running_mean_ptr + column, mask=real, other=0.0)
    tl.store(running_mean_ptr + column, running + momentum * (mean - running), mask=real)
    running = tl.load(running_variance_ptr + column, mask=real, other=0.0)
    unbiased = variance * n_rows / (n_rows - 1)
    tl.store(running_variance_ptr + column, running + momentum * (unbiased - running), mask=real)
    if tl.program_id(0) == 0:
        tl.store(tracked_ptr, tl.load(tracked_ptr) + 1)


@triton.jit
def _parameters(mean_ptr, deviation_ptr, weight_ptr, bias_ptr, columns, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """BatchNorm's parameters of a tile's columns, each 1 × columns: mean, 1 / deviation, weight and bias."""
    column = tl.program_id(1) * block + tl.arange(0, block)
    real = column < columns
    mean = tl.load(mean_ptr + column, mask=real, other=0.0)
    inverse = 1.0 / tl.load(deviation_ptr + column, mask=real, other=1.0)
    weight = tl.load(weight_ptr + column, mask=real, other=0.0)
    bias = tl.load(bias_ptr + column, mask=real, other=0.0)
    return mean[None, :], inverse[None, :], weight[None, :], bias[None, :]


@triton.jit
def _is_alive(value, at, seed, keep_from, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether an entry is neither cut off nor dropped. What is not a number stays alive, for the loss to show it."""
    return keeps(at, seed, keep_from, first, second) & ((value > 0) | (value != value))


@triton.jit
def _apply_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, mean_ptr, deviation_ptr, weight_ptr, bias_ptr, key_ptr, n_rows, columns, before, keep_from, scale,
    rows: tl.constexpr, block: tl.constexpr,
    golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr,
):  # fmt: skip
    mean, inverse, weight, bias = _parameters(mean_ptr, deviation_ptr, weight_ptr, bias_ptr, columns, block)
    seed = salt(key_ptr, golden, first, second)
    at, inside = _tile(tl.program_id(0) * rows, n_rows, columns, rows, block)
    normal = (tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) - mean) * inverse
    value = normal * weight + bias
    alive = _is_alive(value, before + at, seed, keep_from, first, second)
    tl.store(y_ptr + at, tl.where(alive, value * scale, 0.0).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_sums_kernel(  # type: ignore[no-untyped-def]
    x_ptr, grad_ptr, part_ptr, mean_ptr, deviation_ptr, weight_ptr, bias_ptr, key_ptr, n_rows, columns, keep_from,
    scale, part: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
    golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * block + tl.arange(0, block)
    mean, inverse, weight, bias = _parameters(mean_ptr, deviation_ptr, weight_ptr, bias_ptr, columns, block)
    seed = salt(key_ptr, golden, first, second)
    plain = tl.zeros([rows, block], dtype=tl.float32)
    along = tl.zeros([rows, block], dtype=tl.float32)
    for start in tl.range(0, part, rows, num_stages=3):
        at, inside = _tile(tl.program_id(0) * part + start, n_rows, columns, rows, block)
        normal = (tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) - mean) * inverse
        grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32) * scale
        alive = _is_alive(normal * weight + bias, at, seed, keep_from, first, second)
        grad = tl.where(alive & inside, grad, 0.0)
        plain += grad
        along += grad * normal
    _store_sums(part_ptr, plain, along, column, columns)


@triton.jit
def _totals_kernel(  # type: ignore[no-untyped-def]
    part_ptr, first_ptr, second_ptr, n_parts, columns, parts: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    first, second, column = _sum_parts(part_ptr, n_parts, columns, parts, block)
    tl.store(first_ptr + column, first, mask=column < columns)
    tl.store(second_ptr + column, second, mask=column < columns)


@triton.jit
def _gradient_kernel(  # type: ignore[no-untyped-def]
    x_ptr, grad_ptr, out_ptr, mean_ptr, deviation_ptr, weight_ptr, bias_ptr, key_ptr, d_bias_ptr, d_weight_ptr,
    n_rows, columns, keep_from, scale, rows: tl.constexpr, block: tl.constexpr,
    golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * block + tl.arange(0, block)
    mean, inverse, weight, bias = _parameters(mean_ptr, deviation_ptr, weight_ptr, bias_ptr, columns, block)
    seed = salt(key_ptr, golden, first, second)
    plain = (tl.load(d_bias_ptr + column, mask=column < columns, other=0.0) / n_rows)[None, :]
    along = (tl.load(d_weight_ptr + column, mask=column < columns, other=0.0) / n_rows)[None, :]
    at, inside = _tile(tl.program_id(0) * rows, n_rows, columns, rows, block)
    normal = (tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) - mean) * inverse
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32) * scale
    alive = _is_alive(normal * weight + bias, at, seed, keep_from, first, second)
    out = weight * inverse * (tl.where(alive, grad, 0.0) - plain - normal * along)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


def _tiles(n_rows: int, columns: int, rows: int) -> tuple[int, int, int]:
    """The grid over tiles of some rows, and the columns of one."""
    block = min(triton.next_power_of_2(columns), COLUMNS)
    return triton.cdiv(n_rows, rows), triton.cdiv(columns, block), block


class NormDropoutReLU(torch.autograd.Function):
    """ReLU(BatchNorm(x)) with entries dropped by the hash of their place: two passes forward, two backward, no mask.

    Only x is kept: backward computes again what was dropped or cut off. BatchNorm's running statistics move on.
    """

    @staticmethod
    def forward(
        ctx: Any, x_NH: Tensor, weight_H: Tensor, bias_H: Tensor, norm: nn.BatchNorm1d, rate: float, key: Tensor
    ) -> Tensor:
        n_rows, columns = x_NH.shape
        mean_H, deviation_H = torch.empty_like(weight_H), torch.empty_like(weight_H)
        n_parts, tiles, block = _tiles(n_rows, columns, PART)
        part = torch.empty(n_parts, 2, columns, dtype=torch.float32, device=x_NH.device)
        launch(_moments_kernel, (n_parts, tiles), x_NH, part, n_rows, columns, part=PART, rows=SUMMED, block=block)
        launch(
            _statistics_kernel, (triton.cdiv(columns, SUM_COLUMNS),),
            x_NH, part, mean_H, deviation_H, norm.running_mean, norm.running_var, norm.num_batches_tracked,
            n_parts, n_rows, columns, norm.eps, norm.momentum, parts=SUM_PARTS, block=SUM_COLUMNS,
        )  # fmt: skip
        ctx.save_for_backward(x_NH, weight_H, bias_H)
        ctx.statistics, ctx.key, ctx.rate = (mean_H, deviation_H), key, rate
        return _apply(x_NH, mean_H, deviation_H, weight_H, bias_H, rate, key, 0)

    @staticmethod
    def backward(ctx: Any, grad_NH: Tensor) -> tuple[Tensor | None, ...]:
        x_NH, weight_H, bias_H = ctx.saved_tensors
        n_rows, columns = x_NH.shape
        grad_NH = grad_NH.contiguous()
        d_weight_H, d_bias_H = torch.empty_like(weight_H), torch.empty_like(bias_H)
        n_parts, tiles, block = _tiles(n_rows, columns, PART)
        part = torch.empty(n_parts, 2, columns, dtype=torch.float32, device=x_NH.device)
        state = (*ctx.statistics, weight_H, bias_H, ctx.key)
        drop = (threshold(ctx.rate), 1.0 / (1.0 - ctx.rate))
        shape = {"block": block, "golden": GOLDEN, "first": FIRST, "second": SECOND}
        launch(
            _gradient_sums_kernel, (n_parts, tiles),
            x_NH, grad_NH, part, *state, n_rows, columns, *drop, part=PART, rows=SUMMED, **shape,
        )  # fmt: skip
        launch(
            _totals_kernel, (triton.cdiv(columns, SUM_COLUMNS),),
            part, d_bias_H, d_weight_H, n_parts, columns, parts=SUM_PARTS, block=SUM_COLUMNS,
        )  # fmt: skip
        out_NH = torch.empty_like(x_NH)
        launch(
            _gradient_kernel, (triton.cdiv(n_rows, ROWS), tiles),
            x_NH, grad_NH, out_NH, *state, d_bias_H, d_weight_H, n_rows, columns, *drop, rows=ROWS, **shape,
        )  # fmt: skip
        return out_NH, d_weight_H, d_bias_H, None, None, None


def dropout_relu(x_MH: Tensor, rate: float, key: Tensor, first: int) -> Tensor:
    """The same without BatchNorm or a gradient, for rows from `first` on of the matrix in which places are counted."""
    zeros_H = torch.zeros(x_MH.shape[1], device=x_MH.device)
    ones_H = torch.ones_like(zeros_H)
    return _apply(x_MH, zeros_H, ones_H, ones_H, zeros_H, rate, key, first * x_MH.shape[1])


def _apply(
    x_NH: Tensor, mean_H: Tensor, deviation_H: Tensor, weight_H: Tensor, bias_H: Tensor, rate: float, key: Tensor,
    before: int,
) -> Tensor:  # fmt: skip
    n_rows, columns = x_NH.shape
    row_tiles, tiles, block = _tiles(n_rows, columns, ROWS)
    y_NH = torch.empty_like(x_NH)
    launch(
        _apply_kernel, (row_tiles, tiles),
        x_NH, y_NH, mean_H, deviation_H, weight_H, bias_H, key, n_rows, columns, before, threshold(rate),
        1.0 / (1.0 - rate), rows=ROWS, block=block, golden=GOLDEN, first=FIRST, second=SECOND,
    )  # fmt: skip
    return y_NH


# -- the last layer -------------------------------------------------------------------------------------------------


@triton.jit
def _head_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, bias_ptr, logits_ptr, n_rows, columns, rows: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    linear = tl.zeros([rows], dtype=tl.float32) + tl.load(bias_ptr)
    nonlinear = tl.zeros([rows], dtype=tl.float32) + tl.load(bias_ptr + 1)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        real = column < columns
        at, inside = row[:, None].to(tl.int64) * columns + column[None, :], (row < n_rows)[:, None] & real[None, :]
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        linear += tl.sum(x * tl.load(weight_ptr + 2 * column, mask=real, other=0.0)[None, :], axis=1)
        nonlinear += tl.sum(x * tl.load(weight_ptr + 2 * column + 1, mask=real, other=0.0)[None, :], axis=1)
    tl.store(logits_ptr + 2 * row, linear, mask=row < n_rows)
    tl.store(logits_ptr + 2 * row + 1, nonlinear, mask=row < n_rows)


@triton.jit
def _head_backward_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, grad_ptr, out_ptr, part_ptr, n_rows, columns,
    part: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * block + tl.arange(0, block)
    weight_l = tl.load(weight_ptr + 2 * column, mask=column < columns, other=0.0)
    weight_n = tl.load(weight_ptr + 2 * column + 1, mask=column < columns, other=0.0)
    along_l = tl.zeros([rows, block], dtype=tl.float32)
    along_n = tl.zeros([rows, block], dtype=tl.float32)
    for start in tl.range(0, part, rows, num_stages=3):
        at, inside = _tile(tl.program_id(0) * part + start, n_rows, columns, rows, block)
        row = tl.program_id(0) * part + start + tl.arange(0, rows)
        grad_l = tl.load(grad_ptr + 2 * row, mask=row < n_rows, other=0.0)[:, None]
        grad_n = tl.load(grad_ptr + 2 * row + 1, mask=row < n_rows, other=0.0)[:, None]
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        out = grad_l * weight_l[None, :] + grad_n * weight_n[None, :]
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)
        along_l += grad_l * x
        along_n += grad_n * x
    _store_sums(part_ptr, along_l, along_n, column, columns)


class Head(torch.autograd.Function):
    """x W + b in float32, two columns: too few for a matrix product's tiles. Both gradients take one pass over x."""

    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, weight_H2: Tensor, bias_2: Tensor) -> Tensor:
        ctx.save_for_backward(x_NH, weight_H2)
        n_rows, columns = x_NH.shape
        logits_N2 = torch.empty(n_rows, 2, device=x_NH.device)
        block = min(triton.next_power_of_2(columns), COLUMNS)
        launch(
            _head_kernel, (triton.cdiv(n_rows, ROWS),),
            x_NH, weight_H2.contiguous(), bias_2, logits_N2, n_rows, columns, rows=ROWS, block=block,
        )  # fmt: skip
        return logits_N2

    @staticmethod
    def backward(ctx: Any, grad_N2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_NH, weight_H2 = ctx.saved_tensors
        n_rows, columns = x_NH.shape
        n_parts, tiles, block = _tiles(n_rows, columns, PART)
        part = torch.empty(n_parts, 2, columns, dtype=torch.float32, device=x_NH.device)
        out_NH, d_weight_2H = torch.empty_like(x_NH), torch.empty(2, columns, device=x_NH.device)
        launch(
            _head_backward_kernel, (n_parts, tiles),
            x_NH, weight_H2.contiguous(), grad_N2.contiguous(), out_NH, part, n_rows, columns,
            part=PART, rows=SUMMED, block=block,
        )  # fmt: skip
        launch(
            _totals_kernel, (triton.cdiv(columns, SUM_COLUMNS),),
            part, d_weight_2H[0], d_weight_2H[1], n_parts, columns, parts=SUM_PARTS, block=SUM_COLUMNS,
        )  # fmt: skip
        return out_NH, d_weight_2H.t(), grad_N2.sum(0)
