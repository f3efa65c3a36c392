"""A batch's margins and their gradients on CUDA, in Triton: rows are read where they lie, and never copied out.

A batch that has more rows than there are nodes reads most rows several times: it first makes the layers' mean of every
node, in the layers' type, and then reads that.

Legend: N nodes, D columns, B triplets; `layers` are pointers to N × D tables, e⁰ first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4  # that a program averages or finishes


@triton.jit
def _e0_and_mean(layers, at, inside):  # type: ignore[no-untyped-def]
    """What stands at some places: of e⁰, and of the layers' mean."""
    own = tl.load(layers[0] + at, mask=inside, other=0.0).to(tl.float32)
    total = own
    for layer in tl.static_range(1, len(layers)):
        total += tl.load(layers[layer] + at, mask=inside, other=0.0).to(tl.float32)
    return own, total / len(layers)


@triton.jit
def _means_kernel(  # type: ignore[no-untyped-def]
    layers, mean_ptr, norm_ptr, n_nodes, columns, rows: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    norm = tl.zeros([rows, block], dtype=tl.float32)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        at, inside = node[:, None] * columns + column[None, :], (node < n_nodes)[:, None] & (column < columns)[None, :]
        own, mean = _e0_and_mean(layers, at, inside)
        norm += own * own
        tl.store(mean_ptr + at, mean.to(mean_ptr.dtype.element_ty), mask=inside)
    tl.store(norm_ptr + node, tl.sum(norm, axis=1), mask=node < n_nodes)


@triton.jit
def _margins_kernel(  # type: ignore[no-untyped-def]
    layers, rows_ptr, margin_ptr, norm_ptr, batch, columns, has_norm: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    triplet = tl.program_id(0)
    user = tl.load(rows_ptr + triplet)
    positive = tl.load(rows_ptr + batch + triplet)
    negative = tl.load(rows_ptr + 2 * batch + triplet)
    margin = tl.zeros([block], dtype=tl.float32)
    norm = tl.zeros([block], dtype=tl.float32)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        inside = column < columns
        own_u, mean_u = _e0_and_mean(layers, user * columns + column, inside)
        own_i, mean_i = _e0_and_mean(layers, positive * columns + column, inside)
        own_j, mean_j = _e0_and_mean(layers, negative * columns + column, inside)
        margin += mean_u * (mean_i - mean_j)
        if has_norm:
            norm += own_u * own_u + own_i * own_i + own_j * own_j
    tl.store(margin_ptr + triplet, tl.sum(margin, axis=0))
    if has_norm:
        tl.store(norm_ptr + triplet, tl.sum(norm, axis=0))


@triton.jit
def _scatter_kernel(  # type: ignore[no-untyped-def]
    layers, rows_ptr, grad_ptr, total_ptr, count_ptr, share, batch, columns, block: tl.constexpr
):  # fmt: skip
    triplet = tl.program_id(0)
    user = tl.load(rows_ptr + triplet)
    positive = tl.load(rows_ptr + batch + triplet)
    negative = tl.load(rows_ptr + 2 * batch + triplet)
    grad = tl.load(grad_ptr + triplet) * share
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        inside = column < columns
        at_u, at_i, at_j = user * columns + column, positive * columns + column, negative * columns + column
        _, mean_u = _e0_and_mean(layers, at_u, inside)
        _, mean_i = _e0_and_mean(layers, at_i, inside)
        _, mean_j = _e0_and_mean(layers, at_j, inside)
        tl.atomic_add(total_ptr + at_u, grad * (mean_i - mean_j), mask=inside, sem="relaxed")
        tl.atomic_add(total_ptr + at_i, grad * mean_u, mask=inside, sem="relaxed")
        tl.atomic_add(total_ptr + at_j, -grad * mean_u, mask=inside, sem="relaxed")
    tl.atomic_add(count_ptr + user, 1.0, sem="relaxed")
    tl.atomic_add(count_ptr + positive, 1.0, sem="relaxed")
    tl.atomic_add(count_ptr + negative, 1.0, sem="relaxed")


@triton.jit
def _finish_kernel(  # type: ignore[no-untyped-def]
    own_ptr, total_ptr, rest_ptr, count_ptr, grad_norms_ptr, batch, n_nodes, columns,
    has_rest: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    count = tl.load(count_ptr + node, mask=node < n_nodes, other=0.0)
    pull = 2.0 * count * tl.load(grad_norms_ptr) / batch  # a row counts as often as it occurs
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        at = node[:, None] * columns + column[None, :]
        touched = (count > 0)[:, None] & (column < columns)[None, :]  # nothing is read of rows that no triplet has
        total = tl.load(total_ptr + at, mask=touched, other=0.0)
        if has_rest:
            inside = (node < n_nodes)[:, None] & (column < columns)[None, :]
            tl.store(rest_ptr + at, total.to(rest_ptr.dtype.element_ty), mask=inside)
        total += pull[:, None] * tl.load(own_ptr + at, mask=touched, other=0.0)
        tl.store(total_ptr + at, total, mask=touched)


def _shape(columns: int) -> dict[str, int]:
    """Columns that a program takes at once, and its warps."""
    block = min(triton.next_power_of_2(columns), 512)
    return {"block": block, "num_warps": max(1, block // 256)}


def margins(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """r_ui - r_uj of each triplet under the layers' mean, ‖rows of e⁰‖² / B, and every node's mean if it was made."""
    batch, (n_nodes, columns) = len(rows_3B) // 3, layers_ND[0].shape
    margin_B, mean_ND = torch.empty(batch, device=rows_3B.device), None
    if len(layers_ND) > 1 and len(rows_3B) > n_nodes:
        mean_ND, norm_N = torch.empty_like(layers_ND[-1]), torch.empty(n_nodes, device=rows_3B.device)
        _means_kernel[(triton.cdiv(n_nodes, ROWS),)](
            tuple(layers_ND), mean_ND, norm_N, n_nodes, columns, rows=ROWS, block=_shape(columns)["block"]
        )
        norm_R, layers_ND = norm_N[rows_3B], [mean_ND]
    else:
        norm_R = torch.empty(batch, device=rows_3B.device)
    _margins_kernel[(batch,)](
        tuple(layers_ND), rows_3B, margin_B, norm_R, batch, columns, has_norm=mean_ND is None, **_shape(columns)
    )
    return margin_B, norm_R.sum() / batch, mean_ND


def margins_backward(
    layers_ND: Sequence[Tensor], mean_ND: Tensor | None, rows_3B: Tensor, grad_margin_B: Tensor, grad_norms: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The gradient of e⁰, and the one that all other layers share (None where there are none).

    Sums of a row that occurs several times are made by atomic additions, in any order.
    """
    batch, own_ND = len(rows_3B) // 3, layers_ND[0]
    n_nodes, columns = own_ND.shape
    total_ND = torch.zeros(n_nodes, columns, device=own_ND.device)
    count_N = torch.zeros(n_nodes, device=own_ND.device)
    rest_ND = torch.empty_like(layers_ND[1]) if len(layers_ND) > 1 else None
    _scatter_kernel[(batch,)](
        tuple(layers_ND) if mean_ND is None else (mean_ND,), rows_3B, grad_margin_B.contiguous(), total_ND, count_N,
        1.0 / len(layers_ND), batch, columns, **_shape(columns),
    )  # fmt: skip
    _finish_kernel[(triton.cdiv(n_nodes, ROWS),)](
        own_ND, total_ND, rest_ND, count_N, grad_norms, batch, n_nodes, columns,
        has_rest=rest_ND is not None, rows=ROWS, block=_shape(columns)["block"],
    )  # fmt: skip
    return total_ND, rest_ND
