"""What the item-item models share: W, solved once from the interactions, whole or sparse.

score(u, j) = Σ W_ij over the training items i of user u

Of each item i the largest T of the weights W_ij are kept: the items that it speaks for most.

Legend: U users, I items, N nodes, B items of a block, T kept weights of an item.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from hmlet.data import Csr
from hmlet.graph import Graph
from hmlet.models.base import ItemWeighted, ItemWeights, Layers, Model, ModelConfig, NodeTensor, Pass, Product, Solved

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WHOLE_ITEMS = 16_384  # up to this many items every weight is kept: 1 GiB
TRUNCATED_TO = 500  # weights of an item that are kept beyond that
DENSE_SHARE = 16  # W is sparse if less than 1 / 16 is kept: adding a sparse entry takes about 16 times as long
BLOCK_BYTES = 64 << 20  # of the rows of W that are made together


class ItemItemConfig(ModelConfig):
    """What every item-item model has."""

    solved: ClassVar[bool] = True

    neighbours: Annotated[int, Field(ge=0)] = 0
    """T, how many weights of an item are kept, the largest ones; 0 keeps all up to 16,384 items and 500 beyond."""

    def kept(self, n_items: int) -> int:
        """T for a number of items."""
        return min(n_items, self.neighbours or (n_items if n_items <= WHOLE_ITEMS else TRUNCATED_TO))

    def sparse(self, n_items: int) -> bool:
        return self.kept(n_items) * DENSE_SHARE < n_items


class ItemItem(Model, Solved, ItemWeighted):
    """A model that is W: it has nothing to propagate, and nothing has a gradient."""

    by_target: ClassVar[bool] = False  # whether the T weights *for* each item are kept instead; W is symmetric then
    config: ItemItemConfig
    values: Tensor
    items: Tensor
    offsets: Tensor

    def __init__(self, config: ItemItemConfig, graph: Graph, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self.config, self.n_users, self.n_items = config, graph.n_users, graph.n_items
        self.register_buffer("embedding", torch.empty(graph.n_nodes, 0), persistent=False)  # nodes have none
        kinds = {"values": torch.float32, "items": torch.int32, "offsets": torch.int64}
        for name, tensor in self.node_tensors(graph.n_users, graph.n_items).items():
            self.register_buffer(name, torch.zeros(tensor.shape, dtype=kinds[name]))

    def propagate(self, product: Product, how: Pass) -> Layers:
        return Layers((), self.embedding, self.n_users)

    def item_weights(self) -> ItemWeights:
        return ItemWeights(self.values, self.items, self.offsets)

    # -- solving --------------------------------------------------------------------------------------------------

    @abstractmethod
    def rows(self, interactions: csr_matrix) -> Iterator[Tensor]:
        """The rows of W from the first to the last, in blocks: B × I each."""

    def solve(self, train: Csr) -> float:
        """Make W; the same whenever it is called."""
        from scipy.sparse import csr_matrix, vstack  # here, because every command imports this module

        ones = np.ones(len(train.items), dtype=np.float32)
        interactions = csr_matrix((ones, train.items, train.indptr), shape=(self.n_users, self.n_items))
        kept, sparse = self.config.kept(self.n_items), self.config.sparse(self.n_items)
        found: list[csr_matrix] = []
        start = 0
        for rows_BI in self.rows(interactions):
            block = slice(start, start + len(rows_BI))
            start = block.stop
            if sparse or kept < self.n_items:
                chosen_BT = rows_BI.abs().topk(kept, dim=1, sorted=False).indices.sort(dim=1).values
                values_BT = rows_BI.gather(1, chosen_BT)
                if sparse:
                    found.append(_csr(values_BT, chosen_BT, self.n_items))
                    continue
                rows_BI = torch.zeros_like(rows_BI).scatter_(1, chosen_BT, values_BT)
            (self.values.T if self.by_target else self.values)[block] = rows_BI
        if sparse:
            weights = vstack(found, format="csr")
            self._store(weights.T.tocsr() if self.by_target else weights)
        return 0.0

    def _store(self, weights: csr_matrix) -> None:
        self.values.copy_(torch.from_numpy(weights.data))
        self.items.copy_(torch.from_numpy(weights.indices))
        self.offsets.copy_(torch.from_numpy(weights.indptr))

    def peak_bytes(self, n_edges: int) -> int:
        """The interactions by user and by item, a block of rows with what chooses among them, and sparse rows twice."""
        return 2 * 12 * n_edges + 4 * BLOCK_BYTES + 2 * 8 * len(self.items)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def node_tensors(self, n_users: int, n_items: int) -> dict[str, NodeTensor]:
        shapes: dict[str, tuple[int, ...]] = {"values": (n_items, n_items), "items": (0,), "offsets": (0,)}
        if self.config.sparse(n_items):
            weights = (n_items * self.config.kept(n_items),)
            shapes = {"values": weights, "items": weights, "offsets": (n_items + 1,)}
        return {name: NodeTensor(shape, "items") for name, shape in shapes.items()}


def blocks(n_items: int, length: int | None = None) -> Iterator[slice]:
    """Slices of the items, whose rows of W, or of another `length`, take BLOCK_BYTES each."""
    size = max(1, BLOCK_BYTES // (4 * max(1, n_items if length is None else length)))
    return (slice(start, min(start + size, n_items)) for start in range(0, n_items, size))


def _csr(values_BT: Tensor, items_BT: Tensor, n_items: int) -> csr_matrix:
    """Rows with T entries each, as SciPy has them."""
    from scipy.sparse import csr_matrix

    rows, kept = values_BT.shape
    values, items = (each.cpu().numpy().ravel() for each in (values_BT, items_BT))
    return csr_matrix((values, items, np.arange(0, rows * kept + 1, kept)), shape=(rows, n_items))
