"""The sparse product Â x: ours beside torch.sparse and SciPy in one run, with the error against float64.

python lab/benchmarks/bench_product.py --dataset gowalla --dim 64 --json
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from harness import hardware, median_seconds, parsed, publish, relative_error

from hmlet.data.catalog import load
from hmlet.graph import training_graph
from hmlet.graph.kernels import Operator, build_operator, draw_key, reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--edge-dropout", type=float, default=0.4)
    options = parsed(parser)
    device = torch.device(options.device)
    graph = training_graph(load(options.dataset))
    operator = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale(), device)
    x_ND = torch.randn(graph.n_nodes, options.dim, generator=torch.Generator().manual_seed(0)).to(device)
    exact_ND = reference.product(operator.indptr, operator.neighbours, operator.weights, x_ND.double())
    result: dict[str, Any] = {"dataset": options.dataset, "dim": options.dim, "entries": 2 * graph.n_edges}
    result |= {"hardware": hardware(device)}
    result |= _peers(operator, x_ND, exact_ND, device)
    result["hmlet_ms"] = 1e3 * median_seconds(lambda: operator.product(x_ND), device)
    result["relative_error"] = relative_error(operator.product(x_ND), exact_ND)
    key = draw_key(torch.Generator(device).manual_seed(0), device)
    dropped = operator.drop(options.edge_dropout, key)
    result["hmlet_dropped_ms"] = 1e3 * median_seconds(lambda: dropped.product(x_ND), device)
    result["drop_ms"] = 1e3 * median_seconds(lambda: operator.drop(options.edge_dropout, key), device)
    if device.type == "cuda":
        result |= _bfloat16(graph, x_ND, exact_ND, device, options.edge_dropout, key)
    result["speedup_over_torch_coo"] = result["torch_coo_ms"] / result["hmlet_ms"]
    publish("product", result, options.json, options.record)


def _peers(operator: Operator, x_ND: torch.Tensor, exact_ND: torch.Tensor, device: torch.device) -> dict[str, Any]:
    """The same product by what the field calls."""
    size = (operator.n_nodes, operator.n_nodes)
    csr = torch.sparse_csr_tensor(operator.indptr.long(), operator.neighbours.long(), operator.weights, size)
    coo = csr.to_sparse_coo().coalesce()
    found: dict[str, Any] = {
        "torch_coo_ms": 1e3 * median_seconds(lambda: torch.sparse.mm(coo, x_ND), device, repeats=10),
        "torch_coo_relative_error": relative_error(torch.sparse.mm(coo, x_ND), exact_ND),
        "torch_csr_ms": 1e3 * median_seconds(lambda: csr @ x_ND, device, repeats=10),
    }
    if device.type == "cpu":
        from scipy.sparse import csr_matrix

        parts = (operator.weights.numpy(), operator.neighbours.numpy(), operator.indptr.numpy())
        matrix, dense = csr_matrix(parts, shape=size), x_ND.numpy()
        found["scipy_one_thread_ms"] = 1e3 * median_seconds(lambda: matrix @ dense, device, repeats=10)
    return found


def _bfloat16(
    graph: Any, x_ND: torch.Tensor, exact_ND: torch.Tensor, device: torch.device, rate: float, key: torch.Tensor
) -> dict[str, Any]:
    operator = build_operator(
        graph.indptr, graph.neighbours, graph.edges, graph.scale(), device, storage=torch.bfloat16
    )
    stored_ND = x_ND.bfloat16()
    seconds = median_seconds(lambda: operator.product(stored_ND), device)
    dropped = operator.drop(rate, key)
    gathered = 2 * graph.n_edges * x_ND.shape[1] * 2
    return {
        "hmlet_bf16_ms": 1e3 * seconds,
        "hmlet_bf16_gathered_TB_per_s": gathered / seconds / 1e12,
        "hmlet_bf16_relative_error": relative_error(operator.product(stored_ND), exact_ND),
        "hmlet_bf16_dropped_ms": 1e3 * median_seconds(lambda: dropped.product(stored_ND), device),
    }


if __name__ == "__main__":
    main()
