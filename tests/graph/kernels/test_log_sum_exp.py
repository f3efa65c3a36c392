"""Sums of exponentials in blocks: gradients, the range of floats, bfloat16, and the k-th best score."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmlet.graph.kernels import Own, kth_best, log_sum_exp, log_sums

ITEMS = torch.tensor([2, 7, 7, 0, 19, 4])  # item 7 was drawn twice


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two rows of six numbers."""
    monkeypatch.setitem(log_sum_exp.BLOCK_BYTES, "cpu", 2 * 8 * 6)


def test_weights_and_own_scores_have_gradients_too(small_blocks: None) -> None:
    generator = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    users, items, weights, own = numbers(5, 4), numbers(6, 4), numbers(5), numbers(5)
    counts = torch.tensor([2.5, 0.5, 1.0, 7.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    item = torch.tensor([2, 9, 0, 4, 7])
    for bounded in (False, True):
        assert torch.autograd.gradcheck(
            lambda u, v, w, s, c, bounded=bounded: log_sums(
                u, v, w, dtype=u.dtype, bounded=bounded, own=Own(s, item, ITEMS), counts_J=c
            ),
            (users, items, weights, own, counts),
        )


def test_an_item_counts_as_often_as_said(small_blocks: None) -> None:
    generator = torch.Generator().manual_seed(5)
    users, items = (torch.randn(count, 4, generator=generator, dtype=torch.float64) for count in (5, 6))
    counts, weights = torch.tensor([2.5, 0.5, 1.0, 7.0, 0.0, 2.0]).double(), torch.rand(5, generator=generator).double()
    expected = weights @ ((users @ items.T).exp() @ counts).log()
    for bounded in (False, True):
        total = log_sums(users, items, weights, dtype=users.dtype, bounded=bounded, counts_J=counts)
        assert total.item() == pytest.approx(expected.item(), rel=1e-12)


def test_huge_scores_stay_finite() -> None:
    users, items = torch.tensor([[300.0], [-300.0]], requires_grad=True), torch.tensor([[1.0], [0.5], [-1.0]])
    total = log_sums(users, items, torch.ones(2), dtype=torch.float32)
    total.backward()  # type: ignore[no-untyped-call]
    assert total.item() == pytest.approx(600.0)
    assert users.grad is not None
    assert users.grad.tolist() == [[1.0], [-1.0]]


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("aligned", [1, 64])
def test_bfloat16_blocks_are_near_float32(counted: bool, aligned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU, and as on CUDA: padded items count nothing, sums over rows keep float32."""
    monkeypatch.setitem(log_sum_exp.ALIGNED, "cpu", aligned)
    generator = torch.Generator().manual_seed(4)
    users, items = (
        torch.nn.functional.normalize(torch.randn(count, 32, generator=generator), dim=1) for count in (40, 100)
    )
    count = torch.arange(1, 101).float() if counted else torch.ones(100)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        u, v, c = (users / 0.1).requires_grad_(), items.clone().requires_grad_(), count.clone().requires_grad_()
        counts = c if counted else None
        total = log_sums(u, v, torch.full((40,), 1 / 40), dtype=dtype, bounded=True, counts_J=counts)
        total.backward()  # type: ignore[no-untyped-call]
        found.append((total.item(), u.grad, v.grad, *([c.grad] if counted else [])))
    exact = torch.logsumexp(users / 0.1 @ items.T + count.log(), dim=1).mean().item()
    assert found[0][0] == pytest.approx(exact, rel=1e-5)
    assert found[1][0] == pytest.approx(exact, rel=1e-2)
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        assert (one - other).norm() < 0.02 * one.norm()  # type: ignore[union-attr, operator]


def test_the_kth_best_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact where there are few items; else never above it, and seldom far below."""
    generator = torch.Generator().manual_seed(5)
    users, items = torch.randn(50, 8, generator=generator), torch.randn(1003, 8, generator=generator)
    best = torch.sort(users @ items.T, dim=1, descending=True).values
    torch.testing.assert_close(kth_best(users, items[:90], 3, torch.float32), _kth(users, items[:90], 3))
    found = kth_best(users, items, 5, torch.float32)
    assert (found <= best[:, 4] + 1e-5).all()
    assert (found >= best[:, 6] - 1e-5).all()  # of five items in 160 groups, three would have to share one
    assert ((found - best[:, 4]).abs() < 1e-5).float().mean() > 0.8


@pytest.mark.parametrize(("n_items", "k"), [(1003, 5), (1003, 1), (320, 10), (319, 10), (3, 7)])
def test_the_kth_best_is_that_of_32_k_groups(n_items: int, k: int) -> None:
    """Item j is in group j modulo 32 k, and each group is as good as its best item."""
    generator = torch.Generator().manual_seed(6)
    users, items = torch.randn(4, 8, generator=generator), torch.randn(n_items, 8, generator=generator)
    scores, groups, place = (users @ items.T).tolist(), 32 * min(k, n_items), min(k, n_items)
    expected = []
    for row in scores:
        best = [max(row[first::groups]) for first in range(min(groups, n_items))]
        expected.append(sorted(best, reverse=True)[place - 1])
    torch.testing.assert_close(kth_best(users, items, k, torch.float32), torch.tensor(expected))


def test_two_good_items_of_one_group_count_once() -> None:
    """Of k = 2, items 0 and 64 share a group. So the second best group is that of item 5."""
    items = torch.zeros(130, 1)
    items[[0, 64, 5], 0] = torch.tensor([10.0, 9.0, 8.0])
    assert kth_best(torch.ones(1, 1), items, 2, torch.float32).tolist() == [8.0]
    offset = torch.zeros(130)
    offset[7] = 9.5
    assert kth_best(torch.ones(1, 1), items, 2, torch.float32, offset).tolist() == [9.5]


@pytest.mark.parametrize(
    ("bytes_", "sizes"), [(4 * 6 * 4, [3, 2]), (4 * 6 * 5, [5]), (4 * 6 * 2, [2, 2, 1]), (1, [1] * 5)]
)
def test_blocks_are_about_equal(bytes_: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows of six scores in four bytes: where four fit, three and two are taken."""
    monkeypatch.setitem(log_sum_exp.BLOCK_BYTES, "cpu", bytes_)
    users, items = torch.randn(5, 2), torch.randn(6, 2)
    found = [(rows, scores.clone()) for rows, scores in log_sum_exp._Blocks(users, items, torch.float32).each()]
    assert [len(scores) for _, scores in found] == sizes
    assert [rows.start for rows, _ in found] == [sum(sizes[:at]) for at in range(len(sizes))]
    torch.testing.assert_close(torch.cat([scores for _, scores in found]), users @ items.T)


@pytest.mark.parametrize("bounded", [True, False])
def test_no_rows_have_no_sum(bounded: bool) -> None:
    """As on a rank that has no row of a batch."""
    users, items = torch.zeros(0, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    total = log_sums(users, items, torch.zeros(0), dtype=torch.float32, bounded=bounded)
    total.backward()  # type: ignore[no-untyped-call]
    assert total.item() == 0.0
    assert items.grad is not None
    assert not items.grad.any()


def _kth(users: Tensor, items: Tensor, k: int) -> Tensor:
    return torch.topk(users @ items.T, k, dim=1).values[:, -1]
