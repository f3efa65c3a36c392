"""A grown model: old rows are what they were, and new ones what a naive regression says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from planted import dataset, random_pairs
from torch import Tensor

from hmlet.config import resolve
from hmlet.graph import Graph, propagator, training_graph
from hmlet.models import MODELS, Model, build
from hmlet.models.growth import grow

OLD_USERS, OLD_ITEMS = 20, 15
ALONE = 22  # a new user whose only item is new too


def graphs() -> tuple[Graph, Graph]:
    """A graph, and the same with three more users and two more items."""
    old = random_pairs(0, OLD_USERS, OLD_ITEMS, 0.3)
    new = [(20, 1), (20, 4), (21, 2), (21, 15), (3, 15), (7, 15), (ALONE, 16)]
    return (
        training_graph(dataset(OLD_USERS, OLD_ITEMS, train=old)),
        training_graph(dataset(OLD_USERS + 3, OLD_ITEMS + 2, train=old + new)),
    )


def grown(name: str) -> tuple[Model, Model, Model]:
    """A model of the old graph, one of the new graph as it is built, and the same after it has grown."""
    config = resolve(name, overrides=["model.embedding_size=4"]).model
    before, after = graphs()
    old = build(config, before, torch.Generator().manual_seed(1))
    fresh, new = (build(config, after, torch.Generator().manual_seed(2)) for _ in range(2))
    product = propagator(after, torch.device("cpu")).product
    grow(new, product, old.state_dict(), OLD_USERS, OLD_ITEMS)
    return old, fresh, new


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """The old nodes' rows of the new graph, and the new nodes'."""
    n_users = OLD_USERS + 3
    return torch.cat([x[:OLD_USERS], x[n_users : n_users + OLD_ITEMS]]), torch.cat(
        [x[OLD_USERS:n_users], x[n_users + OLD_ITEMS :]]
    )


STEPPED = [name for name, model in MODELS.items() if "embedding_size" in model.Config.model_fields]


@pytest.mark.parametrize("name", STEPPED)
def test_what_was_learned_stays(name: str) -> None:
    """Rows of old nodes and all other weights, but not what follows from the graph."""
    old, fresh, new = grown(name)
    of_nodes = old.node_tensors(old.n_users, old.n_items)
    for key, tensor in old.state_dict().items():
        after = new.state_dict()[key]
        if key in of_nodes and of_nodes[key].redrawn:
            assert torch.equal(after, fresh.state_dict()[key])
        else:
            assert torch.equal(split(after)[0] if key in of_nodes else after, tensor), key


def test_new_rows_are_read_off_the_neighbours() -> None:
    """Each new node's e⁰ by plain loops: messages of old neighbours, a regression over the old nodes of its side."""
    _, _, new = grown("lightgcn")
    _, graph = graphs()
    known = {node: new.embedding[node].detach().double().numpy() for node in range(graph.n_nodes)}
    is_old = [node < OLD_USERS or 23 <= node < 23 + OLD_ITEMS for node in range(graph.n_nodes)]

    def message(node: int) -> np.ndarray:
        total = np.zeros(4)
        for other in graph.neighbours[graph.indptr[node] : graph.indptr[node + 1]]:
            if is_old[other]:
                total += known[int(other)] / np.sqrt(graph.degree[node] * graph.degree[other])
        return total

    for side in (range(23), range(23, graph.n_nodes)):
        fitted = [node for node in side if is_old[node] and graph.degree[node]]
        x, y = np.array([message(node) for node in fitted]), np.array([known[node] for node in fitted])
        gram = x.T @ x
        weights = np.linalg.solve(gram + 0.01 * np.diag(gram).mean() * np.eye(4), x.T @ y)
        for node in (node for node in side if not is_old[node] and np.any(message(node))):
            np.testing.assert_allclose(known[node], message(node) @ weights, rtol=1e-4, atol=1e-6)


def test_a_new_node_without_an_old_neighbour_keeps_its_random_row() -> None:
    _, fresh, new = grown("lightgcn")
    assert torch.equal(new.embedding[ALONE], fresh.embedding[ALONE])
    assert not torch.equal(new.embedding[20], fresh.embedding[20])


def test_without_an_old_node_of_its_side_a_new_one_keeps_its_random_row() -> None:
    _, fresh, new = grown("lightgcn")
    new.load_state_dict(fresh.state_dict())
    grow(new, propagator(graphs()[1], torch.device("cpu")).product, {}, 0, OLD_ITEMS + 2)
    assert torch.equal(new.embedding, fresh.embedding)
