"""Metrics against naive loops and by hand."""

from __future__ import annotations

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmlet.ranking.metrics import METRICS, per_user


def of_one(hits: list[int], relevant: int, k: int) -> dict[str, float]:
    values = per_user(torch.tensor([hits]).bool().reshape(1, len(hits)), torch.tensor([relevant]), k)
    return {name: value.item() for name, value in values.items()}


@given(st.data())
def test_metrics_equal_the_naive_loop(data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 12))
    width = data.draw(st.integers(1, k))  # a small catalogue has fewer columns than k
    users = data.draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=5))
    # Where it has, nobody has more relevant items than it has items.
    most = [15 if width == k else width - sum(hits) for hits in users]
    extra = [data.draw(st.integers(0 if any(hits) else 1, up_to)) for hits, up_to in zip(users, most, strict=True)]
    relevant = [sum(hits) + more for hits, more in zip(users, extra, strict=True)]
    ours = per_user(torch.tensor(users), torch.tensor(relevant), k)
    assert tuple(ours) == METRICS
    for row, (hits, count) in enumerate(zip(users, relevant, strict=True)):
        # Item r stands at rank r; relevant items that were not found have other numbers.
        wanted = {rank for rank, hit in enumerate(hits) if hit}
        wanted |= {1000 + missed for missed in range(count - len(wanted))}
        expected = oracles.metrics(range(width), wanted, k)
        assert {name: values[row].item() for name, values in ours.items()} == pytest.approx(expected, rel=1e-12)


def test_ndcg_by_hand() -> None:
    second, third = 1 / math.log2(3), 0.5
    assert of_one([1, 0, 1], 2, 3)["ndcg"] == pytest.approx((1 + third) / (1 + second))  # 0.9197
    assert of_one([1, 0, 1], 2, 3)["ndcg"] == pytest.approx(0.91972, abs=1e-5)
    assert of_one([0, 1, 0], 1, 3)["ndcg"] == pytest.approx(0.63093, abs=1e-5)
    assert of_one([1, 1, 1], 40, 3)["ndcg"] == 1.0, "the ideal list is cut at k"
    assert of_one([1, 0, 0], 3, 3)["ndcg"] == pytest.approx(1 / (1 + second + third))
    assert of_one([0, 0, 0], 3, 3)["ndcg"] == 0.0


def test_the_others_by_hand() -> None:
    values = of_one([0, 1, 0, 1, 0], 3, 5)
    assert values["recall"] == pytest.approx(2 / 3)
    assert values["precision"] == pytest.approx(2 / 5)
    assert values["map"] == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert values["mrr"] == pytest.approx(1 / 2)
    assert values["hit_rate"] == 1.0
    nothing = of_one([0, 0, 0, 0, 0], 3, 5)
    assert set(nothing.values()) == {0.0}


def test_k_beyond_the_catalogue() -> None:
    """Three items, k = 5: precision is still a share of 5, and a perfect list is still perfect."""
    values = of_one([1, 1, 1], 3, 5)
    assert (values["ndcg"], values["recall"], values["map"]) == (1.0, 1.0, 1.0)
    assert values["precision"] == pytest.approx(3 / 5)
    assert of_one([1, 1, 1], 3, 10**15)["ndcg"] == 1.0, "nothing is made that is as long as k"


def test_values_are_float64() -> None:
    assert {values.dtype for values in per_user(torch.ones(2, 3), torch.tensor([1, 4]), 3).values()} == {torch.float64}


def test_no_number_is_read_from_the_device() -> None:
    """Tensors without memory have none to give."""
    hits_BK, relevant_B = torch.ones(2, 3, device="meta").bool(), torch.ones(2, dtype=torch.int64, device="meta")
    assert {values.shape for values in per_user(hits_BK, relevant_B, 3).values()} == {(2,)}
