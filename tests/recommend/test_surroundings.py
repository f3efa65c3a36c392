"""How a node is reached, against networkx and the dense square of Â."""

from __future__ import annotations

import networkx
import numpy as np
import oracles
import pytest
from gated_run import small_data

from hmlet.graph import training_graph
from hmlet.recommend.surroundings import paths, reach

DATA = small_data(30, 25)
GRAPH = training_graph(DATA)


def edges() -> list[tuple[int, int]]:
    train = DATA.csr("train")
    return [(user, int(item)) for user in range(DATA.n_users) for item in train.row(user)]


@pytest.mark.parametrize("node", [0, 7, 30, 41, 54])
def test_reach_counts_the_nodes_of_each_distance(node: int) -> None:
    graph = networkx.Graph([(user, 30 + item) for user, item in edges()])
    graph.add_nodes_from(range(55))
    far = list(networkx.single_source_shortest_path_length(graph, node).values())
    assert reach(GRAPH, node, 4) == [far.count(step) for step in (1, 2, 3, 4)]


@pytest.mark.parametrize("node", [3, 33, 50])
def test_the_strongest_paths_are_those_of_the_squared_operator(node: int) -> None:
    operator = oracles.normalised(oracles.adjacency(edges(), 30, 25))
    strength = (operator @ operator)[node]
    strength[node] = 0
    found = paths(GRAPH, node, 4, 6)
    expected = np.argsort(-strength, kind="stable")[:6]
    assert found.far == expected.tolist()
    assert found.strength == pytest.approx(strength[expected])
    assert all(operator[node, one] > 0 for one in found.between)
    joined = [
        (a, b) for a, one in enumerate(found.between) for b, far in enumerate(found.far) if operator[one, far] > 0
    ]
    assert found.joined == joined
