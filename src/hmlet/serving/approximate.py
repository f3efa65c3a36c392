"""Approximate search: an HNSW graph proposes items, exact scores rank them. What it misses is measured at the start."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hmlet.data import Csr
from hmlet.errors import MissingExtra
from hmlet.ranking.top_k import NO_ITEM, top_k
from hmlet.serving.schemas import Search
from hmlet.system.spelling import option

MEASURED_USERS = 200
MEASURED_K = 20  # of Search.recall_at_20
# Neighbours of a node. Threads build the graph in no fixed order; with few neighbours, a bad order misses items.
CONNECTIVITY = 32
EXPANSION = 256  # nodes that a search keeps in view; more finds more and takes longer


class Approximate:
    """An index over the item factors, by inner product."""

    def __init__(self, factors: tuple[Tensor, Tensor], seen: Csr) -> None:
        try:
            from usearch.index import Index
        except ImportError as error:
            raise MissingExtra(option("approximate"), "usearch", "serve") from error
        self.users_UF, self.items_IF = factors
        self.seen = seen
        self.index = Index(
            ndim=self.items_IF.shape[1],
            metric="ip",
            dtype="f32",
            connectivity=CONNECTIVITY,
            expansion_search=EXPANSION,
        )
        self.index.add(np.arange(len(self.items_IF)), self.items_IF.numpy())
        self.recall = self._measure()

    def top_k(self, user: int, k: int) -> tuple[list[int], list[float]]:
        """The k best of the proposed items that the user has not seen, and their exact scores."""
        own = self.seen.row(user)
        wanted = min(len(self.items_IF), 2 * k + len(own) + 8)
        proposed = self.index.search(self.users_UF[user].numpy(), wanted).keys.astype(np.int64)
        candidates = torch.from_numpy(np.setdiff1d(proposed, own))
        ranked = top_k(self.users_UF[user][None], self.items_IF[candidates], k)
        return candidates[ranked.items_BK[0]].tolist(), ranked.scores_BK[0].tolist()

    def _measure(self) -> float:
        """The share of the exact top-20 that is found, over users spread evenly."""
        users = np.unique(np.linspace(0, len(self.users_UF) - 1, MEASURED_USERS).astype(np.int64))
        hits = total = 0
        for user in map(int, users):
            own = torch.from_numpy(self.seen.row(user).astype(np.int64))
            exact = top_k(self.users_UF[user][None], self.items_IF, MEASURED_K, (torch.zeros_like(own), own))
            best = {item for item in exact.items_BK[0].tolist() if item != NO_ITEM}
            hits += len(best.intersection(self.top_k(user, MEASURED_K)[0]))
            total += len(best)
        return hits / total if total else 1.0

    def describe(self) -> Search:
        return Search(
            kind="approximate",
            index="HNSW (usearch)",
            recall_at_20=self.recall,
            measured_on_users=min(MEASURED_USERS, len(self.users_UF)),
        )
