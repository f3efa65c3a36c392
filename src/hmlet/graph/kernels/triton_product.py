"""The operator by Triton, on CUDA: the product and edge dropout.

Storage is float32 or bfloat16, sums are float32. The fate of an edge is a hash of its number and of a key that lies in
device memory (edge_hash.py has the same function for CPU): both directions of an edge agree without a stored mask, and
a captured CUDA graph drops other edges at each replay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hmlet.graph.kernels.edge_hash import FIRST, GOLDEN, SECOND, threshold
from hmlet.graph.kernels.language import tl, triton
from hmlet.graph.kernels.launching import launch
from hmlet.graph.kernels.operator import Operator
from hmlet.graph.kernels.rows import touched
from hmlet.graph.kernels.torch_product import TorchOperator

SEGMENT = 512  # entries that one program sums at the most: hub rows are cut, so none of them is the last to finish
SEVERAL, THINNED = 16, 32  # segments that a program thins, and entries of each at once: most rows are short


@triton.jit
def mixed(value, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    value = value ^ (value >> 16)
    value = (value * first).to(tl.uint32)
    value = value ^ (value >> 15)
    value = (value * second).to(tl.uint32)
    return value ^ (value >> 15)


@triton.jit
def salt(key_ptr, golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    key = tl.load(key_ptr)
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return mixed((low * golden + high).to(tl.uint32), first, second)


@triton.jit
def keeps(number, seed, keep_from, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether what has this number is kept: edge_hash.keeps, with the salt made before."""
    return mixed(number.to(tl.uint32) ^ seed, first, second) >= keep_from.to(tl.uint32)


@triton.jit
def width_of(touched_ptr, row, exists, columns):  # type: ignore[no-untyped-def]
    """How many columns of a row have to be read: none where it is known to be zero (rows.py)."""
    width = columns
    if touched_ptr is not None:
        width = tl.where(tl.load(touched_ptr + row, mask=exists, other=0) > 0, columns, 0)
    return width


