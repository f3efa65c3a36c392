"""PinSage's neighbourhoods on graphs where visits can be counted by hand."""

from __future__ import annotations

import numpy as np
import planted
import pytest
import torch

from hmlet.models.pinsage import PinSage, PinSageConfig, neighbourhoods


def drawn(
    pairs: list[tuple[int, int]], n_users: int, n_items: int, seed: int = 0, **options: int
) -> list[dict[int, float]]:
    """Each node's neighbours with their shares; unused places are left out."""
    graph = planted.graph(pairs, n_users, n_items)
    config = PinSageConfig(**options)  # type: ignore[arg-type]
    neighbours_NT, importance_NT = neighbourhoods(graph, config, np.random.default_rng(seed))
    assert neighbours_NT.shape == importance_NT.shape == (n_users + n_items, config.neighbours)
    assert (np.diff(importance_NT, axis=1) <= 0).all(), "most visited first"
    result = []
    for nodes, shares in zip(neighbours_NT, importance_NT, strict=True):
        used = shares > 0
        assert len(set(nodes[used])) == used.sum(), "no neighbour stands twice"
        result.append(dict(zip(nodes[used].tolist(), shares[used].tolist(), strict=True)))
    return result


def test_a_single_edge() -> None:
    """The walk goes to and fro, and visits to oneself do not count."""
    assert drawn([(0, 0)], 1, 1) == [{1: 1.0}, {0: 1.0}]


def test_one_step_on_a_star_visits_only_the_neighbours() -> None:
    star = [(0, item) for item in range(4)]  # user 0 is the hub, items are nodes 1 … 4
    hub, *leaves = drawn(star, 1, 4, walk_length=1, walks=4000)
    assert leaves == [{0: 1.0}] * 4
    assert hub == pytest.approx(dict.fromkeys(range(1, 5), 0.25), abs=0.04)  # six standard deviations


def test_two_steps_from_a_leaf_of_a_star() -> None:
    """Step 1 is the hub, always; step 2 is each of the three leaves, and one third comes home and is not counted."""
    star = [(0, item) for item in range(3)]
    _, leaf, *_ = drawn(star, 1, 3, walk_length=2, walks=9000)
    assert leaf == pytest.approx({0: 1 / (5 / 3), 2: (1 / 3) / (5 / 3), 3: (1 / 3) / (5 / 3)}, abs=0.02)


def test_a_path_and_its_ends() -> None:
    """u0 – i0 – u1 – i1, walks of two steps: from u0 always i0, then u0 (not counted) or u1, half each."""
    u0, u1, i0, i1 = drawn([(0, 0), (1, 0), (1, 1)], 2, 2, walk_length=2, walks=8000)
    assert u0 == pytest.approx({2: 2 / 3, 1: 1 / 3}, abs=0.02)
    assert i1 == pytest.approx({1: 2 / 3, 2: 1 / 3}, abs=0.02)
    # From u1: i0 or i1, then back to u1 from i1 surely and from i0 half the time, else u0.
    assert u1 == pytest.approx({2: 0.5 / 1.25, 3: 0.5 / 1.25, 0: 0.25 / 1.25}, abs=0.02)
    assert set(i0) == {0, 1, 3}


def test_only_the_most_visited_stay_and_share_their_visits() -> None:
    pairs = planted.random_pairs(2, 12, 15, 0.3)
    everything = drawn(pairs, 12, 15, neighbours=27)
    best = drawn(pairs, 12, 15, neighbours=3)
    for full, cut in zip(everything, best, strict=True):
        assert list(cut) == sorted(full, key=lambda node, full=full: (-full[node], node))[:3]
        total = sum(full[node] for node in cut)
        assert cut == pytest.approx({node: full[node] / total for node in cut}, rel=1e-5)


def test_shares_sum_to_one_and_lonely_nodes_have_none() -> None:
    nodes = drawn([(0, 0), (1, 0), (1, 1)], 3, 3)
    assert [round(sum(node.values()), 6) for node in nodes] == [1, 1, 0, 1, 1, 0]


def test_a_graph_without_edges() -> None:
    assert drawn([], 2, 2) == [{}] * 4


def test_every_generator_walks_elsewhere() -> None:
    graph, config = planted.graph(planted.random_pairs(1, 9, 9, 0.5), 9, 9), PinSageConfig(embedding_size=1, layers=1)
    models = [PinSage(config, graph, torch.Generator().manual_seed(seed)) for seed in range(150)]
    assert len({tuple(model.importance_NT.flatten().tolist()) for model in models}) == 150


def test_same_seed_same_neighbourhoods() -> None:
    pairs = planted.random_pairs(2, 12, 15, 0.3)
    assert drawn(pairs, 12, 15, seed=1) == drawn(pairs, 12, 15, seed=1)
    assert drawn(pairs, 12, 15, seed=1) != drawn(pairs, 12, 15, seed=2)
