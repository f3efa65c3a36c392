"""The training graph, the products with its operator, and what its nodes are central to."""

from hmlet.graph.bipartite import MAX_EDGES, Graph, Sizes, require_edges, training_graph
from hmlet.graph.operator import propagator

__all__ = ["MAX_EDGES", "Graph", "Sizes", "propagator", "require_edges", "training_graph"]