@triton.jit
def _segments_kernel(  # type: ignore[no-untyped-def]
    x_ptr, addend_ptr, touched_ptr, y_ptr, partial_ptr, start_ptr, end_ptr, target_ptr, neighbour_ptr, weight_ptr,
    n_nodes, columns, in_flight: tl.constexpr, block_columns: tl.constexpr, has_addend: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(0)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    inside = column < columns
    start = tl.load(start_ptr + segment)
    end = tl.load(end_ptr + segment)
    target = tl.load(target_ptr + segment)
    width_added = width_of(touched_ptr, target, target < n_nodes, columns)  # here, to be known when the sum is
    total = tl.zeros([block_columns], dtype=tl.float32)
    for at in range(start, end, in_flight):
        # Independent loads of whole rows: the compiler issues all of them before the first is added.
        for ahead in tl.static_range(in_flight):
            live = at + ahead < end
            neighbour = tl.load(neighbour_ptr + at + ahead, mask=live, other=0).to(tl.int64)
            weight = tl.load(weight_ptr + at + ahead, mask=live, other=0.0)
            width = tl.where(live, columns, 0)
            row = tl.load(x_ptr + neighbour * columns + column, mask=column < width, other=0.0)
            total += row.to(tl.float32) * weight
    if target < n_nodes:
        if has_addend:
            added = tl.load(addend_ptr + target * columns + column, mask=column < width_added, other=0.0)
            total += added.to(tl.float32)
        tl.store(y_ptr + target * columns + column, total.to(y_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(partial_ptr + (target - n_nodes) * columns + column, total, mask=inside)


@triton.jit
def _join_kernel(  # type: ignore[no-untyped-def]
    addend_ptr, touched_ptr, y_ptr, partial_ptr, row_ptr, first_ptr, columns, block_columns: tl.constexpr,
    has_addend: tl.constexpr,
):  # fmt: skip
    hub = tl.program_id(0)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    inside = column < columns
    row = tl.load(row_ptr + hub).to(tl.int64)
    width_added = width_of(touched_ptr, row, True, columns)
    total = tl.zeros([block_columns], dtype=tl.float32)
    for part in range(tl.load(first_ptr + hub), tl.load(first_ptr + hub + 1)):
        total += tl.load(partial_ptr + part * columns + column, mask=inside, other=0.0)
    if has_addend:
        added = tl.load(addend_ptr + row * columns + column, mask=column < width_added, other=0.0)
        total += added.to(tl.float32)
    tl.store(y_ptr + row * columns + column, total.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _thin_kernel(  # type: ignore[no-untyped-def]
    start_ptr, end_ptr, neighbour_ptr, weight_ptr, edge_ptr, key_ptr,
    out_end_ptr, out_neighbour_ptr, out_weight_ptr, n_segments, keep_from, boost,
    several: tl.constexpr, block: tl.constexpr,
    golden: tl.constexpr, first: tl.constexpr, second: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(0) * several + tl.arange(0, several)
    real = segment < n_segments
    start = tl.load(start_ptr + segment, mask=real, other=0)
    end = tl.load(end_ptr + segment, mask=real, other=0)
    seed = salt(key_ptr, golden, first, second)
    place = start
    for at in range(0, tl.max(end - start, axis=0), block):
        entry = (start + at)[:, None] + tl.arange(0, block)[None, :]
        live = entry < end[:, None]
        neighbour = tl.load(
            neighbour_ptr + entry, mask=live, other=0
        )  # of dropped entries too: no load waits for edges
        weight = tl.load(weight_ptr + entry, mask=live, other=0.0)
        edge = tl.load(edge_ptr + entry, mask=live, other=0)
        live = live & keeps(edge, seed, keep_from, first, second)
        to = place[:, None] + tl.cumsum(live.to(tl.int32), axis=1) - 1
        tl.store(out_neighbour_ptr + to, neighbour, mask=live)
        tl.store(out_weight_ptr + to, weight * boost, mask=live)
        place += tl.sum(live.to(tl.int32), axis=1)
    tl.store(out_end_ptr + segment, place, mask=real)


@dataclass(frozen=True, eq=False, kw_only=True)
class TritonOperator(Operator):
    """Â in the device's memory, its rows cut into segments."""

    indptr: Tensor  # N + 1: where the whole graph's rows begin
    neighbours: Tensor  # 2 E: those of each segment's entries, the kept ones at its front
    weights: Tensor  # 2 E: scale_n scale_m, as the neighbours lie
    edges: Tensor  # 2 E: the undirected edge of each entry of the whole graph
    segments: Segments

    @classmethod
    def of(cls, plain: TorchOperator) -> TritonOperator:
        """The same operator, or the same plan of one, by Triton."""
        entries = len(plain.neighbours)
        segments = Segments.planned(plain.n_nodes, entries) if plain.indptr.is_meta else Segments.of(plain.indptr)
        return cls(
            n_nodes=plain.n_nodes, n_edges=plain.n_edges, loop=plain.loop, storage=plain.storage, indptr=plain.indptr,
            neighbours=plain.neighbours, weights=plain.weights, edges=plain.edges, segments=segments,
        )  # fmt: skip

    def _held(self) -> list[Tensor]:
        return [self.indptr, self.neighbours, self.weights, self.edges, *self.segments.tensors]

    def weigh(self, weights_E: Tensor) -> TritonOperator:
        assert self.key is None, "edges are weighed in the whole operator"
        return replace(self, weights=weights_E.to(self.weights.dtype).index_select(0, self.edges))

    def _thin(self, rate: float, key: Tensor) -> TritonOperator:
        """The entries that a key keeps, moved to the front of their segments.

        One cheap pass a step makes all 2 K products of the step shorter; multiplying by zero would not.
        """
        whole = self.segments
        neighbours, weights, end = map(torch.empty_like, (self.neighbours, self.weights, whole.end))
        launch(
            _thin_kernel, (triton.cdiv(len(whole.start), SEVERAL),),
            whole.start, whole.end, self.neighbours, self.weights, self.edges, key,
            end, neighbours, weights, len(whole.start), threshold(rate), 1.0 / (1.0 - rate),
            several=SEVERAL, block=THINNED, golden=GOLDEN, first=FIRST, second=SECOND,
        )  # fmt: skip
        return replace(self, segments=replace(whole, end=end), neighbours=neighbours, weights=weights, key=key)

    def _sum(self, x_ND: Tensor, addend_ND: Tensor | None, dtype: torch.dtype | None) -> Tensor:
        x_ND = x_ND.contiguous()
        addend_ND = None if addend_ND is None else addend_ND.contiguous()
        touched_N = touched(addend_ND)
        segments, (n_nodes, columns) = self.segments, x_ND.shape
        y_ND = torch.empty_like(x_ND, dtype=dtype)
        partial = torch.empty(max(segments.n_partials, 1), columns, dtype=torch.float32, device=x_ND.device)
        block = min(triton.next_power_of_2(columns), 512)
        tiles = triton.cdiv(columns, block)
        launch(
            _segments_kernel, (len(segments.start), tiles),
            x_ND, addend_ND, touched_N, y_ND, partial, *segments.tensors, self.neighbours, self.weights,
            n_nodes, columns, in_flight=4, block_columns=block, has_addend=addend_ND is not None, num_warps=1,
        )  # fmt: skip
        if len(segments.hubs):
            launch(
                _join_kernel, (len(segments.hubs), tiles),
                addend_ND, touched_N, y_ND, partial, segments.hubs, segments.first, columns,
                block_columns=block, has_addend=addend_ND is not None,
            )  # fmt: skip
        return y_ND


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

    @classmethod
    def planned(cls, n_nodes: int, n_entries: int) -> Segments:
        """As many as a graph of this size can have, without memory: one for each row and one for each full segment."""
        count, partials = n_nodes + n_entries // SEGMENT, n_entries // SEGMENT
        start, end, target = (torch.empty(count, dtype=torch.int64, device="meta") for _ in range(3))
        hub = torch.empty(min(1, partials), dtype=torch.int64, device="meta")  # so that rows are joined in a plan too
        return cls(start, end, target, hub, hub, partials)

    @property
    def tensors(self) -> list[Tensor]:
        return [self.start, self.end, self.target]
