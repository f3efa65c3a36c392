"""The gate: Gumbel-softmax's frequencies, straight-through, noise-free choice and ties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import oracles
import pytest
import torch
from scipy.stats import binom
from threaded import on_two
from torch import Tensor, nn

from hmlet.graph.kernels import gumbel_softmax, mix
from hmlet.models import Pass
from hmlet.models.gating import LINEAR, NONLINEAR, Gate, batch_norm
from hmlet.system.ranks import Ranks

LOGITS = torch.tensor([[0.0, 0.0], [1.0, -0.5], [-2.0, 0.3], [4.0, 3.5], [-3.0, 3.0]])
DRAWS = 40_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("temperature", [0.01, 0.7, 5.0])
def test_choices_follow_the_softmax_of_the_logits_at_any_temperature(temperature: float) -> None:
    """argmax(logits + Gumbel noise) has the softmax's probabilities; the temperature does not move them."""
    many = LOGITS.repeat_interleave(DRAWS, dim=0)
    chosen_N2 = gumbel_softmax(many, temperature, True, generator(3))
    counts = chosen_N2[:, NONLINEAR].reshape(len(LOGITS), DRAWS).sum(dim=1)
    for count, probability in zip(counts.tolist(), oracles.softmax(LOGITS.double().numpy())[:, 1], strict=True):
        low, high = binom.interval(1 - 1e-4, DRAWS, probability)
        assert low <= count <= high


def test_soft_samples_round_to_the_same_choices() -> None:
    many = LOGITS.repeat_interleave(100, dim=0)
    soft = gumbel_softmax(many, 0.5, False, generator(3))
    hard = gumbel_softmax(many, 0.5, True, generator(3))
    assert torch.equal((soft[:, NONLINEAR] > 0.5).float(), hard[:, NONLINEAR])
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(len(many)))


@pytest.mark.parametrize("noise", [True, False])
@pytest.mark.parametrize("temperature", [0.05, 0.7])
def test_straight_through_is_one_hot_forward_and_the_soft_gradient_backward(noise: bool, temperature: float) -> None:
    logits = torch.randn(2000, 2, generator=generator(1))
    weight = torch.randn(2000, 2, generator=generator(2))
    gradients, values = [], []
    for hard in (True, False):
        leaf = logits.clone().requires_grad_()
        value = gumbel_softmax(leaf, temperature, hard, generator(5) if noise else None)
        (value * weight).sum().backward()
        values.append(value.detach())
        gradients.append(leaf.grad)
    assert set(values[0].flatten().tolist()) == {0.0, 1.0}, "exactly, not up to a rounding"
    assert (values[0].sum(dim=1) == 1).all()
    assert torch.equal(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0


def test_the_soft_value_is_the_softmax_of_noisy_logits() -> None:
    uniform = torch.empty_like(LOGITS).uniform_(generator=generator(6)).double()
    gumbel = -torch.log(-torch.log(uniform))
    expected = oracles.softmax((LOGITS.double() + gumbel).numpy(), 0.7)
    np.testing.assert_allclose(gumbel_softmax(LOGITS, 0.7, False, generator(6)), expected, rtol=1e-4)


def test_without_noise_the_larger_logit_wins_and_ties_are_linear() -> None:
    tied = torch.cat([LOGITS, torch.tensor([[2.5, 2.5], [0.0, 1e-30], [1e-30, 0.0]])])
    assert gumbel_softmax(tied, 0.7, True, None).tolist() == oracles.argmax(tied.double().numpy()).tolist()
    assert gumbel_softmax(torch.zeros(1, 2), 0.7, True, None)[0, LINEAR] == 1


def test_mix_weighs_the_two_branches() -> None:
    choice = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.25, 0.75]])
    linear, nonlinear = torch.tensor([[4.0], [4.0], [4.0]]), torch.tensor([[8.0], [8.0], [8.0]])
    assert mix(choice, linear, nonlinear).flatten().tolist() == [4.0, 8.0, 7.0]


def test_a_hard_gate_trains_its_parameters() -> None:
    """The paper's reason for straight-through: the choice is discrete, and the MLP still learns."""
    gate = Gate(3, (4,), 0.0, generator(1))
    linear, nonlinear = torch.randn(50, 3, generator=generator(2)), torch.randn(50, 3, generator=generator(3))
    chosen, _ = gate(linear, nonlinear, Pass(noise=generator(4)))
    chosen.sum().backward()
    assert all(parameter.grad is not None for parameter in gate.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in gate.dense)


def test_gate_dropout_leaves_the_expected_share_and_scale() -> None:
    from hmlet.models.base import dropout

    ones = torch.ones(100, 1000)
    dropped = dropout(ones, 0.2, Pass(dropout=generator(1)), len(ones))
    low, high = binom.interval(1 - 1e-4, ones.numel(), 0.8)
    assert low <= int((dropped != 0).sum()) <= high
    torch.testing.assert_close(dropped[dropped != 0].unique(), torch.tensor([1.25]))
    assert dropout(ones, 0.2, Pass(), len(ones)) is ones
    assert dropout(ones, 0.0, Pass(dropout=generator(1)), len(ones)) is ones


@dataclass(frozen=True)
class FirstOfTwo(Ranks):
    """A rank that meets another, which sends the moments of its own rows."""

    other_2H: Tensor | None = None

    def gather(self, x_MF: Tensor, n: int) -> Tensor:
        assert self.other_2H is not None
        assert n == self.size
        return torch.cat([x_MF, self.other_2H[None]])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_over_two_ranks_is_that_of_all_nodes(training: bool) -> None:
    """Seven nodes, of which the first rank has four."""
    x_NH = torch.randn(7, 3, generator=generator(1), dtype=torch.float64) * 2 + 5
    ours, whole = (nn.BatchNorm1d(3).double().train(training) for _ in range(2))
    for norm in (ours, whole):
        norm.weight.data.copy_(torch.tensor([0.5, 1.5, -1.0]))
        norm.bias.data.copy_(torch.tensor([1.0, -2.0, 0.0]))
    ranks = FirstOfTwo(size=2, other_2H=torch.stack(torch.var_mean(x_NH[4:], dim=0, correction=0)))
    torch.testing.assert_close(batch_norm(x_NH[:4], ours, ranks, 7), whole(x_NH)[:4], rtol=1e-12, atol=1e-12)
    for (name, found), expected in zip(ours.named_buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(found, expected, msg=name)
    assert ours.num_batches_tracked == int(training)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 3)])
def test_a_gate_over_two_ranks_is_the_gate_of_all_columns(hidden: tuple[int, ...]) -> None:
    """Each rank gives three of six columns, and gets its three columns of the choice back."""
    linear_ND, nonlinear_ND = (torch.randn(7, 6, generator=generator(seed)) for seed in (1, 2))
    expected_ND, expected_N = Gate(6, hidden, 0.0, generator(3))(linear_ND, nonlinear_ND, Pass(hard=False))

    def forward(ranks: Ranks) -> tuple[Tensor, Tensor]:
        gate = Gate(6, hidden, 0.0, generator(3))
        own: tuple[Tensor, Tensor] = gate(
            ranks.own_columns(linear_ND), ranks.own_columns(nonlinear_ND), Pass(hard=False, ranks=ranks)
        )
        return own

    found = on_two(forward)
    torch.testing.assert_close(torch.cat([chosen_NC for chosen_NC, _ in found], dim=1), expected_ND)
    for _, probability_N in found:
        torch.testing.assert_close(probability_N, expected_N)
