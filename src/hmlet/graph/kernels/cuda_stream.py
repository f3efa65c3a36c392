"""The product on CUDA of a graph that lies in the host's memory: kernels.cuda's, a block of segments at a time.

What travels is a neighbour's number, and the edge's where edges are dropped. The weight scale_n scale_m is made on the
device, and which edges are left is decided there, block by block, from the same key. Segments are cut as for a graph on
the device and each is summed in the same order, so the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from hmlet.graph.kernels import cuda, stream
from hmlet.graph.kernels.dry import SEGMENT


@dataclass(frozen=True, eq=False)
class Blocks:
    """Segments in blocks of at most BLOCK entries, longest first in each; their offsets count from a block's first."""

    segments: cuda.Segments
    scale: Tensor  # scale_n of each segment's row
    of_segments: list[slice]
    of_entries: list[slice]
    buffers: stream.Buffers
    edges: Tensor | None = None  # where some are dropped: their numbers, the share and the key
    rate: float = 0.0
    key: Tensor | None = None

    @classmethod
    def of(cls, indptr: Tensor, scale: Tensor) -> Blocks:
        """The blocks of a CSR, made on the device of its offsets and of the N scales."""
        pieces, row = cuda.Segments.cut(indptr)
        # A segment that begins among these entries ends at most a segment later, so a block never overflows.
        number = pieces.start // (stream.BLOCK - SEGMENT)
        order = (number * (2 * SEGMENT) - (pieces.end - pieces.start)).argsort(stable=True)
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

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.segments.tensors, self.scale, *self.buffers.tensors]

    def pieces(self, neighbours: Tensor, scale: Tensor) -> Iterator[cuda.Piece]:
        """Each block in turn, with the entries that are left and their weights."""
        held, segments = self.buffers, self.segments
        incoming = held.blocks([neighbours] if self.edges is None else [neighbours, self.edges], self.of_entries)
        for at, (numbers, *edges) in zip(self.of_segments, incoming, strict=True):
            whole = cuda.Piece(segments.start[at], segments.end[at], segments.target[at], numbers, scale)
            thinned = whole._replace(end=held.end[at], neighbours=held.neighbours, weights=held.weights)
            cuda.fill(thinned, whole, edges[0] if edges else None, self.rate, self.key, self.scale[at])
            yield thinned


def product(
    blocks: Blocks,
    neighbours: Tensor,
    scale: Tensor,
    x_ND: Tensor,
    addend_ND: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """cuda.product, for neighbours in the host's memory and N scales in the place of 2 E weights."""
    return cuda.sums(blocks.pieces(neighbours, scale), blocks.segments, x_ND, addend_ND, dtype)


def thin(
    blocks: Blocks, neighbours: Tensor, scale: Tensor, edges: Tensor, rate: float, key: Tensor
) -> tuple[Blocks, Tensor, Tensor]:
    """What cuda.thin gives, except that nothing is done yet: each product decides again which edges a key keeps."""
    return replace(blocks, edges=edges, rate=rate, key=key), neighbours, scale
