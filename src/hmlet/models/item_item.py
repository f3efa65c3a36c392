"""What the item-item models share: W, solved once from the interactions, whole or sparse.

score(u, j) = Σ W_ij over the training items i of user u

For each item j the largest T of the weights W_ij are kept: the items that speak most for it.

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
from hmlet.graph.layers import Layers
from hmlet.models.base import ItemWeights, Model, ModelConfig, Pass, Product
from hmlet.system.ranks import Ranks

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WHOLE_ITEMS = 16_384  # up to this many items every weight is kept: 1 GiB
TRUNCATED_TO = 500  # weights of an item that are kept beyond that
DENSE_SHARE = 16  # W is sparse if less than 1 / 16 is kept: adding a sparse entry takes about 16 times as long
BLOCK_BYTES = 64 << 20  # of the columns of W that are made together


class ItemItemConfig(ModelConfig):
    """What every item-item model has."""

    solved: ClassVar[bool] = True
    losses: ClassVar[tuple[str, ...] | None] = ()
    splits: ClassVar[bool] = False

    neighbours: Annotated[int, Field(ge=0)] = 0
    """T, how many weights of an item are kept, the largest ones; 0 keeps all up to 16,384 items and 500 beyond."""

    def kept(self, n_items: int) -> int:
        """T for a number of items."""
        return min(n_items, self.neighbours or (n_items if n_items <= WHOLE_ITEMS else TRUNCATED_TO))

    def sparse(self, n_items: int) -> bool:
        return self.kept(n_items) * DENSE_SHARE < n_items

    def lighter(self) -> list[list[str]]:
        now = self.neighbours or TRUNCATED_TO + 1
        return [[f"model.neighbours={T}" for T in (TRUNCATED_TO, 200, 100, 50) if now > T]]


class ItemItem(Model):
    """A model that is W: it has nothing to propagate, and nothing has a gradient."""

    config: ItemItemConfig
    values: Tensor
    items: Tensor
    offsets: Tensor

    def __init__(self, config: ItemItemConfig, graph: Graph, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self.config, self.n_users, self.n_items = config, graph.n_users, graph.n_items
        self.register_buffer("embedding", torch.empty(graph.n_nodes, 0), persistent=False)  # nodes have none
        for name, kind in (("values", torch.float32), ("items", torch.int32), ("offsets", torch.int64)):
            self.register_buffer(name, torch.zeros(self.node_shape(name, graph.n_users, graph.n_items), dtype=kind))

    def propagate(self, product: Product, how: Pass) -> Layers:
        return Layers((), self.embedding)

    def item_weights(self) -> ItemWeights:
        return ItemWeights(self.values, self.items, self.offsets)

    # -- solving --------------------------------------------------------------------------------------------------

    @abstractmethod
    def columns(self, interactions: csr_matrix) -> Iterator[Tensor]:
        """The columns of W from the first to the last, for a block of items j at a time: B × I, W_ij at [j, i]."""

    def solve(self, train: Csr) -> float:
        """Make W; the same whenever it is called."""
        from scipy.sparse import csr_matrix  # here, because every command imports this module

        ones = np.ones(len(train.items), dtype=np.float32)
        interactions = csr_matrix((ones, train.items, train.indptr), shape=(self.n_users, self.n_items))
        kept = self.config.kept(self.n_items)
        sparse: list[csr_matrix] = []
        start = 0
        for columns_BI in self.columns(interactions):
            block = slice(start, start + len(columns_BI))
            start = block.stop
            if self.config.sparse(self.n_items):
                chosen_BT = _largest(columns_BI, kept)
                values_BT = columns_BI.gather(1, chosen_BT).cpu().numpy()
                offsets = np.arange(0, values_BT.size + 1, kept)
                sparse.append(
                    csr_matrix((values_BT.ravel(), chosen_BT.cpu().numpy().ravel(), offsets), shape=columns_BI.shape)
                )
                continue
            if kept < self.n_items:
                chosen_BT = _largest(columns_BI, kept)
                columns_BI = torch.zeros_like(columns_BI).scatter_(1, chosen_BT, columns_BI.gather(1, chosen_BT))
            self.values[:, block] = columns_BI.T
        if sparse:
            self._store(sparse)
        return 0.0

    def _store(self, columns: list[csr_matrix]) -> None:
        """Keep the columns' entries row by row."""
        from scipy.sparse import vstack

        by_row = vstack(columns, format="csr").T.tocsr()
        for mine, found in ((self.values, by_row.data), (self.items, by_row.indices), (self.offsets, by_row.indptr)):
            mine.copy_(torch.from_numpy(found))

    def solving_bytes(self, n_edges: int) -> int:
        """The interactions by user and by item, a block of columns with what chooses among them, and W twice."""
        return 2 * 12 * n_edges + 4 * BLOCK_BYTES + (2 * self.values.nbytes * 2 if len(self.offsets) else 0)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def per_node(self) -> set[str]:
        return {"values", "items", "offsets"}

    def node_shape(self, name: str, n_users: int, n_items: int) -> tuple[int, ...]:
        if not self.config.sparse(n_items):
            return (n_items, n_items) if name == "values" else (0,)
        return (n_items + 1,) if name == "offsets" else (n_items * self.config.kept(n_items),)

    def keep_columns(self, ranks: Ranks) -> Model:
        return self


def blocks(n_items: int) -> Iterator[slice]:
    """Slices of the items, whose columns of W take BLOCK_BYTES each."""
    size = max(1, BLOCK_BYTES // (4 * max(1, n_items)))
    return (slice(start, min(start + size, n_items)) for start in range(0, n_items, size))


def _largest(columns_BI: Tensor, count: int) -> Tensor:
    """Where the `count` largest magnitudes of each row are, ascending."""
    return columns_BI.abs().topk(count, dim=1, sorted=False).indices.sort(dim=1).values
