"""Centralities against networkx and networkit: random, disconnected, star and chain graphs; counts that overflow."""

from __future__ import annotations

import networkit
import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmlet.data import Csr
from hmlet.errors import ConfigError
from hmlet.graph import Graph
from hmlet.graph.centrality import LARGEST, _halves, _search, centralities, pagerank, path_sums


def bipartite(n_users: int, n_items: int, pairs: list[tuple[int, int]]) -> Graph:
    """The graph of (user, item) pairs, repeated ones counted once."""
    rows = [sorted({item for user, item in pairs if user == u}) for u in range(n_users)]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Graph.from_csr(Csr(indptr, np.array([i for row in rows for i in row], dtype=np.int32)), n_items)


def as_networkx(graph: Graph) -> nx.Graph:
    other = nx.empty_graph(graph.n_nodes)
    ends = np.repeat(np.arange(graph.n_nodes), graph.degree)
    other.add_edges_from(zip(ends.tolist(), graph.neighbours.tolist(), strict=True))
    return other


def random_graph(n_users: int, n_items: int, n_edges: int, seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    return bipartite(
        n_users,
        n_items,
        list(zip(rng.integers(0, n_users, n_edges).tolist(), rng.integers(0, n_items, n_edges).tolist(), strict=True)),
    )


def chain(n: int, width: int) -> Graph:
    """n rungs of `width` users between single items: the paths from end to end number width^n."""
    return bipartite(
        n * width, n + 1, [(r * width + w, r + end) for r in range(n) for w in range(width) for end in (0, 1)]
    )


GRAPHS = {
    "one edge": bipartite(1, 1, [(0, 0)]),
    "no edge": bipartite(2, 2, []),
    "star of a user": bipartite(1, 9, [(0, i) for i in range(9)]),
    "star of an item": bipartite(9, 1, [(u, 0) for u in range(9)]),
    "path": bipartite(20, 20, [(i, i) for i in range(20)] + [(i + 1, i) for i in range(19)]),
    "complete": bipartite(5, 7, [(u, i) for u in range(5) for i in range(7)]),
    "two components and lonely nodes": bipartite(6, 6, [(0, 0), (0, 1), (1, 1), (2, 2), (3, 2), (3, 3)]),
    "sparse": random_graph(60, 40, 120, 0),
    "dense": random_graph(40, 50, 800, 1),
    "deep": chain(30, 2),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("block", [1, 7, 64])
def test_equal_networkx(graph: Graph, block: int) -> None:
    got, other = centralities(graph, block=block), as_networkx(graph)
    for name, expected in (
        ("betweenness", nx.betweenness_centrality(other)),
        ("closeness", nx.closeness_centrality(other)),
        ("pagerank", nx.pagerank(other, tol=1e-12, max_iter=1000)),
        ("degree", dict(other.degree())),
    ):
        np.testing.assert_allclose(
            getattr(got, name), [expected[n] for n in range(graph.n_nodes)], rtol=2e-6, atol=1e-12
        )
    assert got.exact
    assert not got.betweenness_error.any()
    assert not got.closeness_error.any()


@given(st.integers(1, 8), st.integers(1, 8), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=30))
def test_equal_networkx_on_any_small_graph(n_users: int, n_items: int, pairs: list[tuple[int, int]]) -> None:
    graph = bipartite(n_users, n_items, [(u % n_users, i % n_items) for u, i in pairs])
    got, other = centralities(graph, block=5), as_networkx(graph)
    for name, expected in (
        ("betweenness", nx.betweenness_centrality(other)),
        ("closeness", nx.closeness_centrality(other)),
    ):
        np.testing.assert_allclose(
            getattr(got, name), [expected[n] for n in range(graph.n_nodes)], rtol=2e-6, atol=1e-12
        )


def test_equal_networkit_on_a_middle_sized_graph() -> None:
    graph = random_graph(450, 550, 3000, 2)
    other = networkit.nxadapter.nx2nk(as_networkx(graph))
    got = centralities(graph)
    expected = networkit.centrality.Betweenness(other, normalized=True).run().scores()
    np.testing.assert_allclose(got.betweenness, expected, rtol=5e-6, atol=1e-12)
    options = (False, networkit.centrality.ClosenessVariant.GENERALIZED)
    expected = networkit.centrality.Closeness(other, *options).run().scores()
    reached = path_sums(graph, np.arange(graph.n_nodes)).reached_by
    np.testing.assert_allclose(got.closeness, np.array(expected), rtol=1e-12, atol=1e-15)
    assert reached.max() == max(map(len, nx.connected_components(as_networkx(graph)))) - 1


@pytest.mark.parametrize(("rungs", "width"), [(150, 2), (90, 3), (1200, 2)], ids=["2^150", "3^90", "2^1200"])
def test_path_counts_beyond_the_range_of_the_type(rungs: int, width: int) -> None:
    """networkx counts paths in Python's integers; a symmetric chain has a closed form besides."""
    graph = chain(rungs, width)
    halves = _halves(graph, torch.device("cpu"), torch.float32)
    end = torch.tensor([0])
    assert width**rungs > LARGEST[torch.float32]
    assert _search(halves, 1, end, graph.n_nodes) is None
    sources = np.array([graph.n_users, graph.n_users + rungs])  # both ends of the chain
    got = path_sums(graph, sources)
    # From an end, an item at rung r passes on everything behind it: all later nodes; a user its share of that.
    behind = np.array([(rungs - r) * (width + 1) for r in range(rungs + 1)], dtype=float)
    item = np.where(np.arange(rungs + 1) == 0, 0, behind)
    expected_items = item + item[::-1]
    share = np.repeat((1 + behind[1:] + 1 + behind[1:][::-1]) / width, width)
    # An item's own dependency counts itself for the users before it: (1 + δ) / width each.
    np.testing.assert_allclose(got.dependency[graph.n_users :], expected_items, rtol=1e-9)
    np.testing.assert_allclose(got.dependency[: graph.n_users], share, rtol=1e-9)


def test_a_count_that_overflows_beside_one_that_does_not() -> None:
    """A simple path as long as the chain of squares, joined at its start: counts 1 and 2^130 stand at one distance."""
    rungs = 130
    assert 2**rungs > torch.finfo(torch.float32).max
    squares = [(r * 2 + w, r + end) for r in range(rungs) for w in range(2) for end in (0, 1)]
    first_user, first_item = 2 * rungs, rungs + 1
    plain = [(first_user, 0)]
    for r in range(rungs - 1):
        plain += [(first_user + r, first_item + r), (first_user + r + 1, first_item + r)]
    graph = bipartite(3 * rungs, 2 * rungs, squares + plain)
    other = as_networkx(graph)
    got = centralities(graph, block=64)
    expected = nx.betweenness_centrality(other)
    np.testing.assert_allclose(got.betweenness, [expected[n] for n in range(graph.n_nodes)], rtol=2e-6)


def test_pagerank_sums_to_one_and_shares_out_dangling_nodes() -> None:
    graph = bipartite(3, 3, [(0, 0), (1, 0)])
    rank = pagerank(graph)
    assert rank.sum() == pytest.approx(1.0, abs=1e-12)
    expected = nx.pagerank(as_networkx(graph), tol=1e-13, max_iter=1000)
    np.testing.assert_allclose(rank, [expected[n] for n in range(6)], atol=1e-10)


def test_sampled_sources_come_within_their_stated_error() -> None:
    graph = random_graph(300, 200, 1500, 3)
    exact = centralities(graph)
    for seed in range(3):
        got = centralities(graph, samples=250, seed=seed)
        assert (got.sources, got.exact) == (250, False)
        for name in ("betweenness", "closeness"):
            error = np.abs(getattr(got, name) - getattr(exact, name))
            stated = getattr(got, f"{name}_error")
            heard = np.isfinite(getattr(got, name)) & (graph.degree > 1)
            # A normal error is within two standard errors 95 % of the time; skewed dependencies do a little worse.
            assert np.mean(error[heard] <= 2 * stated[heard] + 1e-12) > 0.85
            # … and an estimate that only ever overstates its error would tell nothing.
            assert np.mean(error[heard] <= 0.2 * stated[heard]) < 0.4


def test_sampling_every_node_is_exact() -> None:
    graph = GRAPHS["sparse"]
    got, exact = centralities(graph, samples=10_000), centralities(graph)
    assert got.exact
    np.testing.assert_array_equal(got.betweenness, exact.betweenness)


def test_one_sampled_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="sample at least 2"):
        centralities(GRAPHS["sparse"], samples=1)


def test_progress_counts_the_sources() -> None:
    heard: list[tuple[float, float | None]] = []
    centralities(GRAPHS["sparse"], block=40, advance=lambda done, total: heard.append((done, total)))
    assert heard == [(40, 100), (60, 100), (100, 100)]
