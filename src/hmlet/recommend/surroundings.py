"""How a node is reached through the training graph: how many nodes are how far away, and the strongest two-step paths.

Nodes are numbered users first, as in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmlet.graph import Graph

Nodes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Paths:
    """Nodes two steps away, the nodes between, and which of them are joined."""

    between: list[int]
    far: list[int]
    strength: list[float]  # of each far node: its entry of Â², over all nodes between
    joined: list[tuple[int, int]]  # positions in `between` and `far`


def reach(graph: Graph, node: int, steps: int) -> list[int]:
    """How many nodes lie exactly 1, 2, … steps away from a node."""
    seen = np.zeros(graph.n_nodes, dtype=np.bool_)
    seen[node] = True
    frontier, counts = np.array([node]), []
    for _ in range(steps):
        found = np.zeros_like(seen)
        found[_neighbours(graph, frontier)[1]] = True
        frontier = np.flatnonzero(found & ~seen)
        seen[frontier] = True
        counts.append(len(frontier))
    return counts


def paths(graph: Graph, node: int, between: int, far: int) -> Paths:
    """The strongest two-step paths from a node: what Â² brings it from each other node of its own side.

    Of the nodes between, those are kept that carry most of it.
    """
    middle = graph.neighbours[graph.indptr[node] : graph.indptr[node + 1]].astype(np.int64)
    start, end = _neighbours(graph, middle)
    degree = graph.degree
    weight = 1 / (degree[start] * np.sqrt(np.maximum(degree[node], 1) * degree[end]))
    total = np.bincount(end, weight, minlength=graph.n_nodes)
    total[node] = 0.0
    order = np.argsort(-total, kind="stable")[:far]
    ends = order[total[order] > 0]
    chosen = np.isin(end, ends)
    carried = np.bincount(start[chosen], weight[chosen], minlength=graph.n_nodes)
    order = np.argsort(-carried, kind="stable")[:between]
    kept = order[carried[order] > 0]
    joins = [
        (at, to)
        for at, one in enumerate(kept.tolist())
        for to, other in enumerate(ends.tolist())
        if ((start == one) & (end == other)).any()
    ]
    return Paths(kept.tolist(), ends.tolist(), total[ends].tolist(), joins)


def _neighbours(graph: Graph, nodes: Nodes) -> tuple[Nodes, Nodes]:
    """The edges that leave some nodes: where they start and where they end."""
    counts = graph.degree[nodes]
    first = np.repeat(graph.indptr[nodes] - (np.cumsum(counts) - counts), counts)
    return np.repeat(nodes, counts), graph.neighbours[first + np.arange(len(first))].astype(np.int64)
