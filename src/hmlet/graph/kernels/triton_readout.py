"""What a loss over all items reads, by Triton: factors of length 1, and the exponentials of scores with their sums.

Legend: N nodes, D columns, M rows of a block, J items; `layers` are pointers to N × D tables, e⁰ first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmlet.graph.kernels.language import tl, triton
from hmlet.graph.kernels.launching import launch

ENTRIES = 2048  # that a program normalises
SCORES = 4096  # that a program takes at once


@triton.jit
def _unit_means_kernel(  # type: ignore[no-untyped-def]
    layers, unit_ptr, length_ptr, n_nodes, columns, shortest, rows: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    node, column = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows), tl.arange(0, block)
    at, inside = node[:, None] * columns + column[None, :], (node < n_nodes)[:, None] & (column < columns)[None, :]
    total = tl.load(layers[0] + at, mask=inside, other=0.0).to(tl.float32)
    for layer in tl.static_range(1, len(layers)):
        total += tl.load(layers[layer] + at, mask=inside, other=0.0).to(tl.float32)
    mean = total / len(layers)
    length = tl.maximum(tl.sqrt(tl.sum(mean * mean, axis=1)), shortest)
    tl.store(unit_ptr + at, mean / length[:, None], mask=inside)
    tl.store(length_ptr + node, length, mask=node < n_nodes)


@triton.jit
def _unit_means_backward_kernel(  # type: ignore[no-untyped-def]
    unit_ptr, length_ptr, grad_ptr, first_ptr, rest_ptr, n_nodes, columns, n_layers, has_rest: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    node, column = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows), tl.arange(0, block)
    at, inside = node[:, None] * columns + column[None, :], (node < n_nodes)[:, None] & (column < columns)[None, :]
    unit = tl.load(unit_ptr + at, mask=inside, other=0.0)
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
    length = tl.load(length_ptr + node, mask=node < n_nodes, other=1.0)
    along = tl.sum(unit * grad, axis=1)
    out = (grad - unit * along[:, None]) / (length * n_layers)[:, None]
    tl.store(first_ptr + at, out.to(first_ptr.dtype.element_ty), mask=inside)
    if has_rest:
        tl.store(rest_ptr + at, out.to(rest_ptr.dtype.element_ty), mask=inside)


def _shape(n_nodes: int, columns: int) -> tuple[tuple[int], dict[str, int]]:
    block = triton.next_power_of_2(columns)
    rows = max(1, ENTRIES // block)
    return (triton.cdiv(n_nodes, rows),), {"rows": rows, "block": block}


class UnitMeans(torch.autograd.Function):
    """The mean of layers with rows of length 1, in float32: one pass each way. All layers but e⁰ share a gradient."""

    @staticmethod
    def forward(ctx: Any, shortest: float, *layers_ND: Tensor) -> Tensor:
        layers_ND = tuple(layer_ND.contiguous() for layer_ND in layers_ND)
        n_nodes, columns = layers_ND[0].shape
        unit_ND = torch.empty_like(layers_ND[0], dtype=torch.float32)
        length_N = torch.empty(n_nodes, device=unit_ND.device)
        grid, shape = _shape(n_nodes, columns)
        launch(_unit_means_kernel, grid, layers_ND, unit_ND, length_N, n_nodes, columns, shortest, **shape)
        ctx.save_for_backward(unit_ND, length_N)
        ctx.dtypes = [layer_ND.dtype for layer_ND in layers_ND]
        return unit_ND

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        unit_ND, length_N = ctx.saved_tensors
        first, *others = ctx.dtypes
        first_ND = torch.empty_like(unit_ND, dtype=first)
        rest_ND = torch.empty_like(unit_ND, dtype=others[0]) if others else None
        grid, shape = _shape(*unit_ND.shape)
        launch(
            _unit_means_backward_kernel, grid,
            unit_ND, length_N, grad_ND.contiguous(), first_ND, rest_ND, *unit_ND.shape, len(ctx.dtypes),
            has_rest=rest_ND is not None, **shape,
        )  # fmt: skip
        return None, first_ND, *[rest_ND] * len(others)


@triton.jit
def _exponentials_kernel(  # type: ignore[no-untyped-def]
    score_ptr, count_ptr, sum_ptr, n_items, counted: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([block], dtype=tl.float32)
    for start in range(0, n_items, block):
        item = start + tl.arange(0, block)
        at, inside = score_ptr + row * n_items + item, item < n_items
        power = tl.exp(tl.load(at, mask=inside, other=float("-inf")).to(tl.float32))
        tl.store(at, power.to(score_ptr.dtype.element_ty), mask=inside)
        if counted:
            power *= tl.load(count_ptr + item, mask=inside, other=0.0)
        total += power
    tl.store(sum_ptr + row, tl.sum(total, axis=0))


def exponentials(scores_MJ: Tensor, counts_J: Tensor | None = None) -> Tensor:
    """Replace scores by their exponentials; returns each row's sum in float32, in which an item counts c_j times: M."""
    sum_M = torch.empty(len(scores_MJ), device=scores_MJ.device)
    count = scores_MJ.shape[1]
    block = min(triton.next_power_of_2(count), SCORES)
    launch(
        _exponentials_kernel, (len(scores_MJ),), scores_MJ, counts_J, sum_M, count,
        counted=counts_J is not None, block=block, num_warps=8,
    )  # fmt: skip
    return sum_M
