"""Marked gradients: the mark comes through autograd, and goes as soon as it could be wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hmlet.graph.kernels.rows import mark, touched

ROWS_N = torch.tensor([1, 0, 2])


class Marking(torch.autograd.Function):
    """x, with a marked gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return mark(torch.ones(3, 2) * (ROWS_N > 0)[:, None], ROWS_N)


class Asking(torch.autograd.Function):
    """x, noting what its gradient is marked with."""

    noted: Tensor | None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        Asking.noted = touched(grad)
        return grad


def test_a_gradient_is_unmarked_unless_it_was_marked() -> None:
    assert touched(None) is None
    assert touched(torch.zeros(3, 2)) is None
    assert touched(mark(torch.zeros(3, 2), ROWS_N)) is ROWS_N


def test_a_gradient_that_was_written_to_is_marked_no_longer() -> None:
    assert touched(mark(torch.zeros(3, 2), ROWS_N).add_(1.0)) is None


@pytest.mark.parametrize("users", [1, 2, 3])
def test_autograd_hands_a_mark_on_and_drops_it_where_it_adds_gradients(users: int) -> None:
    """Autograd may add in place; a mark that stayed would hide what the other users bring."""
    x = torch.zeros(3, 2, requires_grad=True)
    y = Asking.apply(x)  # type: ignore[no-untyped-call]
    total = Marking.apply(y).sum()  # type: ignore[no-untyped-call]
    for _ in range(users - 1):
        total = total + y.sum()
    total.backward()
    assert (Asking.noted is ROWS_N) == (users == 1)
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [users, users - 1, users]
