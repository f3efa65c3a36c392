"""The operator by Triton with the graph in the host's memory: triton_product's sums, a block of segments at a time.

What travels is a neighbour's number, and the edge's where edges are dropped. The weight scale_n scale_m is made on the
device, and which edges are left is decided there, block by block, from the same key. Segments are cut as for a graph on
the device and each is summed in the same order, so the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.graph.kernels import stream, triton_product
from hmlet.graph.kernels.operator import Operator
from hmlet.graph.kernels.triton_product import Piece, Segments, fill, sums


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamedOperator(Operator):
    """Â whose entries come from the host's memory at every product."""

    capturable: ClassVar[bool] = False  # launches cost nothing beside the copies, which a capture complicates

    neighbours: Tensor  # 2 E, on the host
    edges: Tensor  # 2 E, on the host: the undirected edge of each entry
    scale: Tensor  # N
    blocks: Blocks
    rate: float = 0.0  # of the edges that every product drops: which ones the key decides, each time again

    @classmethod
    def build(
        cls,
        indptr: npt.NDArray[np.int64],
        neighbours: npt.NDArray[np.int32],
        edges: npt.NDArray[np.int32],
        scale: Tensor,
        loop: Tensor | None,
        storage: torch.dtype | None,
    ) -> StreamedOperator:
        """The operator of a graph's arrays on the device of its scales."""
        offsets = torch.from_numpy(indptr).to(scale.device)
        return cls(
            n_nodes=len(scale), n_edges=len(edges) // 2, loop=loop, storage=storage, scale=scale,
            neighbours=stream.pinned(neighbours), edges=stream.pinned(edges), blocks=Blocks.of(offsets, scale),
        )  # fmt: skip

    @classmethod
    def planned(cls, n_nodes: int, n_edges: int, loop: Tensor | None, storage: torch.dtype | None) -> StreamedOperator:
        """What `build` makes for a graph of this size at the most, without memory."""
        entries = torch.empty(2 * n_edges, dtype=torch.int32, device="meta")
        return cls(
            n_nodes=n_nodes, n_edges=n_edges, loop=loop, storage=storage, scale=torch.empty(n_nodes, device="meta"),
            neighbours=entries, edges=entries, blocks=Blocks.planned(n_nodes, len(entries)),
        )  # fmt: skip

    def _held(self) -> list[Tensor]:
        return [self.scale, *self.blocks.tensors]

    def _thin(self, rate: float, key: Tensor) -> StreamedOperator:
        return replace(self, rate=rate, key=key)

    def _sum(self, x_ND: Tensor, addend_ND: Tensor | None, dtype: torch.dtype | None) -> Tensor:
        return sums(self._pieces(), self.blocks.segments, x_ND, addend_ND, dtype)

    def _pieces(self) -> Iterator[Piece]:
        """Each block in turn, with the entries that are left and their weights."""
        blocks, held, segments = self.blocks, self.blocks.buffers, self.blocks.segments
        arrays = [self.neighbours] if self.key is None else [self.neighbours, self.edges]
        incoming = held.blocks(arrays, blocks.of_entries)
        for at, (numbers, *edges) in zip(blocks.of_segments, incoming, strict=True):
            whole = Piece(segments.start[at], segments.end[at], segments.target[at], numbers, self.scale)
            thinned = whole._replace(end=held.end[at], neighbours=held.neighbours, weights=held.weights)
            fill(thinned, whole, edges[0] if edges else None, self.rate, self.key, blocks.scale[at])
            yield thinned


@dataclass(frozen=True, eq=False)
class Blocks:
    """Segments in blocks of at most BLOCK entries, longest first in each; their offsets count from a block's first."""

    segments: Segments
    scale: Tensor  # scale_n of each segment's row
    of_segments: list[slice]
    of_entries: list[slice]
    buffers: stream.Buffers

    @classmethod
    def of(cls, indptr: Tensor, scale: Tensor) -> Blocks:
        """The blocks of a CSR, made on the device of its offsets and of the N scales."""
        longest = triton_product.SEGMENT
        pieces, row = Segments.cut(indptr)
        # A segment that begins among these entries ends at most a segment later, so a block never overflows.
        number = pieces.start // (stream.BLOCK - longest)
        order = (number * (2 * longest) - (pieces.end - pieces.start)).argsort(stable=True)
        blocks = torch.arange(int(number[-1]) + 2, device=indptr.device)
        bounds = torch.searchsorted(number, blocks)  # numbers ascend in the order of rows
        first = pieces.start[bounds[:-1]]
        base = first[number]
        pieces = replace(pieces, start=(pieces.start - base).int(), end=(pieces.end - base).int())
        return cls(
            pieces.ordered(order),
            scale[row[order]],
            [slice(*pair) for pair in pairwise(bounds.tolist())],
            [slice(*pair) for pair in pairwise([*first.tolist(), int(indptr[-1])])],
            stream.Buffers(int(indptr[-1]), len(order), indptr.device),
        )

    @classmethod
    def planned(cls, n_nodes: int, n_entries: int) -> Blocks:
        """The memory of a graph of this size at the most. It has no blocks, because nothing passes through it."""
        segments = Segments.planned(n_nodes, n_entries, offset=torch.int32)
        count, device = len(segments.start), torch.device("meta")
        scale = torch.empty(count, device=device)
        return cls(segments, scale, [], [], stream.Buffers(n_entries, count, device))

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.segments.tensors, self.scale, *self.buffers.tensors]
