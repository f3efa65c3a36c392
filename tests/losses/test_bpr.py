"""The BPR loss and the penalty against hand-computed values and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from hmlet.graph.layers import Joined, JoinedBy, Layers
from hmlet.losses.base import LossConfig, penalty, row_norms
from hmlet.losses.bpr import BPR, bpr, margins
from hmlet.losses.sampling import Triplets


def test_bpr_of_a_hand_computed_batch() -> None:
    user = torch.tensor([[1.0, 2.0], [0.5, 0.0]], dtype=torch.float64)
    positive = torch.tensor([[1.0, 1.0], [2.0, 7.0]], dtype=torch.float64)
    negative = torch.tensor([[2.0, 0.0], [0.0, -7.0]], dtype=torch.float64)
    expected = sum(-math.log(1 / (1 + math.exp(-margin))) for margin in (3.0 - 2.0, 1.0 - 0.0)) / 2
    assert bpr(margins(user, positive, negative)).item() == pytest.approx(expected, rel=1e-12)
    assert bpr(margins(user, negative, positive)).item() == pytest.approx(
        expected + 1.0, rel=1e-12
    )  # -ln σ(-m) = -ln σ(m) + m


def test_bpr_stays_finite_at_huge_margins() -> None:
    one, far = torch.tensor([[1.0]]), torch.tensor([[1e4]])
    assert bpr(margins(one, far, -far)).item() == 0.0
    assert bpr(margins(one, -far, far)).item() == pytest.approx(2e4)


def test_bpr_does_not_depend_on_how_often_the_batch_is_repeated() -> None:
    """The loss is a mean: doubling the batch must not halve or double it."""
    tensors = [
        torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in range(3)
    ]
    twice = [torch.cat([tensor, tensor]) for tensor in tensors]
    assert bpr(margins(*twice)).item() == pytest.approx(bpr(margins(*tensors)).item(), rel=1e-12)
    assert penalty(row_norms(twice)).item() == pytest.approx(penalty(row_norms(tensors)).item(), rel=1e-12)


def test_penalty_of_a_hand_computed_batch() -> None:
    rows = [torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])]
    assert penalty(row_norms(rows)).item() == pytest.approx((25 + 2) / 2 / 2)
    assert penalty(row_norms(rows), [torch.tensor([[2.0]]), torch.tensor([1.0, 1.0])]).item() == pytest.approx(
        27 / 4 + (4 + 2) / 2
    )


def test_gradients_equal_finite_differences() -> None:
    inputs = tuple(
        torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
        for seed in range(3)
    )
    assert torch.autograd.gradcheck(lambda *rows: bpr(margins(*rows)), inputs)
    assert torch.autograd.gradcheck(lambda *rows: penalty(row_norms(rows[:2]), rows[2:]), inputs)


@pytest.mark.parametrize("times", [1, 5], ids=["few rows", "more rows than nodes"])
@pytest.mark.parametrize(("joined_by", "scale"), [("mean", 1.0), ("concatenation", 0.5), ("last", 1.0)])
def test_a_batch_costs_what_loops_over_its_triplets_say(joined_by: JoinedBy, scale: float, times: int) -> None:
    """Of 3 users and 4 items; a large batch takes the fused path, which `last` does not have."""
    tables = [
        torch.randn(7, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in range(3)
    ]
    triplets = [(0, 1, 3), (2, 0, 2)] * times
    parts = {"mean": [sum(tables) / 3], "concatenation": [table * scale for table in tables], "last": tables[-1:]}
    total = rows = 0.0
    for user, positive, negative in triplets:
        margin = sum(float(x[user] @ (x[3 + positive] - x[3 + negative])) for x in parts[joined_by])
        total += math.log(1 + math.exp(-margin))
        rows += sum(float(tables[0][node].square().sum()) for node in (user, 3 + positive, 3 + negative))
    layers = Layers(tables, tables[0], 3, joined=Joined(joined_by, scale))
    batch = Triplets(*torch.tensor(triplets).T)
    value, norms = BPR(LossConfig())(layers, batch)
    assert value.item() == pytest.approx(total / len(triplets), rel=1e-12)
    assert norms.item() == pytest.approx(rows / len(triplets), rel=1e-12)
