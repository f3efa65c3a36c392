"""A large batch's margins and their gradients on CPU: every node's mean is made once, and rows are read from that.

Gathering a triplet's rows from every layer, and adding their gradients to every layer, would move a batch K + 1 times.
The gradient is a product instead, with the triplets as a graph: a user's neighbours are the items that it met, an
item's the users. One thread sums a row, in the order of the triplets, so the result does not depend on the threads.

Legend: N nodes, D columns, B triplets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmlet.graph.kernels.parts import part
from hmlet.graph.kernels.torch_product import planned_product, product
from hmlet.graph.ordering import stable_order

AT_ONCE = 8192  # triplets whose rows are gathered together: few enough to stay in the cache


class LargeBatchMargins(torch.autograd.Function):
    """r_ui - r_uj of each triplet under the layers' mean (B), and ‖rows of e⁰‖² / B."""

    @staticmethod
    def forward(ctx: Any, rows_3B: Tensor, *layers_ND: Tensor) -> tuple[Tensor, Tensor]:
        mean_ND = layers_ND[0].clone()
        for layer_ND in layers_ND[1:]:
            mean_ND += layer_ND
        mean_ND /= len(layers_ND)
        batch, own_ND = len(rows_3B) // 3, layers_ND[0]
        times_N = _times(rows_3B, len(own_ND)).to(own_ND.dtype)
        norms = torch.dot(times_N, torch.linalg.vector_norm(own_ND, dim=1).square()) / batch
        ctx.save_for_backward(rows_3B, mean_ND, own_ND, times_N)
        ctx.count = len(layers_ND)
        return _margins(mean_ND, rows_3B), norms

    @staticmethod
    def backward(ctx: Any, grad_margin_B: Tensor, grad_norms: Tensor) -> tuple[Tensor | None, ...]:
        rows_3B, mean_ND, own_ND, times_N = ctx.saved_tensors
        with part("readout and loss"):
            shared_ND = _gradient(mean_ND, rows_3B, grad_margin_B / ctx.count)
            pull_N1 = (2.0 * grad_norms / (len(rows_3B) // 3) * times_N)[:, None]
            first_ND = torch.addcmul(shared_ND, pull_N1, own_ND)
        return None, first_ND, *[shared_ND] * (ctx.count - 1)


def _times(rows_3B: Tensor, n_nodes: int) -> Tensor:
    """How often each node occurs in the batch."""
    return torch.empty(n_nodes, device="meta") if rows_3B.is_meta else torch.bincount(rows_3B, minlength=n_nodes)


def _margins(mean_ND: Tensor, rows_3B: Tensor) -> Tensor:
    user_B, positive_B, negative_B = rows_3B.chunk(3)
    margin_B = mean_ND.new_empty(len(user_B))
    size = min(AT_ONCE, len(user_B))
    mine, theirs, others = (mean_ND.new_empty(size, mean_ND.shape[1]) for _ in range(3))
    if rows_3B.is_meta:
        return margin_B
    for start in range(0, len(user_B), size):
        some = slice(start, min(start + size, len(user_B)))
        count = some.stop - start
        torch.index_select(mean_ND, 0, positive_B[some], out=theirs[:count])
        torch.index_select(mean_ND, 0, negative_B[some], out=others[:count])
        torch.index_select(mean_ND, 0, user_B[some], out=mine[:count])
        torch.sum(theirs[:count].sub_(others[:count]).mul_(mine[:count]), dim=1, out=margin_B[some])
    return margin_B


def _gradient(mean_ND: Tensor, rows_3B: Tensor, grad_B: Tensor) -> Tensor:
    """The gradient of the mean: Σ over the triplets of a node of ± grad · the mean of the node that it met."""
    user_B, positive_B, negative_B = rows_3B.chunk(3)
    owner_4B = torch.cat([user_B, user_B, positive_B, negative_B]).int()
    met_4B = torch.cat([positive_B, negative_B, user_B, user_B]).int()
    weight_4B = torch.cat([grad_B, -grad_B, grad_B, -grad_B])
    if rows_3B.is_meta:
        _order = torch.empty_like(owner_4B)
        _sorted = torch.empty_like(met_4B), torch.empty_like(weight_4B)
        return planned_product(mean_ND, None)
    order = torch.from_numpy(stable_order(owner_4B.numpy()))
    indptr = torch.zeros(len(mean_ND) + 1, dtype=torch.int32)
    torch.cumsum(torch.bincount(owner_4B, minlength=len(mean_ND)), 0, dtype=torch.int32, out=indptr[1:])
    return product(indptr, met_4B.index_select(0, order), weight_4B.index_select(0, order), mean_ND)
