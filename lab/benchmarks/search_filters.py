"""Settings of the item-graph filters, ChebyCF and GF-CF, on the held-out tenth of a benchmark's training part.

    python -m lab.benchmarks.search_filters --data gowalla --out lab/results/board/filters_gowalla.jsonl

A run would store W for every point. Here a sample of users is filtered instead: the products with R̃ are made once for
every power β of the degrees, and all other settings are sums of them. So a grid takes minutes on idle cores and
seconds on a GPU. A line of JSON says what each point is worth to these users, by the split that
`python -m lab.board --selection` makes; the test part is never read. The best points are variants of the board.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.graph import propagator, training_graph
from hmlet.models.chebycf import coefficients
from hmlet.models.spectral_filter import leading_vectors
from hmlet.ranking.evaluation import Membership
from hmlet.ranking.metrics import per_user
from hmlet.training.loop import choose_device
from lab.board.splits import selection_split

POWERS = (0.1, 0.2, 0.3, 0.4, 0.5)
FLATNESS = (1.0, 1.5, 3.0, 8.0)
ALPHA = (0.0, 0.1, 0.2, 0.4)
VECTORS = (64, 128, 256, 512)
ORDER = 8
AT_ONCE = 500  # users that are filtered together
K = 20
Point = tuple[tuple[str, object], ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--users", type=int, default=2000, help="how many users to sample")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = selection_split(load(options.data))
    found = search(data, options.users, choose_device(options.device))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", encoding="utf-8") as file:
        for point, values in sorted(found.items(), key=lambda each: -each[1]["ndcg"]):
            about = {"data": data.name, "fingerprint": data.fingerprint, "users": options.users}
            file.write(json.dumps({**about, "point": dict(point), "valid": values}) + "\n")


def search(data: Dataset, count: int, device: torch.device) -> dict[Point, dict[str, float]]:
    """Mean metrics of every point over a sample of the users with a held-out item."""
    held_out = data.csr("valid")
    users = np.flatnonzero(held_out.counts > 0)
    users = np.sort(np.random.default_rng(0).permutation(users)[:count])
    relevant, seen = Membership(held_out, data.n_items, device), data.csr("train")
    collected: dict[Point, list[dict[str, Tensor]]] = {}
    filters = Filters(data, device)
    for start in range(0, len(users), AT_ONCE):
        block = users[start : start + AT_ONCE]
        users_B = torch.from_numpy(block).to(device)
        rows = torch.from_numpy(np.repeat(np.arange(len(block)), seen.counts[block])).to(device)
        items = torch.from_numpy(np.concatenate([seen.row(user) for user in block]).astype(np.int64)).to(device)
        for point, scores_IB in filters.points(rows, items):
            scores_IB[items, rows] = float("-inf")
            best_BK = scores_IB.T.contiguous().topk(K, dim=1).indices
            metrics = per_user(relevant(users_B, best_BK), relevant.counts[users_B], K)
            collected.setdefault(point, []).append({name: metrics[name] for name in ("ndcg", "recall")})
    return {
        point: {name: float(torch.cat([each[name] for each in blocks]).mean()) for name in ("ndcg", "recall")}
        for point, blocks in collected.items()
    }


class Filters:
    """The graph of a data set, its vectors, and every point's scores for a block of users."""

    def __init__(self, data: Dataset, device: torch.device) -> None:
        graph = training_graph(data)
        self.n_users, self.n_nodes = graph.n_users, graph.n_nodes
        self.product = propagator(graph, device).product
        self.vectors_ID = leading_vectors(propagator(graph, device).product, graph, max(VECTORS), device, seed=1)
        self.degree_I1 = (
            torch.from_numpy(graph.degree[graph.n_users :].astype(np.float32)).to(device).clamp_min(1.0)[:, None]
        )

    def gram(self, x_IB: Tensor) -> Tensor:
        """R̃ᵀR̃ x."""
        x_NB = torch.cat([x_IB.new_zeros(self.n_users, x_IB.shape[1]), x_IB])
        return self.product(self.product(x_NB))[self.n_users :]

    def points(self, rows: Tensor, items: Tensor) -> Iterator[tuple[Point, Tensor]]:
        """Each point and the scores of all items for the users whose history (row, item) lists."""
        plain_IB = torch.zeros(len(self.degree_I1), int(rows.max()) + 1, device=rows.device)
        plain_IB[items, rows] = 1.0
        linear_IB = self.gram(plain_IB)
        for power in POWERS:
            before_I1, after_I1 = self.degree_I1**-power, self.degree_I1**power
            now_IB = plain_IB * before_I1
            bases = [now_IB, now_IB - 2.0 * self.gram(now_IB)]
            while len(bases) <= ORDER:
                bases.append(2.0 * (bases[-1] - 2.0 * self.gram(bases[-1])) - bases[-2])
            passed = {
                size: self.vectors_ID[:, :size] @ (self.vectors_ID[:, :size].T @ now_IB) * after_I1 for size in VECTORS
            }
            for flatness in FLATNESS:
                weights = coefficients(ORDER, flatness)
                smooth_IB = sum(float(weight) * each for weight, each in zip(weights, bases, strict=True)) * after_I1
                for size, alpha in itertools.product(VECTORS, ALPHA):
                    if alpha or size == VECTORS[0]:
                        settings = {"flatness": flatness, "vectors": size, "alpha": alpha, "degree_power": power}
                        yield (("model", "cheby-cf"), *settings.items()), smooth_IB + alpha * passed[size]
            if power == 0.5:
                for size, alpha in itertools.product(VECTORS, ALPHA):
                    if alpha or size == VECTORS[0]:
                        yield (
                            (("model", "gf-cf"), ("vectors", size), ("alpha", alpha)),
                            linear_IB + alpha * passed[size],
                        )


if __name__ == "__main__":
    main()
