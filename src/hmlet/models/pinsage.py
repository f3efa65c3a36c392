"""PinSage (Ying et al., KDD '18) on id embeddings: convolutions over neighbourhoods that random walks choose.

    n_u = Σ_{v ∈ N(u)} α_uv ReLU(Q h_v + q),   h_u ← norm(ReLU(W [h_u ‖ n_u] + w)),   factor = G₂ ReLU(G₁ h + g)

N(u) are the T nodes that short walks from u visit most often, and α_uv is v's share of those visits.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hmlet.graph import Graph
from hmlet.models.base import GraphModelConfig, Joined, Layers, Model, NodeTensor, Pass, Product, glorot
from hmlet.system.section import Depth


class PinSageConfig(GraphModelConfig):
    """PinSage: convolutions over importance-weighted neighbourhoods that random walks choose."""

    family: ClassVar[str] = "pinsage"
    name: Literal["pinsage"] = "pinsage"
    layers: Depth = 2
    """K, how many times embeddings are propagated."""
    neighbours: PositiveInt = 20
    """T, how many of the most visited nodes form a neighbourhood."""
    walks: PositiveInt = 50
    """Random walks that start at each node."""
    walk_length: PositiveInt = 4
    """Steps of a random walk."""

    @property
    def depth(self) -> int:
        return 1  # of all convolutions only the result is a layer


class PinSage(Model):
    """Neighbourhoods are drawn once, when the model is made, and travel with its state."""

    Config = PinSageConfig
    config: PinSageConfig
    propagated = None  # its neighbourhoods are its own
    joined = Joined("last")

    neighbours_NT: Tensor
    importance_NT: Tensor

    def __init__(self, config: PinSageConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        size = config.embedding_size
        seed = int(torch.randint(2**62, (1,), generator=generator))
        neighbours_NT, importance_NT = neighbourhoods(graph, config, np.random.default_rng(seed))
        self.register_buffer("neighbours_NT", torch.from_numpy(neighbours_NT))
        self.register_buffer("importance_NT", torch.from_numpy(importance_NT))
        self.near = nn.ParameterList(glorot(size, size, generator) for _ in range(config.layers))
        self.near_bias = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in range(config.layers))
        self.join = nn.ParameterList(glorot(2 * size, size, generator) for _ in range(config.layers))
        self.join_bias = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in range(config.layers))
        self.final = nn.ParameterList([glorot(size, size, generator), glorot(size, size, generator)])
        self.final_bias = nn.Parameter(torch.zeros(size))

    def propagate(self, product: Product, how: Pass) -> Layers:
        rows, columns, n_nodes = how.ranks.rows, how.ranks.columns, len(self.embedding)
        hidden_MD: Tensor = rows(self.embedding)
        for near, near_bias, join, join_bias in zip(self.near, self.near_bias, self.join, self.join_bias, strict=True):
            message_ND = columns(torch.relu(torch.addmm(near_bias, hidden_MD, near)), n_nodes)
            pooled_ND = F.embedding_bag(
                self.neighbours_NT, message_ND, mode="sum", per_sample_weights=self.importance_NT.to(message_ND.dtype)
            )
            joined_MD = torch.relu(torch.addmm(join_bias, torch.cat([hidden_MD, rows(pooled_ND)], dim=1), join))
            hidden_MD = F.normalize(joined_MD, dim=1)
        factor_MD = torch.relu(torch.addmm(self.final_bias, hidden_MD, self.final[0])) @ self.final[1]
        return self.readout([self.embedding, columns(factor_MD, n_nodes)], how)

    def node_tensors(self, n_users: int, n_items: int) -> dict[str, NodeTensor]:
        drawn = NodeTensor((n_users + n_items, self.config.neighbours), redrawn=True)
        return super().node_tensors(n_users, n_items) | {"neighbours_NT": drawn, "importance_NT": drawn}


def neighbourhoods(
    graph: Graph, config: PinSageConfig, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Each node's T most visited nodes and their shares of those visits: N × T each, unused places with weight 0.

    All walks take a step together. A node without edges has no neighbourhood. Ties go to the smaller node.
    """
    n_nodes, top = graph.n_nodes, config.neighbours
    start = np.repeat(np.flatnonzero(graph.degree > 0), config.walks)
    at, visits = start, []
    for _ in range(config.walk_length):
        step = (rng.random(len(at)) * graph.degree[at]).astype(np.int64)
        at = graph.neighbours[graph.indptr[at] + step].astype(np.int64)
        visits.append(start * n_nodes + at)
    pair, count = np.unique(np.concatenate(visits), return_counts=True)
    origin, visited = pair // n_nodes, pair % n_nodes
    pair_is_other = origin != visited
    origin, visited, count = origin[pair_is_other], visited[pair_is_other], count[pair_is_other]
    order = np.lexsort((visited, -count, origin))
    origin, visited, count = origin[order], visited[order], count[order]
    first = np.searchsorted(origin, np.arange(n_nodes))
    rank = np.arange(len(origin)) - first[origin]
    kept = rank < top
    neighbours_NT = np.zeros((n_nodes, top), dtype=np.int64)
    importance_NT = np.zeros((n_nodes, top), dtype=np.float64)
    neighbours_NT[origin[kept], rank[kept]] = visited[kept]
    importance_NT[origin[kept], rank[kept]] = count[kept]
    total_N1 = importance_NT.sum(axis=1, keepdims=True)
    np.divide(importance_NT, total_N1, out=importance_NT, where=total_N1 > 0)
    return neighbours_NT, importance_NT.astype(np.float32)
