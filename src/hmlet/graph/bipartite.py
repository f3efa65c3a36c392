"""The bipartite graph of the training interactions: Â = D^-1/2 A D^-1/2 as a CSR over users and items.

Nodes are numbered users first: user u is node u, item i is node U + i. Every undirected edge is stored
twice, in its user's row and in its item's row, with the same edge number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hmlet.data import Csr, Dataset
from hmlet.errors import DataError
from hmlet.graph.ordering import stable_order
from hmlet.system.spelling import option

MAX_EDGES = 2**30 - 1  # both directions of each are numbered by 32-bit offsets


@dataclass(frozen=True)
class Sizes:
    """How large a data set is, and the graph of its training part."""

    users: int
    items: int
    edges: int  # training interactions

    @property
    def nodes(self) -> int:
        return self.users + self.items

    @classmethod
    def of(cls, data: Dataset) -> Sizes:
        return cls(data.n_users, data.n_items, data.count("train"))


@dataclass(frozen=True, eq=False)
class Graph:
    """A symmetric bipartite graph: for node n, neighbours[indptr[n]:indptr[n + 1]], ascending."""

    n_users: int
    n_items: int
    indptr: npt.NDArray[np.int64]
    neighbours: npt.NDArray[np.int32]
    edges: npt.NDArray[np.int32]  # the undirected edge's number, at both of its ends

    @property
    def n_nodes(self) -> int:
        return self.n_users + self.n_items

    @property
    def n_edges(self) -> int:
        """How many undirected edges there are; the CSR has twice as many entries."""
        return len(self.neighbours) // 2

    @cached_property
    def degree(self) -> npt.NDArray[np.int64]:
        return np.diff(self.indptr)

    def scale(self, self_loops: bool = False) -> npt.NDArray[np.float32]:
        """d^-1/2 of each node (0 where d is 0): Â_nm = scale_n · scale_m. With self-loops d counts the node itself."""
        degree = self.degree + int(self_loops)
        with np.errstate(divide="ignore"):
            return np.where(degree > 0, degree.astype(np.float64) ** -0.5, 0.0).astype(np.float32)

    @classmethod
    def from_csr(cls, users: Csr, n_items: int) -> Graph:
        """The graph of each user's items: the users' rows, and the items' rows behind them."""
        n_users, n_edges = len(users.indptr) - 1, len(users.items)
        require_edges(n_edges)
        degree = np.bincount(users.items, minlength=n_items)
        indptr = np.concatenate([users.indptr, n_edges + np.cumsum(degree)])
        by_item = stable_order(users.items)  # is the edge number, and keeps each item's users ascending
        owner = np.repeat(np.arange(n_users, dtype=np.int32), np.diff(users.indptr))
        neighbours = np.empty(2 * n_edges, dtype=np.int32)
        np.add(users.items, n_users, out=neighbours[:n_edges], casting="unsafe")
        np.take(owner, by_item, out=neighbours[n_edges:])
        edges = np.empty(2 * n_edges, dtype=np.int32)
        edges[:n_edges] = np.arange(n_edges, dtype=np.int32)
        edges[n_edges:] = by_item
        return cls(n_users, n_items, indptr, neighbours, edges)


def require_edges(count: int) -> None:
    """Refuse more edges than a graph can have."""
    if count > MAX_EDGES:
        raise DataError(
            f"{count:,} training interactions exceed the graph's limit of {MAX_EDGES:,} edges",
            f"prepare fewer, with a higher {option('min_rating')} or {option('core')}",
        )


def training_graph(data: Dataset) -> Graph:
    """The graph of a data set's training part; nothing of the other parts enters it."""
    return Graph.from_csr(data.csr("train"), data.n_items)
