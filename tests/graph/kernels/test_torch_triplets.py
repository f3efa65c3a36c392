"""A large batch's margins on CPU against the plain formula in float64: values, gradients, ways to join layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmlet.graph.kernels import can_fuse
from hmlet.graph.layers import Joined, JoinedBy, Layers
from hmlet.losses import bpr as losses
from hmlet.losses.sampling import Triplets


def layers_and_rows(
    joined: JoinedBy, count: int, batch: int, n_nodes: int = 30, size: int = 70
) -> tuple[Layers, Tensor]:
    generator = torch.Generator().manual_seed(4)
    tables = [
        torch.randn(n_nodes, size, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(count)
    ]
    rows_3B = torch.randint(0, n_nodes, (3 * batch,), generator=generator)
    return Layers(tables, tables[0], 0, joined=Joined(joined, 0.5)), rows_3B


def gradients(layers: Layers, rows_3B: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    margin_B, norms = losses.triplet_margins(layers, Triplets(*rows_3B.chunk(3)))
    loss = losses.bpr(margin_B) + 0.3 * norms
    return margin_B.detach(), norms.detach(), list(torch.autograd.grad(loss, layers.embeddings_ND))


@pytest.mark.parametrize("joined", ["mean", "concatenation"])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("batch", [11, 400])
def test_it_is_the_plain_formula(joined: JoinedBy, count: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, rows_3B = layers_and_rows(joined, count, batch)
    assert can_fuse(layers.embeddings_ND, rows_3B)
    fused = gradients(layers, rows_3B)
    with monkeypatch.context() as patch:
        patch.setattr(losses, "can_fuse", lambda *_: False)
        plain = gradients(layers, rows_3B)
    torch.testing.assert_close(fused[0], plain[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fused[1], plain[1], rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(fused[2], plain[2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_small_batches_and_mixed_types_are_left_to_the_plain_formula() -> None:
    layers, rows_3B = layers_and_rows("mean", 2, 10)
    assert not can_fuse(layers.embeddings_ND, rows_3B)  # 30 rows of 30 nodes
    halves = [layers.embeddings_ND[0], layers.embeddings_ND[1].bfloat16()]
    assert not can_fuse(halves, rows_3B.repeat(9))


def test_the_result_does_not_depend_on_the_threads() -> None:
    layers, rows_3B = layers_and_rows("mean", 3, 5000, n_nodes=500)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(gradients(layers, rows_3B)[2])
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
