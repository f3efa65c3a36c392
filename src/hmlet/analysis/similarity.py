"""How alike a node and its direct neighbours are, by the cosine of their final embeddings.

Shapes: N nodes, F factor columns, E undirected edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.graph import Graph
from hmlet.runs.choices import CLASSES, Codes

Floats = npt.NDArray[np.float64]
EDGE_BLOCK = 1 << 16  # edges at a time: their factors, not the whole table's, have to fit memory twice


@dataclass(frozen=True)
class ClassCosine:
    """A class's nodes with neighbours: how many, and the averages of their means and of their variances.

    The paper does not say what its variance is over; its text ("the neighbours of a node consist of diversified
    nodes") means the neighbours of one node, which is `variance`; over the nodes of a class it is `between_nodes`.
    """

    nodes: int
    mean: float | None
    variance: float | None
    between_nodes: float | None  # the variance of the nodes' means


def edge_cosine(graph: Graph, users_UF: Tensor, items_IF: Tensor) -> Floats:
    """The cosine between the ends of each undirected edge, by its number; 0 where an embedding is all zeros."""
    users_UF = torch.nn.functional.normalize(users_UF.float(), dim=1)
    items_IF = torch.nn.functional.normalize(items_IF.float(), dim=1)
    user_E = torch.from_numpy(np.repeat(np.arange(graph.n_users), graph.degree[: graph.n_users]))
    item_E = torch.from_numpy(graph.neighbours[: graph.n_edges] - graph.n_users).long()
    cosine = np.empty(graph.n_edges)
    for start in range(0, graph.n_edges, EDGE_BLOCK):
        part = slice(start, start + EDGE_BLOCK)
        cosine[part] = (users_UF[user_E[part]] * items_IF[item_E[part]]).sum(1, dtype=torch.float64).numpy()
    return cosine


def neighbour_cosine(graph: Graph, cosine_E: Floats) -> tuple[Floats, Floats]:
    """Per node, mean and (population) variance of the cosine to its neighbours; NaN for a node without any."""
    node = np.repeat(np.arange(graph.n_nodes), graph.degree)
    value = cosine_E[graph.edges]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(node, weights=value, minlength=graph.n_nodes) / graph.degree
        # The mean goes first: Σx² - n x̄² would lose every digit where the neighbours are nearly alike.
        spread = np.bincount(node, weights=(value - mean[node]) ** 2, minlength=graph.n_nodes) / graph.degree
    return mean, spread


def class_cosine(classes: Codes, mean: Floats, variance: Floats) -> dict[str, ClassCosine]:
    """Each class's cosine to its neighbours, from every node's mean and variance."""
    found = {}
    for at, name in enumerate(CLASSES):
        chosen = (classes == at) & np.isfinite(mean)
        some = bool(chosen.any())
        found[name] = ClassCosine(
            nodes=int(chosen.sum()),
            mean=float(mean[chosen].mean()) if some else None,
            variance=float(variance[chosen].mean()) if some else None,
            between_nodes=float(mean[chosen].var()) if some else None,
        )
    return found
