"""What every loss has: how many steps an epoch takes, and the penalty, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hmlet.data import Csr
from hmlet.losses import Loss, penalty
from hmlet.losses.base import LossConfig, row_norms
from hmlet.losses.bpr import BPR


def test_an_epoch_draws_as_many_entries_as_there_are_interactions() -> None:
    train = Csr(np.array([0, 3, 7]), np.array([0, 1, 2, 0, 1, 2, 3], dtype=np.int32))
    assert [BPR(LossConfig()).steps(train, size) for size in (1, 3, 7, 100)] == [7, 3, 1, 1]


def test_a_sampler_that_holds_nothing_takes_no_bytes() -> None:
    assert Loss.sampler_bytes(BPR(LossConfig()), 10, 10, 10, "cpu", "user") == 0


def test_rows_count_as_often_as_they_occur_and_are_divided_by_the_entries() -> None:
    users, items = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    assert row_norms([users, items]).item() == (2 * 5 + 9 + 1) / 2
    assert row_norms([users]).item() == 5
    assert row_norms([users, items[:1]]).item() == (2 * 5 + 9) / 2  # B is the number of users


def test_a_penalty_is_half_of_the_squares() -> None:
    norms, weights = torch.tensor(6.0), [torch.tensor([1.0, 3.0]), torch.tensor([[2.0]])]
    assert penalty(norms).item() == 3.0
    assert penalty(norms, weights).item() == pytest.approx((6 + 10 + 4) / 2)
