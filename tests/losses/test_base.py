"""What every loss has: how many steps an epoch takes, and the penalty, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hmlet.data import Csr
from hmlet.errors import DataError
from hmlet.graph import Sizes
from hmlet.losses import LOSSES, penalty
from hmlet.losses.base import LossConfig, row_norms
from hmlet.losses.bpr import BPR
from hmlet.training.steps import steps_per_epoch


def test_an_epoch_draws_as_many_entries_as_there_are_interactions() -> None:
    train = Csr(np.array([0, 3, 7]), np.array([0, 1, 2, 0, 1, 2, 3], dtype=np.int32))
    assert [steps_per_epoch(BPR(LossConfig()), train, size) for size in (1, 3, 7, 100)] == [7, 3, 1, 1]


@pytest.mark.parametrize(
    ("name", "settings"), [("bpr", {}), ("softmax", {}), ("softmax", {"negatives": 3}), ("bsl", {"positives": 2})]
)
def test_a_blank_batch_has_the_shapes_of_a_drawn_one(name: str, settings: dict[str, Any]) -> None:
    train = Csr(np.array([0, 3, 7]), np.array([0, 1, 2, 0, 1, 2, 3], dtype=np.int32))
    loss: Any = LOSSES[name](LOSSES[name].Config(**settings))
    drawn = loss.sampler(train, 5, torch.device("cpu"), "user").sample(8, torch.Generator().manual_seed(1))
    blank = loss.blank(8, Sizes(2, 5, 7), "cpu")
    assert type(blank) is type(drawn)
    for empty, real in zip(blank, drawn, strict=True):
        assert (empty is None) == (real is None)
        if empty is not None:
            assert (empty.shape, empty.dtype, empty.is_meta) == (real.shape, real.dtype, True)


@pytest.mark.parametrize("name", LOSSES)
def test_users_with_nothing_or_everything_cannot_be_trained_on(name: str) -> None:
    loss = LOSSES[name](LOSSES[name].Config())
    train = Csr(np.array([0, 2, 2]), np.array([0, 1], dtype=np.int32))
    loss.sampler(train, 3, torch.device("cpu"), "user")
    with pytest.raises(DataError, match="some, but not all"):
        loss.sampler(train, 2, torch.device("cpu"), "user")


def test_rows_count_as_often_as_they_occur_and_are_divided_by_the_entries() -> None:
    users, items = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    assert row_norms([users, items]).item() == (2 * 5 + 9 + 1) / 2
    assert row_norms([users]).item() == 5
    assert row_norms([users, items[:1]]).item() == (2 * 5 + 9) / 2  # B is the number of users


def test_a_penalty_is_half_of_the_squares() -> None:
    norms, weights = torch.tensor(6.0), [torch.tensor([1.0, 3.0]), torch.tensor([[2.0]])]
    assert penalty(norms).item() == 3.0
    assert penalty(norms, weights).item() == pytest.approx((6 + 10 + 4) / 2)
