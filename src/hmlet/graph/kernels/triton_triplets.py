"""A batch's margins and their gradients on CUDA, in Triton: rows are read where they lie, and never copied out.

A batch that has more rows than there are nodes reads most rows several times: it first makes the layers' mean of every
node, in the layers' type, and then reads that.

Legend: N nodes, D columns, B triplets; `layers` are pointers to N × D tables, e⁰ first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmlet.graph.kernels.language import tl, triton
from hmlet.graph.kernels.launching import launch
from hmlet.graph.kernels.rows import mark

ROWS = 4  # that a program averages
PLACED = 256  # entries that a program finds a place for


@triton.jit
def _e0_and_mean(layers, at, inside):  # type: ignore[no-untyped-def]
    """The values at some positions: of e⁰, and of the layers' mean."""
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
def _count_rows_kernel(rows_ptr, entries_ptr, times_ptr, offset_ptr, batch, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < 3 * batch
    node = tl.load(rows_ptr + at, mask=inside, other=0)
    entries = tl.where(at < batch, 2, 1)  # a user meets two items, each of them one user
    tl.store(offset_ptr + at, tl.atomic_add(entries_ptr + node, entries, mask=inside, sem="relaxed"), mask=inside)
    tl.atomic_add(times_ptr + node, 1.0, mask=inside, sem="relaxed")


@triton.jit
def _first_entry(rows_ptr, start_ptr, offset_ptr, at, inside):  # type: ignore[no-untyped-def]
    """A row of the batch, and where its entries are to lie."""
    node = tl.load(rows_ptr + at, mask=inside, other=0)
    return node, tl.load(start_ptr + node, mask=inside, other=0) + tl.load(offset_ptr + at, mask=inside, other=0)


@triton.jit
def _place_rows_kernel(  # type: ignore[no-untyped-def]
    rows_ptr, grad_ptr, start_ptr, offset_ptr, neighbour_ptr, weight_ptr, share, batch, block: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < batch
    user, of_user = _first_entry(rows_ptr, start_ptr, offset_ptr, at, inside)
    positive, of_positive = _first_entry(rows_ptr, start_ptr, offset_ptr, batch + at, inside)
    negative, of_negative = _first_entry(rows_ptr, start_ptr, offset_ptr, 2 * batch + at, inside)
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0) * share
    tl.store(neighbour_ptr + of_user, positive, mask=inside)
    tl.store(weight_ptr + of_user, grad, mask=inside)
    tl.store(neighbour_ptr + of_user + 1, negative, mask=inside)
    tl.store(weight_ptr + of_user + 1, -grad, mask=inside)
    tl.store(neighbour_ptr + of_positive, user, mask=inside)
    tl.store(weight_ptr + of_positive, grad, mask=inside)
    tl.store(neighbour_ptr + of_negative, user, mask=inside)
    tl.store(weight_ptr + of_negative, -grad, mask=inside)


@triton.jit
def _gather_rows_kernel(  # type: ignore[no-untyped-def]
    layers, own_ptr, total_ptr, rest_ptr, start_ptr, entries_ptr, times_ptr, neighbour_ptr, weight_ptr, grad_norms_ptr,
    batch, columns, has_rest: tl.constexpr, in_flight: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    start = tl.load(start_ptr + node)
    end = start + tl.load(entries_ptr + node)
    times = tl.load(times_ptr + node)
    pull = 2.0 * times * tl.load(grad_norms_ptr) / batch  # a row counts as often as it occurs
    for begin in range(0, columns, block):
        column = begin + tl.arange(0, block)
        inside = column < columns
        total = tl.zeros([block], dtype=tl.float32)
        for at in range(start, end, in_flight):
            for ahead in tl.static_range(in_flight):  # independent loads, all issued before the first is added
                live = at + ahead < end
                neighbour = tl.load(neighbour_ptr + at + ahead, mask=live, other=0).to(tl.int64)
                weight = tl.load(weight_ptr + at + ahead, mask=live, other=0.0)
                width = tl.where(live, columns, 0)
                _, mean = _e0_and_mean(layers, neighbour * columns + column, column < width)
                total += mean * weight
        if has_rest:
            tl.store(rest_ptr + node * columns + column, total.to(rest_ptr.dtype.element_ty), mask=inside)
        touched = column < tl.where(times > 0, columns, 0)  # nothing is read of rows that no triplet has
        total += pull * tl.load(own_ptr + node * columns + column, mask=touched, other=0.0).to(tl.float32)
        tl.store(total_ptr + node * columns + column, total.to(total_ptr.dtype.element_ty), mask=inside)


def _shape(columns: int) -> dict[str, int]:
    """Columns that a program takes at once, and its warps."""
    block = min(triton.next_power_of_2(columns), 512)
    return {"block": block, "num_warps": max(1, block // 256)}


class MeanMargins(torch.autograd.Function):
    """r_ui - r_uj of each triplet under the layers' mean, and ‖rows of e⁰‖² / B.

    Nothing is kept of a small batch but the layers: reading their rows twice is less than writing them out.
    """

    @staticmethod
    def forward(ctx: Any, rows_3B: Tensor, *layers_ND: Tensor) -> tuple[Tensor, Tensor]:
        layers_ND = tuple(layer_ND.contiguous() for layer_ND in layers_ND)
        batch, (n_nodes, columns) = len(rows_3B) // 3, layers_ND[0].shape
        margin_B, mean_ND, tables = torch.empty(batch, device=rows_3B.device), None, layers_ND
        if len(layers_ND) > 1 and len(rows_3B) > n_nodes:
            mean_ND, norm_N = torch.empty_like(layers_ND[-1]), torch.empty(n_nodes, device=rows_3B.device)
            launch(
                _means_kernel, (triton.cdiv(n_nodes, ROWS),),
                layers_ND, mean_ND, norm_N, n_nodes, columns, rows=ROWS, block=_shape(columns)["block"],
            )  # fmt: skip
            norm_R, tables = norm_N[rows_3B], (mean_ND,)
        else:
            norm_R = torch.empty(batch, device=rows_3B.device)
        launch(
            _margins_kernel, (batch,),
            tables, rows_3B, margin_B, norm_R, batch, columns, has_norm=mean_ND is None, **_shape(columns),
        )  # fmt: skip
        ctx.save_for_backward(rows_3B, mean_ND, *layers_ND)
        return margin_B, norm_R.sum() / batch

    @staticmethod
    def backward(ctx: Any, grad_margin_B: Tensor, grad_norms: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of e⁰, and the one that all other layers share.

        Both are a product with the triplets as a graph: a user's neighbours are the items that it met, an item's the
        users. Atomic additions find every entry its place, so the terms of a sum come in any order.
        """
        rows_3B, mean_ND, *layers_ND = ctx.saved_tensors
        batch, own_ND = len(rows_3B) // 3, layers_ND[0]
        n_nodes, columns = own_ND.shape
        entries_N = torch.zeros(n_nodes, dtype=torch.int32, device=own_ND.device)
        times_N = torch.zeros(n_nodes, device=own_ND.device)
        offset_3B = torch.empty(3 * batch, dtype=torch.int32, device=own_ND.device)
        launch(
            _count_rows_kernel, (triton.cdiv(3 * batch, PLACED),),
            rows_3B, entries_N, times_N, offset_3B, batch, block=PLACED,
        )  # fmt: skip
        start_N = entries_N.cumsum(0, dtype=torch.int32).sub_(entries_N)
        neighbours_4B = torch.empty(4 * batch, dtype=torch.int32, device=own_ND.device)
        weights_4B = torch.empty(4 * batch, device=own_ND.device)
        launch(
            _place_rows_kernel, (triton.cdiv(batch, PLACED),),
            rows_3B, grad_margin_B.contiguous(), start_N, offset_3B, neighbours_4B, weights_4B, 1.0 / len(layers_ND),
            batch, block=PLACED,
        )  # fmt: skip
        total_ND = torch.empty_like(own_ND)
        rest_ND = torch.empty_like(layers_ND[1]) if len(layers_ND) > 1 else None
        tables = tuple(layers_ND) if mean_ND is None else (mean_ND,)
        launch(
            _gather_rows_kernel, (n_nodes,),
            tables, own_ND, total_ND, rest_ND, start_N, entries_N, times_N, neighbours_4B, weights_4B, grad_norms,
            batch, columns, has_rest=rest_ND is not None,
            in_flight=4 if len(tables) == 1 else 1,  # several tables are loads enough ahead
            block=_shape(columns)["block"], num_warps=1,
        )  # fmt: skip
        if rest_ND is None:
            return None, mark(total_ND, entries_N)
        return None, mark(total_ND, entries_N), *[mark(rest_ND, entries_N)] * (len(layers_ND) - 1)
