"""The sparse product: every implementation against dense float64, its gradient, edge dropout and determinism."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import oracles
import planted
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hmlet.graph.kernels import Operator, build_operator, reference, torch_product

Product = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
IMPLEMENTATIONS = {"torch": torch_product.product, "reference": reference.product}
# Unit roundoff. bfloat16's weights, inputs and result are each rounded to 8 bits of mantissa.
ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}

N_USERS, N_ITEMS = 30, 40
# A hub user with every item, lonely nodes at the end, and random edges between.
PAIRS = sorted({*planted.random_pairs(3, 27, 36, 0.1), *((0, item) for item in range(36))})


def operator(self_loops: bool = False, dtype: torch.dtype = torch.float32) -> Operator:
    graph = planted.graph(PAIRS, N_USERS, N_ITEMS)
    scale = graph.scale(self_loops)
    return build_operator(graph.indptr, graph.neighbours, graph.edges, scale, self_loops=self_loops, dtype=dtype)


def dense(product: Operator) -> np.ndarray:
    """The operator's matrix, read off the identity."""
    return product(torch.eye(product.n_nodes, dtype=torch.float64)).numpy()


def check(product: Product, degrees: list[int], columns: int, dtype: torch.dtype, seed: int) -> None:
    """A random CSR with these row lengths, against the loop over its entries, within the bound on rounding."""
    rng = np.random.default_rng(seed)
    n_nodes, n_entries = len(degrees), sum(degrees)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    neighbours = rng.integers(0, n_nodes, n_entries).astype(np.int32)
    weights = rng.normal(size=n_entries)
    x_ND = rng.normal(size=(n_nodes, columns))
    expected_ND, magnitude_ND = np.zeros((n_nodes, columns)), np.zeros((n_nodes, columns))
    for row in range(n_nodes):
        for entry in range(indptr[row], indptr[row + 1]):
            expected_ND[row] += weights[entry] * x_ND[neighbours[entry]]
            magnitude_ND[row] += np.abs(weights[entry] * x_ND[neighbours[entry]])
    arrays = [torch.from_numpy(array) for array in (indptr, neighbours, weights, x_ND)]
    y_ND = product(arrays[0], arrays[1], arrays[2].to(dtype), arrays[3].to(dtype))
    assert y_ND.shape == (n_nodes, columns)
    assert y_ND.dtype == dtype
    bound_ND = (np.array(degrees)[:, None] + 4) * ROUNDOFF[dtype] * magnitude_ND
    assert (np.abs(y_ND.double().numpy() - expected_ND) <= bound_ND).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=25)
@given(
    degrees=st.lists(st.one_of(st.just(0), st.integers(1, 6), st.just(200)), min_size=1, max_size=12),
    columns=st.sampled_from([1, 3, 64, 65, 130]),
    seed=st.integers(0, 2**32),
)
def test_product_equals_the_loop(
    implementation: str, dtype: torch.dtype, degrees: list[int], columns: int, seed: int
) -> None:
    check(IMPLEMENTATIONS[implementation], degrees, columns, dtype, seed)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_product_without_any_edge_is_zero(implementation: str) -> None:
    check(IMPLEMENTATIONS[implementation], [0, 0, 0], 5, torch.float32, 0)


@pytest.mark.parametrize("self_loops", [False, True])
def test_operator_is_the_normalised_adjacency(self_loops: bool) -> None:
    expected_NN = oracles.normalised(oracles.adjacency(PAIRS, N_USERS, N_ITEMS), self_loops)
    np.testing.assert_allclose(dense(operator(self_loops)), expected_NN, rtol=3e-7, atol=0)


@pytest.mark.parametrize("columns", [1, 3, 64, 65, 130])
@pytest.mark.parametrize("self_loops", [False, True])
def test_backward_is_the_transposed_product(self_loops: bool, columns: int) -> None:
    product = operator(self_loops, torch.float64)
    rng = torch.Generator().manual_seed(columns)
    x_ND = torch.randn(70, columns, generator=rng, dtype=torch.float64, requires_grad=True)
    grad_ND = torch.randn(70, columns, generator=rng, dtype=torch.float64)
    product(x_ND).backward(grad_ND)
    assert torch.equal(x_ND.grad, product.product(grad_ND)), "the same product, because the matrix is symmetric"
    np.testing.assert_allclose(x_ND.grad, dense(product).T @ grad_ND.numpy(), rtol=1e-12, atol=1e-14)


