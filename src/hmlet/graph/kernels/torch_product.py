"""The operator by PyTorch: on CPU, and on CUDA without Triton.

PyTorch's embedding_bag gathers and adds rows far faster than its sparse matrices do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from hmlet.graph.kernels import edge_hash
from hmlet.graph.kernels.operator import Operator

# 64 float32 columns are 256 bytes a row: four cache lines, and a table's tile stays in the last-level cache.
TILE = 64


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchOperator(Operator):
    """Â as a CSR on one device; a thinned one has the kept entries alone."""

    indptr: Tensor  # N + 1
    neighbours: Tensor  # one for each entry
    weights: Tensor  # scale_n scale_m of each entry
    edges: Tensor  # 2 E: the undirected edge of each entry of the whole graph

    def _held(self) -> list[Tensor]:
        return [self.indptr, self.neighbours, self.weights, self.edges]

    def weigh(self, weights_E: Tensor) -> TorchOperator:
        assert self.key is None, "edges are weighed in the whole operator"
        return replace(self, weights=weights_E.to(self.weights.dtype).index_select(0, self.edges))

    def _thin(self, rate: float, key: Tensor) -> TorchOperator:
        if self.weights.is_meta:
            neighbours, weights = _planned_compact(self.neighbours, self.weights, self.edges, rate)
            return replace(self, neighbours=neighbours, weights=weights, key=key)
        kept = torch.from_numpy(edge_hash.keeps(self.n_edges, rate, int(key))).to(self.edges.device)
        indptr, neighbours, weights = compact(
            self.indptr, self.neighbours, self.weights, kept.index_select(0, self.edges)
        )
        return replace(self, indptr=indptr, neighbours=neighbours, weights=weights.div_(1.0 - rate), key=key)

    def _sum(self, x_ND: Tensor, addend_ND: Tensor | None, dtype: torch.dtype | None) -> Tensor:
        if x_ND.is_meta:
            return planned_product(x_ND, dtype)
        y_ND = product(self.indptr, self.neighbours, self.weights, x_ND).to(dtype or x_ND.dtype)
        return y_ND if addend_ND is None else y_ND.add_(addend_ND)


def product(indptr: Tensor, neighbours: Tensor, weights: Tensor, x_ND: Tensor) -> Tensor:
    """Σ over each row's entries of weight · x[neighbour]: N × D. One thread sums a row, so it is deterministic."""
    n_columns = x_ND.shape[1]
    if n_columns <= TILE:
        return _bag(indptr, neighbours, weights, x_ND.contiguous())
    y_ND = torch.empty(len(indptr) - 1, n_columns, dtype=x_ND.dtype, device=x_ND.device)
    for start in range(0, n_columns, TILE):
        columns = slice(start, min(start + TILE, n_columns))
        y_ND[:, columns] = _bag(indptr, neighbours, weights, x_ND[:, columns].contiguous())
    return y_ND


def _bag(indptr: Tensor, neighbours: Tensor, weights: Tensor, x_ND: Tensor) -> Tensor:
    with torch.no_grad():
        return embedding_bag(
            neighbours, x_ND, indptr, mode="sum", per_sample_weights=weights.to(x_ND.dtype), include_last_offset=True
        )


def planned_product(x_ND: Tensor, dtype: torch.dtype | None) -> Tensor:
    """What `product` allocates: the result and, where there are several, a tile of x and its sums."""
    y_ND = torch.empty_like(x_ND, dtype=dtype)
    if x_ND.shape[1] > TILE:
        _tile, _bag = x_ND.new_empty(len(x_ND), TILE), x_ND.new_empty(len(x_ND), TILE)
    return y_ND


def compact(indptr: Tensor, neighbours: Tensor, weights: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The CSR of the kept entries alone: dropping edges makes the product cheaper instead of multiplying by zero."""
    where = _places(kept)
    before = torch.zeros(len(kept) + 1, dtype=indptr.dtype, device=kept.device)  # kept entries before each entry
    torch.cumsum(kept, 0, dtype=indptr.dtype, out=before[1:])
    return before.index_select(0, indptr), neighbours.index_select(0, where), weights.index_select(0, where)


def _places(kept: Tensor) -> Tensor:
    """Where a mask is true. NumPy finds that without a branch for each entry, several times as fast as PyTorch."""
    if kept.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(kept.numpy()))
    return kept.nonzero().squeeze(1)


def _planned_compact(neighbours: Tensor, weights: Tensor, edges: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """What `compact` allocates for each entry: its mask, and the kept neighbours and weights, which come back."""
    count = round(len(edges) * (1.0 - rate))
    _kept, _before = edges.new_empty(len(edges), dtype=torch.bool), torch.empty_like(edges)
    _where = edges.new_empty(count, dtype=torch.int64)
    return neighbours.new_empty(count), weights.new_empty(count)
