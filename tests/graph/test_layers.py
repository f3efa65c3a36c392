"""How layers become factors: of length one for cosines, in parts that add up, with the right gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from hmlet.graph.layers import Joined, JoinedBy, Layers, Similarity, unit_rows
from hmlet.system.ranks import Ranks


def tables() -> list[Tensor]:
    return [
        torch.randn(7, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
        for seed in range(3)
    ]


def layers(embeddings_ND: list[Tensor], joined_by: JoinedBy, similarity: Similarity) -> Layers:
    return Layers(embeddings_ND, embeddings_ND[0], 3, joined=Joined(joined_by, 0.5), similarity=similarity)


@pytest.mark.parametrize("rows", [None, torch.tensor([5, 0, 5])], ids=["all rows", "some rows"])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("joined_by", ["mean", "concatenation", "last"])
def test_factors_and_their_gradients(joined_by: JoinedBy, similarity: Similarity, rows: Tensor | None) -> None:
    made = tables()
    joined = {
        "mean": torch.stack(made).mean(dim=0), "concatenation": 0.5 * torch.cat(made, dim=1), "last": made[-1],
    }[joined_by]  # fmt: skip
    expected = joined if similarity == "dot" else joined / joined.norm(dim=1, keepdim=True)
    found = layers(made, joined_by, similarity).factors(rows)
    torch.testing.assert_close(found, expected if rows is None else expected[rows])
    assert torch.autograd.gradcheck(lambda *each: layers(list(each), joined_by, similarity).factors(rows), made)


def test_concatenated_layers_keep_their_length_by_default() -> None:
    made = tables()
    assert torch.equal(Layers(made, made[0], 3, joined=Joined("concatenation")).factors(), torch.cat(made, dim=1))


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("joined_by", ["mean", "concatenation", "last"])
def test_parts_add_up_to_the_factors(joined_by: JoinedBy, similarity: Similarity) -> None:
    made = layers(tables(), joined_by, similarity)
    parts = made.parts()
    assert len(parts) == 3
    torch.testing.assert_close(torch.stack(parts).sum(dim=0), made.factors())


def test_a_row_of_zeros_stays_one_and_has_a_finite_gradient() -> None:
    x_RF = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    unit_RF = unit_rows(x_RF)
    unit_RF.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(unit_RF.detach(), torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    assert x_RF.grad is not None
    assert x_RF.grad.isfinite().all()


@dataclass(frozen=True)
class FirstOfTwo(Ranks):
    """A rank with half of the columns; what the other one adds to each sum is known."""

    others: list[Tensor] = field(default_factory=list)

    def total(self, *parts: Tensor) -> list[Tensor]:
        return [part + self.others.pop(0) for part in parts]


def test_unit_rows_over_two_ranks_are_those_of_all_columns() -> None:
    generator = torch.Generator().manual_seed(1)
    whole, grad = (torch.randn(5, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    whole.requires_grad_()
    unit = unit_rows(whole)
    unit.backward(grad)  # type: ignore[no-untyped-call]
    assert whole.grad is not None
    along = (unit * grad).detach()[:, 3:].sum(dim=1, keepdim=True)
    own = whole[:, :3].detach().requires_grad_()
    ranks = FirstOfTwo(size=2, others=[whole[:, 3:].detach().square().sum(dim=1, keepdim=True), along])
    found = unit_rows(own, ranks)
    torch.testing.assert_close(found, unit[:, :3])
    found.backward(grad[:, :3])  # type: ignore[no-untyped-call]
    torch.testing.assert_close(own.grad, whole.grad[:, :3])


def test_parts_of_a_row_of_zeros_are_zeros() -> None:
    for part in layers([torch.zeros(2, 3)] * 2, "mean", "cosine").parts():
        assert not part.any()


def test_bfloat16_rows_become_float32_ones() -> None:
    x_RF = torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16, requires_grad=True)
    unit_RF = unit_rows(x_RF)
    assert unit_RF.dtype == torch.float32
    unit_RF[0, 0].backward()  # type: ignore[no-untyped-call]
    assert x_RF.grad is not None
    assert x_RF.grad.dtype == torch.bfloat16