def test_backward_takes_gradients_that_lie_anyhow_in_memory() -> None:
    product = operator(dtype=torch.float64)
    x_ND = torch.ones(70, 3, dtype=torch.float64, requires_grad=True)
    product(x_ND).sum().backward()  # an expanded scalar
    np.testing.assert_allclose(x_ND.grad, dense(product).T @ np.ones((70, 3)), rtol=1e-12)
    wide_DN = torch.randn(3, 70, dtype=torch.float64)
    np.testing.assert_allclose(product(wide_DN.T), dense(product) @ wide_DN.T.numpy(), rtol=1e-12, atol=1e-15)


def test_gradient_equals_finite_differences() -> None:
    x_ND = torch.randn(70, 2, dtype=torch.float64, requires_grad=True)
    for product in (
        operator(dtype=torch.float64),
        operator(True, torch.float64),
        operator().drop(0.5, torch.tensor([3])),
    ):
        assert torch.autograd.gradcheck(product, (x_ND,), fast_mode=True)


@pytest.mark.parametrize("self_loops", [False, True])
def test_bfloat16_input_gives_bfloat16_near_the_exact_product(self_loops: bool) -> None:
    x_ND = torch.randn(70, 8, generator=torch.Generator().manual_seed(1))
    exact_ND = dense(operator(self_loops)) @ x_ND.double().numpy()
    y_ND = operator(self_loops)(x_ND.bfloat16())
    assert y_ND.dtype == torch.bfloat16
    magnitude_ND = np.abs(dense(operator(self_loops))) @ np.abs(x_ND.double().numpy())
    assert (np.abs(y_ND.double().numpy() - exact_ND) <= 5 * 2.0**-8 * magnitude_ND).all()


@pytest.mark.parametrize("columns", [3, 130])
def test_product_is_bitwise_the_same_each_time_and_with_any_threads(columns: int) -> None:
    product = operator()
    x_ND = torch.randn(70, columns, generator=torch.Generator().manual_seed(1))
    first_ND = product(x_ND)
    assert torch.equal(first_ND, product(x_ND))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(first_ND, product(x_ND))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("self_loops", [False, True])
def test_dropped_operator_is_symmetric_and_scaled(rate: float, self_loops: bool) -> None:
    whole_NN, dropped_NN = dense(operator(self_loops)), dense(operator(self_loops).drop(rate, torch.tensor([7])))
    assert np.array_equal(dropped_NN, dropped_NN.T), "both directions of an edge share its fate"
    off_diagonal = ~np.eye(70, dtype=bool)
    kept_NN = (dropped_NN != 0) & off_diagonal
    np.testing.assert_allclose(dropped_NN[kept_NN], whole_NN[kept_NN] / (1 - rate), rtol=1e-6)
    assert not kept_NN[whole_NN == 0].any()
    assert np.array_equal(np.diag(dropped_NN), np.diag(whole_NN)), "a self-loop is no edge: it stays as it is"
    fates = [oracles.keeps(edge, rate, 7) for edge in range(len(PAIRS))]
    assert [bool(kept_NN[user, N_USERS + item]) for user, item in PAIRS] == fates


def test_dropped_operator_keeps_the_mean() -> None:
    """Averaged over keys, Â with dropped edges is Â: each entry within five standard deviations."""
    keys, rate = 400, 0.4
    whole_NN = dense(operator())
    mean_NN = np.mean([dense(operator().drop(rate, torch.tensor([key]))) for key in range(keys)], axis=0)
    deviation = np.sqrt(rate / (1 - rate) / keys)
    np.testing.assert_allclose(mean_NN[whole_NN > 0] / whole_NN[whole_NN > 0], 1.0, atol=5 * deviation)


def test_dropping_nothing_is_the_operator_itself() -> None:
    product = operator()
    assert product.drop(0.0, torch.tensor([1])) is product


def test_edges_are_dropped_from_the_whole_operator_only() -> None:
    with pytest.raises(AssertionError, match="once"):
        operator().drop(0.3, torch.tensor([1])).drop(0.3, torch.tensor([2]))


def test_same_key_same_edges_and_another_key_others() -> None:
    assert np.array_equal(
        dense(operator().drop(0.4, torch.tensor([11]))), dense(operator().drop(0.4, torch.tensor([11])))
    )
    assert not np.array_equal(
        dense(operator().drop(0.4, torch.tensor([11]))), dense(operator().drop(0.4, torch.tensor([12])))
    )
