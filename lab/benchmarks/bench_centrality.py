"""Exact betweenness and closeness of a training graph: ours, and networkit's and igraph's from a sample of sources.

With --sources N a run of N sources is timed and the time of all of them inferred: every source costs the same work.

    python lab/benchmarks/bench_centrality.py --dataset gowalla --device cuda --json
    python lab/benchmarks/bench_centrality.py --dataset gowalla --sources 2048 --peers --json
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from harness import hardware, parsed, publish

from hmlet.data.catalog import load
from hmlet.graph import Graph, training_graph
from hmlet.graph.centrality import path_sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--mirror", default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--block", type=int, default=None, help="sources at once")
    parser.add_argument("--sources", type=int, default=None, help="time a sample of the sources only")
    parser.add_argument("--peers", action="store_true", help="time networkit and igraph besides, where installed")
    options = parsed(parser)
    device = torch.device(options.device)
    graph = training_graph(load(options.dataset, mirror=options.mirror))
    sources = _sample(graph.n_nodes, options.sources)
    result: dict[str, Any] = {"dataset": options.dataset, "nodes": graph.n_nodes, "edges": graph.n_edges}
    result |= {"sources": len(sources), "hardware": hardware(device)}
    path_sums(graph, sources[: 2 * (options.block or 32)], device=device, block=options.block)  # warm up and compile
    wall, cpu = time.perf_counter(), time.process_time()
    path_sums(graph, sources, device=device, block=options.block)  # ends with a copy to the CPU: nothing is pending
    scale = graph.n_nodes / len(sources)
    result["seconds"] = (time.perf_counter() - wall) * scale
    result["cpu_seconds"] = (time.process_time() - cpu) * scale
    result["inferred_from_a_sample"] = scale > 1
    if options.peers:
        result |= _networkit(graph) | _igraph(graph)
    publish("centrality", result, options.json, options.record)


def _sample(n_nodes: int, wanted: int | None) -> np.ndarray:
    if wanted is None or wanted >= n_nodes:
        return np.arange(n_nodes)
    return np.sort(np.random.default_rng(0).choice(n_nodes, wanted, replace=False))


def _ends(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    users = np.repeat(np.arange(graph.n_users), graph.degree[: graph.n_users])
    return users, graph.neighbours[: graph.n_edges].astype(np.int64)


def _networkit(graph: Graph, sources: int = 64) -> dict[str, Any]:
    """networkit's Brandes over a few sources (betweenness alone), in CPU seconds for all."""
    try:
        import networkit
    except ImportError:
        return {}
    other = networkit.Graph(graph.n_nodes)
    for user, item in zip(*_ends(graph), strict=True):
        other.addEdge(int(user), int(item))
    began = time.process_time()
    networkit.centrality.EstimateBetweenness(other, sources, normalized=True, parallel=False).run()
    return {"networkit_cpu_seconds": (time.process_time() - began) * graph.n_nodes / sources}


def _igraph(graph: Graph, sources: int = 64) -> dict[str, Any]:
    """igraph's Brandes over a few sources (betweenness alone), in CPU seconds for all."""
    try:
        import igraph
    except ImportError:
        return {}
    other = igraph.Graph(graph.n_nodes, list(zip(*(end.tolist() for end in _ends(graph)), strict=True)))
    began = time.process_time()
    other.betweenness(sources=_sample(graph.n_nodes, sources).tolist())
    return {"igraph_cpu_seconds": (time.process_time() - began) * graph.n_nodes / sources}


if __name__ == "__main__":
    main()
