"""A graph as the operator that a model's layers are propagated by."""

from __future__ import annotations

import torch

from hmlet.graph.bipartite import Graph
from hmlet.graph.kernels import Operator, build_operator


def propagator(
    graph: Graph,
    device: torch.device,
    *,
    self_loops: bool = False,
    precision: str = "float32",
) -> Operator:
    """Â of a graph on a device: normalised with self-loops or without, propagated in float32 or bfloat16."""
    return build_operator(
        graph.indptr,
        graph.neighbours,
        graph.edges,
        graph.scale(self_loops),
        device,
        self_loops=self_loops,
        storage=torch.bfloat16 if precision == "bfloat16" else None,
    )
