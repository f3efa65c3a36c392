"""Every Triton kernel against float64, with the bounds on rounding written down."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import oracles
import planted
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor, nn
from triton_here import DEVICE, triton_gate, triton_mlp, triton_product, triton_readout

from hmlet.config import resolve
from hmlet.graph.kernels import (
    Activation,
    activation,
    build_operator,
    dense,
    dropout_relu,
    gumbel_softmax,
    head,
    launching,
    log_sums,
    mean_margins,
    mix,
    norm_dropout_relu,
    pair_scores,
)
from hmlet.graph.kernels.rows import mark
from hmlet.graph.kernels.torch_product import TorchOperator
from hmlet.graph.kernels.triton_product import TritonOperator
from hmlet.graph.layers import SHORTEST, Layers
from hmlet.losses.bpr import triplet_margins
from hmlet.losses.sampling import Triplets, TripletSampler
from hmlet.models.base import Pass
from hmlet.models.hmlet import HMLET, HmletConfig

# Unit roundoff of what a kernel stores. It computes in float32 and rounds once, when it stores: to the nearest on a
# GPU, while the interpreter cuts bfloat16 off.
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9 if DEVICE == "cuda" else 2.0**-7}
TYPES = pytest.mark.parametrize("dtype", ROUNDOFF, ids=str)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton runs everything. Rows of more than 16 entries are hubs, and sums of more than 8 rows are made of parts."""
    monkeypatch.setattr(triton_product, "SEGMENT", 16)
    monkeypatch.setattr(triton_product, "SEVERAL", 4)
    monkeypatch.setattr(triton_product, "THINNED", 8)
    monkeypatch.setattr(triton_gate, "CHOICES", 4)
    for name, size in (("PART", 8), ("SUMMED", 4), ("ROWS", 4), ("COLUMNS", 8), ("SUM_PARTS", 2), ("SUM_COLUMNS", 4)):
        monkeypatch.setattr(triton_mlp, name, size)
    monkeypatch.setattr(launching, "triton_runs", lambda x: True)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def within(actual: Tensor, expected: Tensor, magnitude: Tensor | float, dtype: torch.dtype, terms: int = 1) -> None:
    """One rounding to the stored type, and float32's own for each term of a sum, relative to the terms' size."""
    assert actual.dtype == dtype
    error = (actual.double().cpu() - expected.double().cpu()).abs()
    scale = torch.as_tensor(magnitude).double().cpu() + expected.double().cpu().abs()
    assert (error <= (ROUNDOFF[dtype] + (terms + 8) * 2.0**-24) * scale + 1e-30).all(), float((error / scale).max())


# -- the product ----------------------------------------------------------------------------------------------------


