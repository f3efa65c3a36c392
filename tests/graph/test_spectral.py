"""The spectral start against an exact decomposition, and what it does where a graph has too few singular vectors."""

from __future__ import annotations

import numpy as np
import planted
import pytest
import torch

from hmlet.graph import Graph, propagator
from hmlet.graph.spectral import spectral_embedding

CPU = torch.device("cpu")


def embedding(graph: Graph, size: int, seed: int = 1) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    random_ND = torch.empty(graph.n_nodes, size).normal_(0.0, 0.1, generator=generator)
    return spectral_embedding(propagator(graph, CPU).product, graph.n_users, random_ND, generator).double().numpy()


def normalised(pairs: planted.Pairs, n_users: int, n_items: int) -> np.ndarray:
    dense = np.zeros((n_users, n_items))
    for user, item in pairs:
        dense[user, item] = 1.0
    degrees = [np.maximum(dense.sum(axis), 1.0) for axis in (1, 0)]
    return dense / np.sqrt(np.outer(*degrees))


PAIRS = planted.random_pairs(3, 60, 45, 0.12)


@pytest.mark.parametrize("size", [1, 4, 8])
def test_scores_are_those_of_the_exact_decomposition(size: int) -> None:
    """Vectors are only known up to signs and turns, but the scores that they give are not."""
    graph = planted.graph(PAIRS, 60, 45)
    left, sigma, right = np.linalg.svd(normalised(PAIRS, 60, 45))
    expected = left[:, :size] * sigma[:size] @ right[:size]
    found = embedding(graph, size)
    scores = found[:60] @ found[60:].T
    scale = (scores * expected).sum() / (expected**2).sum()
    assert np.linalg.norm(scores - scale * expected) < 0.05 * np.linalg.norm(scale * expected)


def test_it_has_the_deviation_of_the_random_start_and_orthogonal_columns() -> None:
    found = embedding(planted.graph(PAIRS, 60, 45), 8)
    assert np.sqrt((found**2).mean()) == pytest.approx(0.1, rel=0.05)
    gram = found.T @ found
    assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-3 * gram.max()


def test_one_seed_one_start() -> None:
    graph = planted.graph(PAIRS, 60, 45)
    assert np.array_equal(embedding(graph, 8), embedding(graph, 8))
    assert not np.array_equal(embedding(graph, 8), embedding(graph, 8, seed=2))


def test_columns_without_a_singular_vector_stay_random() -> None:
    """Two blocks have two singular vectors; the six columns beyond them must not be zero, or they never learn."""
    pairs = [(user, item) for user in range(6) for item in range(8) if (user + item) % 2 == 0]
    found = embedding(planted.graph(pairs, 6, 8), 8)
    assert np.isfinite(found).all()
    deviation = found.std(axis=0)
    assert (deviation > 0.03).all()
    for node in range(0, 6, 2):  # users of a block start alike in what the graph says of them
        assert np.allclose(found[node, :2], found[0, :2], atol=1e-4)
    generator = torch.Generator().manual_seed(1)
    random_ND = torch.empty(14, 8).normal_(0.0, 0.1, generator=generator).double().numpy()
    assert np.allclose(found[:, 2:], random_ND[:, 2:], atol=1e-6)


def test_a_graph_without_edges_keeps_its_random_start() -> None:
    found = embedding(planted.graph([], 3, 4), 5)
    assert np.isfinite(found).all()
    assert found.std() > 0.05
