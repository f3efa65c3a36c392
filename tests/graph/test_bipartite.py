"""The graph against scipy's block matrix."""

from __future__ import annotations

import tracemalloc

import numpy as np
import oracles
import planted
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import bmat, coo_matrix, csr_matrix

from hmlet.data import Csr
from hmlet.errors import DataError
from hmlet.graph import Graph, require_edges, training_graph
from hmlet.graph.kernels import build_operator

PAIRS = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=50).map(sorted)


def matrix(graph: Graph, values: np.ndarray) -> csr_matrix:
    return csr_matrix((values, graph.neighbours, graph.indptr), shape=(graph.n_nodes, graph.n_nodes))


@given(PAIRS)
def test_graph_is_the_block_matrix(pairs: list[tuple[int, int]]) -> None:
    graph = planted.graph(pairs, 8, 11)  # the last user and item never have an edge
    rows, columns = np.array(pairs, dtype=int).reshape(-1, 2).T
    ratings = coo_matrix((np.ones(len(pairs)), (rows, columns)), shape=(8, 11))
    expected = bmat([[None, ratings], [ratings.T, None]], format="csr")
    expected.sort_indices()
    assert graph.n_edges == len(pairs)
    assert graph.n_nodes == 19
    assert np.array_equal(graph.indptr, expected.indptr)
    assert np.array_equal(graph.neighbours, expected.indices)
    assert np.array_equal(graph.degree, np.asarray(expected.sum(axis=1)).ravel())


@given(PAIRS)
def test_both_directions_of_an_edge_carry_its_number(pairs: list[tuple[int, int]]) -> None:
    graph = planted.graph(pairs, 8, 11)
    numbers = matrix(graph, graph.edges + 1.0).toarray()
    assert np.array_equal(numbers, numbers.T)
    for number, (user, item) in enumerate(pairs, 1):  # edges are numbered in order of user, then item
        assert numbers[user, 8 + item] == number


@given(PAIRS, st.booleans())
def test_scale_gives_the_normalised_adjacency(pairs: list[tuple[int, int]], self_loops: bool) -> None:
    graph = planted.graph(pairs, 8, 11)
    scale = graph.scale(self_loops).astype(np.float64)
    dense = matrix(graph, np.ones(len(graph.neighbours))).toarray() + np.eye(19) * self_loops
    expected = oracles.normalised(oracles.adjacency(pairs, 8, 11), self_loops)
    np.testing.assert_allclose(scale[:, None] * dense * scale, expected, rtol=3e-7)
    assert np.isfinite(scale).all()


def test_nodes_without_edges_have_no_scale_or_one() -> None:
    graph = planted.graph([(0, 0)], 2, 2)
    assert graph.scale().tolist() == [1, 0, 1, 0]
    assert graph.scale(self_loops=True).tolist() == pytest.approx([0.5**0.5, 1, 0.5**0.5, 1])


def test_only_training_interactions_enter() -> None:
    data = planted.dataset(2, 3, train=[(0, 0), (1, 2)], valid=[(0, 1)], test=[(1, 0)])
    graph = training_graph(data)
    assert graph.degree.tolist() == [1, 1, 1, 0, 1]
    assert graph.neighbours.tolist() == [2, 4, 0, 1]


def test_items_beyond_16_bits_keep_their_users_in_order() -> None:
    """The items' rows are sorted half a number at a time: equal low halves, equal high halves, and ties."""
    pairs = [(0, 3), (0, 3 + 2**16), (1, 3), (1, 2**16), (1, 2**17 - 1), (2, 2**16), (2, 3 + 2**16)]
    graph = planted.graph(pairs, 3, 2**17)
    rows = {item: graph.neighbours[graph.indptr[3 + item] : graph.indptr[4 + item]].tolist() for _, item in pairs}
    assert rows == {3: [0, 1], 2**16: [1, 2], 3 + 2**16: [0, 2], 2**17 - 1: [1]}
    numbers = {item: graph.edges[graph.indptr[3 + item] : graph.indptr[4 + item]].tolist() for _, item in pairs}
    assert numbers == {3: [0, 2], 2**16: [3, 5], 3 + 2**16: [1, 6], 2**17 - 1: [4]}


def test_more_edges_than_32_bits_number_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"1,073,741,824 training interactions exceed the graph's limit of 1,073,741,823 edges"
    ):
        Graph.from_csr(Csr(np.array([0, 2**30]), np.broadcast_to(np.int32(0), 2**30)), 1)
    require_edges(2**30 - 1)


def test_building_takes_at_most_three_times_the_csr() -> None:
    """Of host memory, edge numbers and every temporary included; NumPy reports what it allocates to tracemalloc."""
    rng = np.random.default_rng(0)
    items = np.sort(rng.integers(0, 3000, (5000, 40)).astype(np.int32), axis=1).ravel()
    users = Csr(np.arange(0, len(items) + 1, 40), items)
    tracemalloc.start()
    try:
        graph = Graph.from_csr(users, 3000)
        operator = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    csr = operator.indptr.nbytes + operator.neighbours.nbytes + operator.weights.nbytes
    assert operator.weights.nbytes + graph.neighbours.nbytes < peak < 3 * csr
