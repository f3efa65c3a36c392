"""Full-ranking evaluation: ours beside a loop over users in NumPy, with equal results.

The loop is the honest one: one matrix-vector product a user, the user's training items masked, argpartition, a sort of
the k that are left, and the metrics. It ranks a sample of the users and its time for all is inferred (every user costs
the same work); ours ranks all of them. Both see the same factors: those of a finished run with --run, otherwise those
of LightGCN's propagation of random embeddings.

    python lab/benchmarks/bench_evaluation.py --dataset gowalla --dim 64 --threads 2 --json
    python lab/benchmarks/bench_evaluation.py --dataset debian --dim 16 --users 100 --repeats 1 --json     (seconds)
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import hardware, parsed, publish

from hmlet.api import Run
from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.graph import training_graph
from hmlet.graph.kernels import build_operator
from hmlet.ranking.evaluation import evaluate

METRICS = ("ndcg", "recall", "precision")
LAYERS = 3
PAUSE = 0.5  # seconds before each side: a library's threads spin for a while after their last product


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--run", type=Path, help="take the factors of a finished run on this data set")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--device", default="cpu", help="of our side; the loop runs on the CPU")
    parser.add_argument("-k", type=int, default=20)
    parser.add_argument("--users", type=int, default=1000, help="users that the loop ranks; 0 is all of them")
    parser.add_argument("--repeats", type=int, default=5, help="evaluations of each side, in turns")
    options = parsed(parser)
    device = torch.device(options.device)
    data = load(options.dataset)
    users_UF, items_IF = Run.open(options.run).factors if options.run else _propagated(data, options.dim)
    on_device = users_UF.to(device), items_IF.to(device)
    every = np.flatnonzero(data.csr("test").counts > 0)
    sample = _sample(every, options.users)
    ours, loop = [], []
    evaluate(on_device, data, "test", "train", options.k)  # libraries choose their algorithms
    for _ in range(options.repeats):
        time.sleep(PAUSE)
        began = time.perf_counter()
        found = evaluate(on_device, data, "test", "train", options.k)
        ours.append(time.perf_counter() - began)
        time.sleep(PAUSE)
        began = time.perf_counter()
        looped = numpy_loop(users_UF.numpy(), items_IF.numpy(), data, sample, options.k)
        loop.append((time.perf_counter() - began) * len(every) / len(sample))
    same = np.isin(found.users, sample)
    difference = max(float(np.abs(found.per_user[name][same] - looped[name]).max()) for name in METRICS)
    if difference > 1e-12:
        raise SystemExit(f"the two sides differ by {difference} for some user: not the same evaluation")
    result: dict[str, Any] = {"dataset": data.name, "factors": "run" if options.run else "propagated noise"}
    result |= {"dim": items_IF.shape[1], "k": options.k, "users": len(every), "items": data.n_items}
    result |= {"hardware": hardware(device), "hmlet_seconds": statistics.median(ours)}
    result |= {"numpy_loop_seconds": statistics.median(loop), "numpy_loop_users": len(sample)}
    result["loop_inferred_from_a_sample"] = len(sample) < len(every)
    result["largest_difference_of_a_users_metric"] = difference
    result["speedup_over_numpy_loop"] = result["numpy_loop_seconds"] / result["hmlet_seconds"]
    publish("evaluation", result, options.json, options.record)


def _propagated(data: Dataset, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of LightGCN's layers over random embeddings: scores spread like a model's, without training one."""
    graph = training_graph(data)
    operator = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale())
    layers = [torch.randn(graph.n_nodes, size, generator=torch.Generator().manual_seed(0))]
    for _ in range(LAYERS):
        layers.append(operator.product(layers[-1]))
    mean_ND = torch.stack(layers).mean(dim=0)
    return mean_ND[: data.n_users].contiguous(), mean_ND[data.n_users :].contiguous()


def _sample(users: np.ndarray, wanted: int) -> np.ndarray:
    if wanted == 0 or wanted >= len(users):
        return users
    return np.sort(np.random.default_rng(0).choice(users, wanted, replace=False))


def numpy_loop(
    users_UF: np.ndarray, items_IF: np.ndarray, data: Dataset, users: np.ndarray, k: int
) -> dict[str, np.ndarray]:
    """Each user's metrics, one user after another."""
    train, test = data.csr("train"), data.csr("test")
    discount = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)
    rows = []
    for user in users:
        scores = items_IF @ users_UF[user]
        scores[train.row(user)] = -np.inf
        best = np.argpartition(scores, -k)[-k:]
        best = best[np.argsort(-scores[best])]
        relevant = test.row(user)
        hits = np.isin(best, relevant)
        ndcg = (hits * discount).sum() / ideal[min(k, len(relevant)) - 1]
        rows.append((ndcg, hits.sum() / len(relevant), hits.sum() / k))
    return dict(zip(METRICS, np.array(rows).T, strict=True))


if __name__ == "__main__":
    main()