def rows(degrees: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A CSR with these row lengths: offsets, neighbours and weights."""
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    neighbours = rng.integers(0, len(degrees), sum(degrees)).astype(np.int32)
    weights = rng.normal(size=sum(degrees)).astype(np.float32)
    return tuple(torch.from_numpy(array).to(DEVICE) for array in (indptr, neighbours, weights))  # type: ignore[return-value]


def by_triton(indptr: Tensor, neighbours: Tensor, weights: Tensor) -> TritonOperator:
    """The operator of any CSR; each of its entries is an edge of its own."""
    edges = torch.arange(len(neighbours), dtype=torch.int32, device=DEVICE)
    arrays = {"indptr": indptr, "neighbours": neighbours, "weights": weights, "edges": edges}
    return TritonOperator.of(TorchOperator(n_nodes=len(indptr) - 1, n_edges=len(edges), **arrays))


@TYPES
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    degrees=st.lists(st.sampled_from([0, 1, 5, 16, 17, 40]), min_size=1, max_size=6),
    columns=st.sampled_from([1, 3, 64, 100]),
    addend=st.sampled_from([None, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**32 - 1),
)
def test_product_equals_the_loop_in_float64(
    dtype: torch.dtype, degrees: list[int], columns: int, addend: torch.dtype | None, seed: int
) -> None:
    indptr, neighbours, weights = rows(degrees, seed)
    x_ND = normal(len(degrees), columns, seed=seed, dtype=dtype)
    addend_ND = None if addend is None else normal(len(degrees), columns, seed=seed + 1, dtype=addend)
    expected_ND = torch.zeros(len(degrees), columns, dtype=torch.float64)
    magnitude_ND = torch.zeros_like(expected_ND)
    if addend_ND is not None:
        expected_ND += addend_ND.cpu()
        magnitude_ND += addend_ND.cpu().abs()
    for row in range(len(degrees)):
        for entry in range(indptr[row], indptr[row + 1]):
            term_D = weights[entry].double().cpu() * x_ND[neighbours[entry]].double().cpu()
            expected_ND[row] += term_D
            magnitude_ND[row] += term_D.abs()
    operator = by_triton(indptr, neighbours, weights)
    y_ND = operator.product(x_ND, addend_ND, addend)
    within(y_ND, expected_ND, magnitude_ND, addend or dtype, max(degrees))
    assert torch.equal(y_ND, operator.product(x_ND, addend_ND, addend)), "the sums have one order"


@TYPES
def test_product_reads_no_row_of_an_addend_that_is_marked_as_zero(dtype: torch.dtype) -> None:
    """The last row is a hub, cut into pieces. What must not be read is not a number."""
    operator, x_ND = by_triton(*rows([2, 0, 3, 40], 1)), normal(4, 5, seed=1, dtype=dtype)
    touched_N = torch.tensor([0, 2, 0, 1], device=DEVICE)
    addend_ND = normal(4, 5, seed=2, dtype=dtype) * (touched_N > 0)[:, None]
    expected_ND = operator.product(x_ND, addend_ND)
    addend_ND[touched_N == 0] = torch.nan
    assert torch.equal(operator.product(x_ND, mark(addend_ND, touched_N)), expected_ND)


def test_product_of_more_columns_than_a_block_holds() -> None:
    operator = by_triton(*rows([2, 0, 17], 1))
    x_ND = normal(3, 513, seed=1)
    halves = [operator.product(x_ND[:, part].contiguous()) for part in (slice(0, 300), slice(300, 513))]
    assert torch.equal(operator.product(x_ND), torch.cat(halves, dim=1))


PAIRS = sorted({*planted.random_pairs(3, 12, 14, 0.2), *((0, item) for item in range(14))})


def operators(self_loops: bool = False) -> tuple[TorchOperator, TritonOperator]:
    """One graph, with a hub user: by PyTorch, and by Triton."""
    graph = planted.graph(PAIRS, 12, 14)
    plain = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale(self_loops), self_loops=self_loops)
    assert isinstance(plain, TorchOperator)
    names = ("indptr", "neighbours", "weights", "edges", *(["loop"] if self_loops else []))
    plain = replace(plain, **{name: getattr(plain, name).to(DEVICE) for name in names})
    return plain, TritonOperator.of(plain)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("self_loops", [False, True])
def test_dropped_edges_are_those_of_the_other_implementation(rate: float, self_loops: bool) -> None:
    key = torch.tensor([2**40 + 17], device=DEVICE)
    identity_NN = torch.eye(26, device=DEVICE)
    plain_NN, triton_NN = (operator.drop(rate, key).product(identity_NN) for operator in operators(self_loops))
    torch.testing.assert_close(triton_NN, plain_NN, rtol=1e-6, atol=0)
    assert torch.equal(triton_NN != 0, plain_NN != 0)


def test_weighed_edges_have_their_weight_at_both_ends() -> None:
    weights_E = normal(len(PAIRS), seed=4)
    expected_NN = torch.zeros(26, 26, device=DEVICE)
    for (user, item), weight in zip(PAIRS, weights_E, strict=True):
        expected_NN[user, 12 + item] = expected_NN[12 + item, user] = weight
    for operator in operators():
        assert torch.equal(operator.weigh(weights_E).product(torch.eye(26, device=DEVICE)), expected_NN)


@TYPES
@pytest.mark.parametrize("columns", [1, 64, 300])
def test_scores_of_pairs_equal_float64(dtype: torch.dtype, columns: int) -> None:
    """Eleven pairs, where a program has eight; more columns than a block has."""
    x_ND = normal(6, columns, seed=5, dtype=dtype)
    ends = torch.randint(6, (2, 11), generator=torch.Generator().manual_seed(6)).to(DEVICE, torch.int32)
    terms_ED = x_ND[ends[0]].double() * x_ND[ends[1]].double()
    within(pair_scores(x_ND, *ends), terms_ED.sum(dim=1), terms_ED.abs().sum(dim=1), torch.float32, columns)


@pytest.mark.parametrize("self_loops", [False, True])
def test_a_fork_adds_both_gradients(self_loops: bool) -> None:
    gradients = []
    for operator in operators(self_loops):
        x_ND = normal(26, 5, seed=1).requires_grad_()
        y_ND, same_ND = operator.fork(x_ND)
        assert torch.equal(same_ND, x_ND)
        (y_ND * normal(26, 5, seed=2) + same_ND * normal(26, 5, seed=3)).sum().backward()
        assert x_ND.grad is not None
        gradients.append(x_ND.grad)
    dense_NN = operators(self_loops)[0].product(torch.eye(26, device=DEVICE))
    expected_ND = dense_NN.T @ normal(26, 5, seed=2) + normal(26, 5, seed=3)
    for gradient_ND in gradients:
        torch.testing.assert_close(gradient_ND, expected_ND, rtol=1e-5, atol=1e-6)


def test_a_fork_of_float32_in_bfloat16_storage_gives_a_float32_gradient() -> None:
    operator = replace(operators()[1], storage=torch.bfloat16)
    x_ND = normal(26, 4, seed=1).requires_grad_()
    y_ND, same_ND = operator.fork(x_ND)
    assert (y_ND.dtype, same_ND.dtype) == (torch.bfloat16, torch.float32)
    small_ND = torch.full_like(x_ND, 2.0**-20)  # below bfloat16's resolution beside the product's gradient
    (y_ND.float().sum() + (same_ND * small_ND).sum()).backward()
    assert x_ND.grad is not None
    ones_ND = torch.ones(26, 4, dtype=torch.bfloat16, device=DEVICE)
    assert torch.equal(x_ND.grad, operator.product(ones_ND, small_ND, torch.float32))
    assert x_ND.grad.dtype == torch.float32


# -- BatchNorm, dropout and ReLU ------------------------------------------------------------------------------------


def oracle_norm(x_NH: Tensor, weight_H: Tensor, bias_H: Tensor, rate: float, key: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same in float64 by PyTorch's operations, the fates by the hash in Python integers; y, mean and variance."""
    mean_H, variance_H = x_NH.mean(0), x_NH.var(0, unbiased=False)
    normal_NH = (x_NH - mean_H) / (variance_H + 1e-5).sqrt()
    kept = [oracles.keeps(at, rate, key) for at in range(x_NH.numel())]
    kept_NH = torch.tensor(kept).view(x_NH.shape)
    y_NH = torch.relu(normal_NH * weight_H + bias_H) * kept_NH / (1 - rate)
    return y_NH, mean_H, variance_H


@TYPES
@pytest.mark.parametrize("shape", [(2, 1), (7, 3), (8, 8), (17, 9)], ids=str)
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_norm_dropout_relu_equals_float64(
    dtype: torch.dtype, shape: tuple[int, int], rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = 2**33 + 5
    monkeypatch.setattr(activation, "draw_key", lambda generator, device: torch.tensor([key], device=device))
    norm = nn.BatchNorm1d(shape[1]).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(normal(shape[1], seed=1))
        norm.bias.copy_(normal(shape[1], seed=2))
    # A mean a thousand deviations away: squares about zero would lose all but the first digits.
    offset = 1000.0 if dtype == torch.float32 else 3.0
    x_NH = (normal(*shape, seed=3) + offset).to(dtype).requires_grad_()
    grad_NH = normal(*shape, seed=4, dtype=dtype)
    y_NH = norm_dropout_relu(x_NH, norm, rate, torch.Generator())
    y_NH.backward(grad_NH)

    exact = [tensor.detach().double().cpu().requires_grad_() for tensor in (x_NH, norm.weight, norm.bias)]
    expected_NH, mean_H, variance_H = oracle_norm(*exact, rate, key)
    expected_NH.backward(grad_NH.double().cpu())
    # x less its mean is exact to x's own float32 roundoff: a thousand deviations cost three digits.
    tolerance = 8 * ROUNDOFF[dtype] + 2.0**-24 * 40 * offset
    torch.testing.assert_close(y_NH.double().cpu(), expected_NH.detach(), rtol=tolerance, atol=tolerance)
    assert norm.weight.grad is not None
    assert norm.bias.grad is not None
    for actual, parameter in zip((x_NH.grad, norm.weight.grad, norm.bias.grad), exact, strict=True):
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max()) + float(grad_NH.abs().max()) * len(x_NH) * 0.1
        torch.testing.assert_close(actual.double().cpu(), parameter.grad, rtol=tolerance, atol=tolerance * scale)
    momentum, unbiased = 0.1, shape[0] / (shape[0] - 1)
    torch.testing.assert_close(norm.running_mean.double().cpu(), momentum * mean_H.detach(), rtol=1e-6, atol=1e-6)
    expected_variance_H = 1 - momentum + momentum * unbiased * variance_H.detach()
    torch.testing.assert_close(norm.running_var.double().cpu(), expected_variance_H, rtol=1e-4, atol=0)
    assert norm.num_batches_tracked == 1


def test_norm_dropout_relu_is_the_same_each_time() -> None:
    norm, x_NH = nn.BatchNorm1d(9).to(DEVICE), normal(17, 9, seed=1)
    first, second = (norm_dropout_relu(x_NH, norm, 0.4, torch.Generator(DEVICE).manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)


def test_what_is_not_a_number_comes_through() -> None:
    """A loss that shows it stops the training; a ReLU that hid it would let the gradients spoil the parameters."""
    norm, x_NH = nn.BatchNorm1d(3).to(DEVICE), normal(9, 3, seed=1)
    x_NH[4, 1] = torch.nan
    y_NH = norm_dropout_relu(x_NH, norm, 0.4, torch.Generator(DEVICE).manual_seed(5))
    assert torch.equal(y_NH.isnan().any(0), torch.tensor([False, True, False], device=DEVICE))


def test_norm_without_a_generator_is_pytorchs() -> None:
    norm, x_NH = nn.BatchNorm1d(5).to(DEVICE).eval(), normal(9, 5, seed=1)
    assert torch.equal(norm_dropout_relu(x_NH, norm, 0.4, None), torch.relu(norm(x_NH)))


def test_dropout_of_some_rows_is_that_of_the_whole_matrix() -> None:
    x_NH = normal(10, 9, seed=1).requires_grad_()
    whole_NH, part_MH = (
        dropout_relu(rows_MH, 0.4, torch.Generator(DEVICE).manual_seed(5), first, 10)
        for rows_MH, first in ((x_NH, 0), (x_NH[3:8], 3))
    )
    assert torch.equal(whole_NH[3:8], part_MH)
    part_MH.sum().backward()
    assert x_NH.grad is not None
    assert torch.equal(x_NH.grad[3:8], (part_MH > 0) / 0.6)
    dropped = ((x_NH > 0) & (whole_NH == 0)).sum() / (x_NH > 0).sum()
    assert 0.1 < dropped < 0.7


# -- φ, the mixture and the first layer -----------------------------------------------------------------------------


@TYPES
@pytest.mark.parametrize("name", ["elu", "leaky-relu", "relu", "tanh"])
@pytest.mark.parametrize("also", [False, True], ids=["alone", "forked"])
def test_activation_and_its_gradient_equal_float64(dtype: torch.dtype, name: str, also: bool) -> None:
    x = (normal(9, 31, seed=1) * 10.0 ** torch.arange(-5, 4, device=DEVICE)[:, None]).to(dtype).requires_grad_()
    grad_y, grad_x = normal(9, 31, seed=2, dtype=dtype), normal(9, 31, seed=3, dtype=dtype)
    phi = Activation(name, 0.2)
    y, same = phi.fork(x)
    within(y.detach(), phi(x.detach().double().cpu()), x.detach().abs(), dtype)
    torch.autograd.backward([y, same] if also else [y], [grad_y, grad_x] if also else [grad_y])
    exact = x.detach().double().cpu().requires_grad_()
    phi(exact).backward(grad_y.double().cpu())
    assert exact.grad is not None
    assert x.grad is not None
    expected = exact.grad + (grad_x.double().cpu() if also else 0.0)
    # φ' comes from the stored φ, so it has that rounding as well.
    slack = (1 + 2 * ROUNDOFF[dtype]) * grad_y.abs().cpu() + (grad_x.abs().cpu() if also else 0.0)
    within(x.grad, expected, 2 * slack, dtype)


@TYPES
def test_activation_reads_no_row_of_a_gradient_that_is_marked_as_zero(dtype: torch.dtype) -> None:
    touched_N = torch.tensor([0, 2, 0, 1, 0, 0], device=DEVICE)
    x_ND, grad_y = normal(6, 5, seed=1, dtype=dtype).requires_grad_(), normal(6, 5, seed=2, dtype=dtype)
    grad_x = normal(6, 5, seed=3, dtype=dtype) * (touched_N > 0)[:, None]
    (expected,) = torch.autograd.grad(Activation("elu").fork(x_ND), x_ND, [grad_y, grad_x])
    grad_x[touched_N == 0] = torch.nan
    (found,) = torch.autograd.grad(Activation("elu").fork(x_ND), x_ND, [grad_y, mark(grad_x, touched_N)])
    assert torch.equal(found, expected)


@TYPES
@pytest.mark.parametrize("columns", [1, 5, 64])
def test_mixture_and_its_gradients_equal_float64(dtype: torch.dtype, columns: int) -> None:
    linear_ND = normal(6, columns, seed=1, dtype=dtype).requires_grad_()
    nonlinear_ND = normal(6, columns, seed=2, dtype=dtype).requires_grad_()
    choice_N2 = torch.softmax(normal(6, 2, seed=3), dim=1).requires_grad_()
    grad_ND = normal(6, columns, seed=4, dtype=dtype)
    mixed_ND = mix(choice_N2, linear_ND, nonlinear_ND)
    mixed_ND.backward(grad_ND)
    inputs = (choice_N2, linear_ND, nonlinear_ND)
    exact = [tensor.detach().double().cpu().requires_grad_() for tensor in inputs]
    expected_ND = exact[0][:, :1] * exact[1] + exact[0][:, 1:] * exact[2]
    expected_ND.backward(grad_ND.double().cpu())
    within(mixed_ND.detach(), expected_ND.detach(), exact[1].abs() + exact[2].abs(), dtype)
    for tensor, oracle in zip(inputs, exact, strict=True):
        assert tensor.grad is not None
        assert oracle.grad is not None
        within(tensor.grad, oracle.grad, 10.0, tensor.dtype, columns)


@TYPES
def test_mixture_reads_no_row_whose_gradient_is_marked_as_zero(dtype: torch.dtype) -> None:
    touched_N = torch.tensor([0, 2, 0, 1, 0, 0], device=DEVICE)
    untouched = touched_N == 0
    grad_ND = normal(6, 5, seed=4, dtype=dtype) * ~untouched[:, None]
    gradients = []
    for marked in (False, True):
        inputs = [torch.softmax(normal(6, 2, seed=3), dim=1), *(normal(6, 5, seed=at, dtype=dtype) for at in (1, 2))]
        if marked:
            for each in (inputs[1], inputs[2], grad_ND):
                each[untouched] = torch.nan
            mark(grad_ND, touched_N)
        mixed_ND = mix(*(each.requires_grad_() for each in inputs))
        gradients.append(torch.autograd.grad(mixed_ND, inputs, grad_ND))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@TYPES
@pytest.mark.parametrize("shape", [(2, 1), (7, 3), (21, 20)], ids=str)
def test_last_layer_and_its_gradients_equal_float64(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    tensors = (normal(*shape, seed=1, dtype=dtype), normal(shape[1], 2, seed=2), normal(2, seed=3))
    inputs = [tensor.requires_grad_() for tensor in tensors]
    grad_N2 = normal(shape[0], 2, seed=4)
    logits_N2 = head(inputs[0], inputs[1], inputs[2])
    logits_N2.backward(grad_N2)
    exact = [tensor.detach().double().cpu().requires_grad_() for tensor in inputs]
    expected_N2 = exact[0] @ exact[1] + exact[2]
    expected_N2.backward(grad_N2.double().cpu())
    within(logits_N2.detach(), expected_N2.detach(), 10.0, torch.float32, shape[1])
    for tensor, oracle in zip(inputs, exact, strict=True):
        assert tensor.grad is not None
        assert oracle.grad is not None
        within(tensor.grad, oracle.grad, 10.0, tensor.dtype, shape[0])


@pytest.mark.parametrize("hard", [False, True])
def test_noisy_choice_and_its_gradient_equal_float64(hard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    key, temperature = 2**33 + 5, torch.tensor(0.7, device=DEVICE)
    monkeypatch.setattr(activation, "draw_key", lambda generator, device: torch.tensor([key], device=device))
    logits_N2 = normal(7, 2, seed=1).requires_grad_()
    grad_N2 = normal(7, 2, seed=2)
    choice_N2 = gumbel_softmax(logits_N2, temperature, hard, torch.Generator())
    choice_N2.backward(grad_N2)
    # The hash's upper 23 bits, in the middle of their interval, as a logistic variable: the difference of two Gumbels.
    uniform_N = torch.tensor([((oracles.hashed(node, key) >> 9) + 0.5) / 2**23 for node in range(7)]).double()
    exact_N2 = logits_N2.detach().double().cpu().requires_grad_()
    noise_N2 = torch.stack([torch.zeros_like(uniform_N), torch.logit(uniform_N)], dim=1)
    soft_N2 = torch.softmax((exact_N2 + noise_N2) / 0.7, dim=1)
    soft_N2.backward(grad_N2.double().cpu())
    expected_N2 = nn.functional.one_hot(soft_N2.argmax(1), 2).double() if hard else soft_N2.detach()
    torch.testing.assert_close(choice_N2.detach().double().cpu(), expected_N2, rtol=1e-5, atol=1e-6)
    assert logits_N2.grad is not None
    torch.testing.assert_close(logits_N2.grad.double().cpu(), exact_N2.grad, rtol=1e-4, atol=1e-6)


def test_noise_makes_a_choice_as_often_as_its_softmax_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_gate, "CHOICES", 1024)
    logits_N2 = torch.tensor([[0.0, 1.0]], device=DEVICE).expand(4000, 2).contiguous()
    choice_N2 = gumbel_softmax(logits_N2, 0.5, True, torch.Generator(DEVICE).manual_seed(1))
    expected = float(torch.sigmoid(torch.tensor(1.0)))
    assert float(choice_N2[:, 1].mean()) == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 4000) ** 0.5)


def test_first_layer_adds_its_gradient_onto_the_mixtures() -> None:
    tensors = [normal(7, 4, seed=1), normal(7, 4, seed=2), normal(8, 3, seed=3)]
    linear_ND, nonlinear_ND, weight_2DH = (tensor.double().requires_grad_() for tensor in tensors)
    weights = normal(7, 3, seed=4).double(), normal(7, 4, seed=5).double(), normal(7, 4, seed=6).double()

    def total(hidden_NH: Tensor, one_ND: Tensor, other_ND: Tensor) -> Tensor:
        return (hidden_NH * weights[0]).sum() + (one_ND * weights[1]).sum() + (other_ND * weights[2]).sum()

    inputs = (linear_ND, nonlinear_ND, weight_2DH)
    actual = torch.autograd.grad(total(*dense(*inputs)), inputs)
    joined_NH = torch.cat([linear_ND, nonlinear_ND], dim=1) @ weight_2DH
    expected = torch.autograd.grad(total(joined_NH, linear_ND, nonlinear_ND), inputs)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


# -- the batch ------------------------------------------------------------------------------------------------------


def test_interactions_are_uniform_where_they_are_drawn() -> None:
    rows = [{3}, set(range(20)), set(range(15)), set(), {0, 19}]  # the second and the fourth cannot be drawn
    train = planted.csr([(user, item) for user, items in enumerate(rows) for item in sorted(items)], len(rows))
    sampler = TripletSampler(train, 20, DEVICE, "interaction")
    triplets = sampler.sample(9000, torch.Generator(DEVICE).manual_seed(1))
    drawn = list(zip(*(column.tolist() for column in triplets), strict=True))
    pairs = Counter((user, positive) for user, positive, _ in drawn)
    assert set(pairs) == {(user, item) for user in (0, 2, 4) for item in rows[user]}
    assert chisquare(list(pairs.values())).pvalue > 1e-3
    assert all(negative not in rows[user] for user, _, negative in drawn)


def test_triplets_are_exact_and_uniform() -> None:
    rows = [{3}, set(range(15)), {0, 19}, set(range(1, 20)), set(), set(range(20))]  # the last two cannot be drawn
    train = planted.csr([(user, item) for user, items in enumerate(rows) for item in sorted(items)], len(rows))
    triplets = TripletSampler(train, 20, DEVICE).sample(8000, torch.Generator(DEVICE).manual_seed(1))
    drawn = list(zip(*(column.tolist() for column in triplets), strict=True))
    for user, positive, negative in drawn:
        assert positive in rows[user]
        assert negative in set(range(20)) - rows[user]
    users = Counter(user for user, _, _ in drawn)
    assert chisquare([users[user] for user in range(4)]).pvalue > 1e-3
    for user in range(4):
        positives = Counter(positive for each, positive, _ in drawn if each == user)
        negatives = Counter(negative for each, _, negative in drawn if each == user)
        assert (len(positives), len(negatives)) == (len(rows[user]), 20 - len(rows[user]))
        assert len(positives) == 1 or chisquare(list(positives.values())).pvalue > 1e-3
        assert len(negatives) == 1 or chisquare(list(negatives.values())).pvalue > 1e-3
    pairs = Counter((positive, negative) for user, positive, negative in drawn if user == 2)
    assert len(pairs) == 36
    assert chisquare(list(pairs.values())).pvalue > 1e-3, "they are independent"


@TYPES
@pytest.mark.parametrize("columns", [1, 5, 64, 513])
@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("n_nodes", [9, 15], ids=["more rows than nodes", "fewer"])
def test_margins_and_their_gradients_equal_float64(
    dtype: torch.dtype, columns: int, n_layers: int, n_nodes: int
) -> None:
    types = [torch.float32, *[dtype] * (n_layers - 1)]  # e⁰ is a parameter
    layers = [normal(n_nodes, columns, seed=at, dtype=kind).requires_grad_() for at, kind in enumerate(types)]
    rows_3B = torch.tensor([0, 1, 0, 0, 5, 6, 5, 5, 7, 8, 6, 7], device=DEVICE)  # rows 2 to 4 are in no triplet
    grad_B, grad_norms = normal(4, seed=7), normal(1, seed=8)[0]
    margin_B, norms = mean_margins(layers, rows_3B)
    torch.autograd.backward([margin_B, norms], [grad_B, grad_norms])

    exact = [layer.detach().double().cpu().requires_grad_() for layer in layers]
    mean_3BD = (sum(exact[1:], exact[0]) / n_layers)[rows_3B.cpu()]
    user_BD, positive_BD, negative_BD = mean_3BD.chunk(3)
    expected_B = (user_BD * (positive_BD - negative_BD)).sum(1)
    expected_norms = exact[0][rows_3B.cpu()].square().sum() / 4
    torch.autograd.backward([expected_B, expected_norms], [grad_B.double().cpu(), grad_norms.double().cpu()])
    magnitude_B = (user_BD.abs() * (positive_BD.abs() + negative_BD.abs())).sum(1).detach()
    # A mean that is made for every node is rounded to the layers' type; a margin has four of them.
    rounded = ROUNDOFF[dtype] if n_nodes < len(rows_3B) and n_layers > 1 else 0.0
    error_B = (margin_B.detach().double().cpu() - expected_B.detach()).abs()
    assert (error_B <= (4 * rounded + (columns + 8) * 2.0**-24) * magnitude_B).all()
    within(norms.detach(), expected_norms.detach(), 0.0, torch.float32, columns)
    for layer, oracle in zip(layers, exact, strict=True):
        assert layer.grad is not None
        assert oracle.grad is not None
        assert layer.grad.dtype == layer.dtype
        error_ND = (layer.grad.double().cpu() - oracle.grad).abs()
        assert (error_ND <= (ROUNDOFF[layer.dtype] + rounded + 16 * 2.0**-24) * (20.0 + oracle.grad.abs())).all()
        assert not layer.grad[2:5].any()


@pytest.mark.parametrize(  # every pair of two settings once
    ("variant", "nonlinear_input", "readout"),
    [
        ("hmlet-all", "bypassed", "mean"),
        ("hmlet-all", "gated", "layerwise"),
        ("hmlet-end", "bypassed", "layerwise"),
        ("hmlet-end", "gated", "mean"),
    ],
)
def test_a_whole_pass_has_the_gradients_of_the_plain_one(
    variant: str, nonlinear_input: str, readout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [
        "layers=3",
        "embedding_size=4",
        "gate_hidden=[5, 3]",
        "gate_dropout=0.0",
        f'nonlinear_input="{nonlinear_input}"',
        f'readout="{readout}"',
    ]
    config = resolve(variant, overrides=[f"model.{change}" for change in changes]).model
    assert isinstance(config, HmletConfig)
    for name in ("PART", "SUMMED", "ROWS"):  # two pieces of the 26 rows: the kernels' own tests have the small ones
        monkeypatch.setattr(triton_mlp, name, 16)
    batch = Triplets(*torch.tensor([[0, 3], [13, 2], [13, 1]], device=DEVICE))
    gradients = []
    for triton, operator in enumerate(operators()):
        monkeypatch.setattr(launching, "triton_runs", lambda x, runs=bool(triton): runs)
        model = HMLET(config, planted.graph([], 12, 14), torch.Generator().manual_seed(1)).to(DEVICE)
        how = Pass(dropout=torch.Generator(DEVICE), hard=False)
        margin_B, norms = triplet_margins(model.propagate(operator, how), batch)
        (margin_B.square().sum() + norms).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(
            gradients[1][name], expected, rtol=1e-4, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )


@TYPES
@pytest.mark.parametrize(("n_layers", "columns"), [(1, 5), (3, 8), (5, 33)])
def test_unit_means_and_their_gradients(n_layers: int, columns: int, dtype: torch.dtype) -> None:
    """Eleven rows, one of them zeros; e⁰ is float32, the other layers are of the type that is stored."""
    made = [normal(11, columns, seed=seed, dtype=dtype if seed else torch.float32) for seed in range(n_layers)]
    for layer in made:
        layer[4] = 0.0
        layer.requires_grad_()
    grad_ND = normal(11, columns, seed=9)
    found_ND = Layers(made, made[0], 0, similarity="cosine").factors()
    found_ND.backward(grad_ND)  # type: ignore[no-untyped-call]

    exact = [layer.detach().double().cpu().requires_grad_() for layer in made]
    mean_ND = sum(exact[1:], exact[0]) / n_layers
    expected_ND = mean_ND / mean_ND.norm(dim=1, keepdim=True).clamp_min(SHORTEST)
    others = torch.arange(11) != 4
    expected_ND[others].backward(grad_ND.double().cpu()[others])
    assert found_ND.dtype == torch.float32
    assert (found_ND.detach().double().cpu() - expected_ND.detach()).abs().max() < 8 * 2.0**-24
    for layer, oracle in zip(made, exact, strict=True):
        assert layer.grad is not None
        assert oracle.grad is not None
        assert layer.grad.dtype == layer.dtype
        error_ND = (layer.grad.double().cpu() - oracle.grad).abs()[others]
        assert error_ND.max() <= (ROUNDOFF[layer.dtype] + columns * 2.0**-24) * 2 * oracle.grad.abs().max()
        # Of a row of zeros the length is taken to be the shortest.
        torch.testing.assert_close(
            layer.grad[4].float(), grad_ND[4] / n_layers / SHORTEST, rtol=4 * ROUNDOFF[layer.dtype], atol=0.0
        )


@TYPES
@pytest.mark.parametrize("n_items", [7, 64, 150])
def test_exponentials_and_their_sums(n_items: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_readout, "SCORES", 64)
    scores_MJ = normal(5, n_items, seed=3, dtype=dtype)
    scores_MJ[2, 1:4] = -torch.inf
    expected_MJ = scores_MJ.double().cpu().exp()
    sum_M = triton_readout.exponentials(scores_MJ)
    assert (scores_MJ.double().cpu() - expected_MJ).abs().max() <= (ROUNDOFF[dtype] + 2.0**-21) * expected_MJ.max()
    assert not scores_MJ[2, 1:4].any()
    torch.testing.assert_close(sum_M.double().cpu(), expected_MJ.sum(dim=1), rtol=2.0**-20, atol=0.0)


@pytest.mark.parametrize("counted", [False, True])
def test_log_sums_with_triton_are_those_without(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    users, items, weights = normal(6, 4, seed=1), normal(9, 4, seed=2), torch.rand(6, device=DEVICE)
    counts = torch.arange(9.0, device=DEVICE) if counted else None
    found = []
    for runs in (True, False):
        monkeypatch.setattr(launching, "triton_runs", lambda x, runs=runs: runs)
        inputs = [each.clone().requires_grad_() for each in (users, items, weights)]
        total = log_sums(*inputs, dtype=torch.float32, counts_J=counts)
        found.append([total.detach(), *torch.autograd.grad(total, inputs)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
