"""The hot loops on CUDA, in Triton: the product with edge dropout inside it, and dropout with ReLU.

Storage is float32 or bfloat16, sums are float32. The fate of an edge is a hash of its number and of a key that lies in
device memory (edge_hash.py has the same function for CPU), so forward and backward agree without a stored mask, and a
captured CUDA graph draws a new mask at each replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmlet.kernels.edge_hash import FIRST, GOLDEN, SECOND, threshold

SEGMENT = 512  # entries that one program sums at the most: hub rows are cut, so none of them is the last to finish
EDGES = 16  # rows of x that a program has in flight at once


@triton.jit
def _mix(value, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    value = value ^ (value >> 16)
    value = (value * first).to(tl.uint32)
    value = value ^ (value >> 15)
    value = (value * second).to(tl.uint32)
    return value ^ (value >> 15)


@triton.jit
def _salt(key_ptr, golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    key = tl.load(key_ptr)
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return _mix((low * golden + high).to(tl.uint32), first, second)


@triton.jit
def _segments_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, partial_ptr, start_ptr, end_ptr, target_ptr, neighbour_ptr, weight_ptr, edge_ptr, key_ptr,
    n_nodes, columns, keep_from, scale,
    dropping: tl.constexpr, block_edges: tl.constexpr, block_columns: tl.constexpr,
    golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(0)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    inside = column < columns
    start = tl.load(start_ptr + segment)
    end = tl.load(end_ptr + segment)
    target = tl.load(target_ptr + segment)
    total = tl.zeros([block_columns], dtype=tl.float32)
    if dropping:
        salt = _salt(key_ptr, golden, first, second)
    for at in range(start, end, block_edges):
        entry = at + tl.arange(0, block_edges)
        live = entry < end
        if dropping:
            edge = tl.load(edge_ptr + entry, mask=live, other=0).to(tl.uint32)
            live = live & (_mix(edge ^ salt, first, second) >= keep_from)
        neighbour = tl.load(neighbour_ptr + entry, mask=live, other=0).to(tl.int64)
        weight = tl.load(weight_ptr + entry, mask=live, other=0.0)
        rows = tl.load(
            x_ptr + neighbour[:, None] * columns + column[None, :], mask=live[:, None] & inside[None, :], other=0.0
        )
        total += tl.sum(rows.to(tl.float32) * weight[:, None], axis=0)
    total = total * scale
    if target < n_nodes:
        tl.store(y_ptr + target * columns + column, total.to(y_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(partial_ptr + (target - n_nodes) * columns + column, total, mask=inside)


@triton.jit
def _join_kernel(  # type: ignore[no-untyped-def]
    y_ptr, partial_ptr, row_ptr, first_ptr, columns, block_columns: tl.constexpr
):  # fmt: skip
    hub = tl.program_id(0)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    inside = column < columns
    total = tl.zeros([block_columns], dtype=tl.float32)
    for part in range(tl.load(first_ptr + hub), tl.load(first_ptr + hub + 1)):
        total += tl.load(partial_ptr + part * columns + column, mask=inside, other=0.0)
    row = tl.load(row_ptr + hub).to(tl.int64)
    tl.store(y_ptr + row * columns + column, total.to(y_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True, eq=False)
class Segments:
    """Rows cut into pieces of at most SEGMENT entries, longest first. A cut row's pieces are joined in order."""

    start: Tensor
    end: Tensor
    target: Tensor  # the row, or N + the number of a partial sum
    hubs: Tensor  # rows that were cut
    first: Tensor  # where each hub's partial sums begin, and the end
    n_partials: int

    @classmethod
    def of(cls, indptr: Tensor) -> Segments:
        """The pieces of a CSR, made on its device."""
        indptr = indptr.long()
        n_nodes, device = len(indptr) - 1, indptr.device
        degree = indptr.diff()
        pieces = ((degree + SEGMENT - 1) // SEGMENT).clamp_min(1)
        row = torch.repeat_interleave(torch.arange(n_nodes, device=device), pieces)
        before = pieces.cumsum(0) - pieces
        within = torch.arange(len(row), device=device) - before[row]
        start = indptr[row] + within * SEGMENT
        end = torch.minimum(start + SEGMENT, indptr[row + 1])
        cut = pieces[row] > 1
        target = torch.where(cut, n_nodes + cut.cumsum(0) - 1, row)
        hubs = (pieces > 1).nonzero().flatten()
        first = torch.cat([torch.zeros(1, dtype=torch.long, device=device), pieces[hubs].cumsum(0)])
        order = (end - start).argsort(descending=True, stable=True)
        return cls(start[order], end[order], target[order], hubs, first, int(cut.sum()))


def product(
    segments: Segments,
    neighbours: Tensor,
    weights: Tensor,
    edges: Tensor,
    x_ND: Tensor,
    rate: float = 0.0,
    key: Tensor | None = None,
) -> Tensor:
    """Σ over each row's kept entries of weight · x[neighbour] / (1 - rate): N × D in x's type. Deterministic."""
    x_ND = x_ND.contiguous()
    n_nodes, columns = x_ND.shape
    y_ND = torch.empty_like(x_ND)
    partial = torch.empty(max(segments.n_partials, 1), columns, dtype=torch.float32, device=x_ND.device)
    block = min(triton.next_power_of_2(columns), 512)
    tiles = triton.cdiv(columns, block)
    _segments_kernel[(len(segments.start), tiles)](
        x_ND, y_ND, partial, segments.start, segments.end, segments.target, neighbours, weights, edges,
        key if key is not None else segments.start,
        n_nodes, columns, threshold(rate), 1.0 / (1.0 - rate),
        dropping=rate > 0.0, block_edges=EDGES, block_columns=block,
        golden=GOLDEN, first=FIRST, second=SECOND, num_warps=max(1, min(8, block * EDGES // 1024)),
    )  # fmt: skip
    if len(segments.hubs):
        _join_kernel[(len(segments.hubs), tiles)](
            y_ND, partial, segments.hubs, segments.first, columns, block_columns=block
        )
    return y_ND


@triton.jit
def _dropout_relu_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, key_ptr, count, keep_from, scale, block: tl.constexpr,
    golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    value = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    kept = _mix(at.to(tl.uint32) ^ _salt(key_ptr, golden, first, second), first, second) >= keep_from
    tl.store(y_ptr + at, tl.where(kept & (value > 0), value * scale, 0.0).to(y_ptr.dtype.element_ty), mask=inside)


def dropout_relu(x: Tensor, rate: float, key: Tensor) -> Tensor:
    """ReLU of x with entries dropped by the hash of their place: one read, one write, no mask."""
    x = x.contiguous()
    y, count, block = torch.empty_like(x), x.numel(), 2048
    _dropout_relu_kernel[(triton.cdiv(count, block),)](
        x, y, key, count, threshold(rate), 1.0 / (1.0 - rate), block=block, golden=GOLDEN, first=FIRST, second=SECOND
    )
    return y
