"""Gate statistics against naive loops, and gates forced to one answer or to chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmlet.analysis import gates
from hmlet.analysis.similarity import class_cosine, edge_cosine, neighbour_cosine
from hmlet.analysis.stability import stability
from hmlet.data import Csr
from hmlet.graph import Graph
from hmlet.runs.choices import CLASSES, Choices

RNG = np.random.default_rng(0)


def five(box: gates.Box) -> list[float | None]:
    return [box.lower_whisker, box.lower_quartile, box.median, box.upper_quartile, box.upper_whisker]


def choices(nonlinear: np.ndarray) -> Choices:
    return Choices(tuple(range(1, nonlinear.shape[1] + 1)), nonlinear, nonlinear.astype(np.float32))


@pytest.mark.parametrize(("forced", "name"), [(True, "fnl"), (False, "fl")])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_a_gate_forced_to_one_branch_gives_one_class(forced: bool, name: str, layers: int) -> None:
    got = choices(np.full((50, layers), forced))
    sizes = gates.class_size(got.classes)
    assert {each: sizes[each].share for each in CLASSES} == {**dict.fromkeys(CLASSES, 0.0), name: 1.0}
    assert gates.gate_share(got) == {str(layer): float(forced) for layer in got.layers}
    for row in gates.degree_deciles(got.classes, np.arange(50)):
        assert row.shares[name] == 1.0


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_random_gates_give_the_expected_mixture(layers: int) -> None:
    """p^L, 1 - p^L - (1 - p)^L and (1 - p)^L, within five standard deviations."""
    n, p = 200_000, 0.3
    sizes = gates.class_size(choices(np.random.default_rng(1).random((n, layers)) < p).classes)
    expected = {"fnl": p**layers, "pnl": 1 - p**layers - (1 - p) ** layers, "fl": (1 - p) ** layers}
    for name, share in expected.items():
        assert sizes[name].share == pytest.approx(share, abs=5 * (share * (1 - share) / n) ** 0.5 + 1e-12)


def test_every_tenth_of_distinct_degrees_is_a_decile() -> None:
    degree = np.random.default_rng(2).permutation(100) + 1
    np.testing.assert_array_equal(gates.deciles(degree), (degree - 1) // 10)


def test_equal_degrees_stay_together() -> None:
    # Of ten nodes six have degree 3: their places are 2 … 8, the middle is 5, so all are in the sixth decile.
    assert gates.deciles(np.array([3, 1, 3, 3, 2, 3, 5, 3, 3, 9])).tolist() == [5, 0, 5, 5, 1, 5, 8, 5, 5, 9]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60))
def test_deciles_follow_the_documented_rule(degrees: list[int]) -> None:
    got = gates.deciles(np.array(degrees))
    for degree, decile in zip(degrees, got, strict=True):
        below, equal = sum(d < degree for d in degrees), degrees.count(degree)
        assert decile == (20 * below + 10 * equal) // (2 * len(degrees))
        assert 0 <= decile <= 9


def test_shares_by_decile_equal_a_naive_loop() -> None:
    degree, classes = RNG.integers(1, 30, 300), RNG.integers(0, 3, 300).astype(np.int8)
    decile = gates.deciles(degree)
    for at, row in enumerate(gates.degree_deciles(classes, degree)):
        nodes = [n for n in range(300) if decile[n] == at]
        assert row.nodes == len(nodes)
        assert row.degree == [min(degree[nodes]), max(degree[nodes])]
        for code, name in enumerate(CLASSES):
            assert row.shares[name] == pytest.approx(sum(classes[n] == code for n in nodes) / len(nodes))


def test_an_empty_decile_has_no_shares() -> None:
    rows = gates.degree_deciles(np.zeros(10, dtype=np.int8), np.full(10, 4))
    assert [row.nodes for row in rows] == [0, 0, 0, 0, 0, 10, 0, 0, 0, 0]
    assert (rows[0].fnl, rows[0].degree, rows[5].fnl) == (None, None, 1.0)


def test_a_box_by_hand() -> None:
    # Quartiles of 1 … 9 and 100: 3.25, 5.5, 7.75; the upper fence is 7.75 + 1.5 · 4.5 = 14.5.
    got = gates.box(np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 100, np.nan]))
    assert five(got) == [1, 3.25, 5.5, 7.75, 9]
    assert (got.nodes, got.outliers, got.mean) == (10, 1, 14.5)


def test_a_box_equals_matplotlibs() -> None:
    from matplotlib.cbook import boxplot_stats

    values = np.random.default_rng(3).lognormal(size=500)
    expected = boxplot_stats(values)[0]
    got = gates.box(values)
    assert five(got) == pytest.approx([expected[key] for key in ("whislo", "q1", "med", "q3", "whishi")])
    assert got.outliers == len(expected["fliers"])


@pytest.mark.parametrize("values", [[], [np.nan]])
def test_a_box_of_nothing_has_no_numbers(values: list[float]) -> None:
    assert five(gates.box(np.array(values))) == [None] * 5
    assert gates.box(np.array(values)).nodes == 0


def test_density_counts_every_node_with_an_edge_once() -> None:
    n = 400
    degree = np.random.default_rng(4).integers(0, 200, n)
    picked = Choices((3,), np.ones((n, 1), dtype=bool), np.random.default_rng(5).random((n, 1)).astype(np.float32))
    got = gates.degree_density(picked, degree)
    grid, edges = np.array(got.counts["3"]), np.array(got.degree_edges)
    assert grid.sum() == (degree > 0).sum()
    for d in range(len(edges) - 1):
        assert grid[d].sum() == sum(edges[d] <= value < edges[d + 1] for value in degree)
    half = got.probability_bins // 2
    assert grid[:, half:].sum() == ((picked.probability_NL[:, 0] >= 0.5) & (degree > 0)).sum()


def test_probabilities_in_numbers() -> None:
    probability = np.array([[0.0], [0.25], [0.75], [1.0]], dtype=np.float32)
    got = gates.gate_probability(Choices((4,), probability > 0.5, probability))["4"]
    assert (got.mean, got.quartiles, sum(got.histogram)) == (0.5, [0.1875, 0.5, 0.8125], 4)
    assert (got.histogram[0], got.histogram[-1]) == (1, 1)


def test_neighbour_cosine_equals_a_naive_loop() -> None:
    rows = [[0, 2], [1], [], [0, 1, 2, 3]]
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    graph = Graph.from_csr(Csr(indptr, np.concatenate(rows).astype(np.int32)), 5)
    generator = torch.Generator().manual_seed(0)
    users, items = torch.randn(4, 8, generator=generator), torch.randn(5, 8, generator=generator)
    items[3] = 0.0
    mean, variance = neighbour_cosine(graph, edge_cosine(graph, users, items))
    every = torch.cat([users, items]).double().numpy()
    for node in range(9):
        others = graph.neighbours[graph.indptr[node] : graph.indptr[node + 1]]
        cosines = [
            float(every[node] @ every[m] / max(np.linalg.norm(every[node]) * np.linalg.norm(every[m]), 1e-12))
            for m in others
        ]
        if cosines:
            assert mean[node] == pytest.approx(np.mean(cosines), abs=1e-6)
            assert variance[node] == pytest.approx(np.var(cosines), abs=1e-6)
        else:
            assert np.isnan(mean[node])
    classes = np.array([0, 1, 0, 2, 0, 0, 1, 1, 2], dtype=np.int8)
    got = class_cosine(classes, mean, variance)
    for code, name in enumerate(CLASSES):
        nodes = [n for n in range(9) if classes[n] == code and graph.degree[n]]
        assert got[name].nodes == len(nodes)
        assert got[name].mean == pytest.approx(np.mean([mean[n] for n in nodes]))
        assert got[name].variance == pytest.approx(np.mean([variance[n] for n in nodes]))
    assert class_cosine(np.zeros(9, dtype=np.int8), mean, variance)["fl"].mean is None


def test_identical_runs_are_perfectly_stable() -> None:
    run = RNG.integers(0, 3, 100).astype(np.int8)
    got = stability([run, run, run], seeds=[1, 2, 3])
    assert (got.keep, got.agreement, got.kappa) == (1.0, 1.0, 1.0)
    assert set(got.stays.values()) == {1.0}
    assert stability([np.zeros(9, dtype=np.int8)] * 2, seeds=[1, 2]).kappa == 1.0


def test_independent_runs_agree_by_chance() -> None:
    rng = np.random.default_rng(6)
    got = stability([rng.choice(3, 200_000, p=[0.5, 0.3, 0.2]).astype(np.int8) for _ in range(3)], seeds=[1, 2, 3])
    assert got.keep_by_chance == pytest.approx(0.5**3 + 0.3**3 + 0.2**3, abs=0.01)
    assert got.keep == pytest.approx(got.keep_by_chance, abs=0.01)
    assert got.kappa == pytest.approx(0, abs=0.01)
    assert got.stays["fnl"] == pytest.approx(0.5, abs=0.01)


def test_kappa_by_hand() -> None:
    # One of four agrees; shares (1/2, 1/2) and (1/4, 3/4) agree by chance in 1/8 + 3/8 = 1/2: worse than chance.
    a, b = np.array([0, 0, 1, 1], dtype=np.int8), np.array([1, 1, 1, 0], dtype=np.int8)
    got = stability([a, b], seeds=[1, 2])
    assert (got.agreement, got.keep) == (0.25, 0.25)
    assert got.kappa == pytest.approx((0.25 - 0.5) / 0.5)
    assert got.stays == {"fnl": 0.0, "pnl": 2 / 5, "fl": None}
