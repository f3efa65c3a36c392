"""Approximate search: an HNSW graph proposes items, exact scores rank them. What it misses is measured at the start.

The graph is built once and kept in the user's cache, never in the run: usearch trusts the content of what it loads, and
a run may come from anyone. The name of the file is a hash of the factors and of all else that the graph depends on.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.data import Csr
from hmlet.data.catalog import cache_directory
from hmlet.errors import HmletError, MissingExtra, RunError
from hmlet.ranking.top_k import NO_ITEM, top_k
from hmlet.serving.observe import LOGGER
from hmlet.serving.schemas import Search
from hmlet.system.files import replacing
from hmlet.system.spelling import option

if TYPE_CHECKING:
    from usearch.index import Index

MEASURED_USERS = 200
MEASURED_K = 20  # of Search.recall_at_20
# Neighbours of a node. Threads build the graph in no fixed order; with few neighbours, a bad order misses items.
CONNECTIVITY = 32
DIGEST = 32  # bytes of SHA-256 before the content of a kept graph
EXPANSION = 256  # nodes that a search keeps in view; more finds more and takes longer


class Approximate:
    """An index over the item factors, by inner product."""

    def __init__(self, factors: tuple[Tensor, Tensor], seen: Csr) -> None:
        self.users_UF, self.items_IF = factors
        self.seen = seen
        self.index = _index(self.items_IF.contiguous().numpy())
        self.recall = self._measure()

    def top_k(self, user: int, k: int) -> tuple[list[int], list[float]]:
        """The k best of the proposed items that the user has not seen, and their exact scores."""
        own = self.seen.row(user)
        wanted = min(len(self.items_IF), 2 * k + len(own) + 8)
        proposed = self.index.search(self.users_UF[user].numpy(), wanted).keys.astype(np.int64)
        candidates = np.setdiff1d(proposed, own)
        ranked = top_k(self.users_UF[user][None], self.items_IF[torch.from_numpy(candidates)], k)
        return candidates[ranked.items_BK[0]].tolist(), ranked.scores_BK[0].tolist()

    def _measure(self) -> float:
        """The share of the exact top-20 that is found, over users spread evenly."""
        users = np.unique(np.linspace(0, len(self.users_UF) - 1, MEASURED_USERS).astype(np.int64))
        hits = total = 0
        for user in map(int, users):
            exact = top_k(self.users_UF[user][None], self.items_IF, MEASURED_K, [self.seen.row(user)])
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


def _index(items_IF: npt.NDArray[np.float32]) -> Index:
    """The graph over these factors, from the cache or built now and kept there."""
    try:
        from usearch.index import Index
    except ImportError as error:
        raise MissingExtra(option("approximate"), "usearch", "serve") from error
    index = Index(
        ndim=items_IF.shape[1], metric="ip", dtype="f32", connectivity=CONNECTIVITY, expansion_search=EXPANSION
    )
    path = _place(items_IF)
    if (kept := _read(path)) is not None:
        index.load(kept)
        index.expansion_search = EXPANSION
        if len(index) == len(items_IF) and index.ndim == items_IF.shape[1]:
            return index
        index.reset()
    index.add(np.arange(len(items_IF)), items_IF)
    _keep(path, bytes(index.save() or b""))
    return index


def _place(items_IF: npt.NDArray[np.float32]) -> Path:
    """Where the graph over these factors is kept."""
    settings = f"usearch {version('usearch')}, {CONNECTIVITY} neighbours, {items_IF.shape}"
    name = sha256(settings.encode() + sha256(items_IF.data).digest()).hexdigest()
    return cache_directory() / "index" / f"{name}.usearch"


def _read(path: Path) -> bytes | None:
    """The content of a kept graph; None if there is none, or if it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content[DIGEST:] if sha256(content[DIGEST:]).digest() == content[:DIGEST] else None


def _keep(path: Path, content: bytes) -> None:
    """Keep a graph behind its own hash. A cache that cannot be written costs time at the next start, and no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, RunError) as temporary:
            temporary.write_bytes(sha256(content).digest() + content)
    except (HmletError, OSError) as error:
        LOGGER.warning("index not kept", extra={"fields": {"reason": str(error)}})
