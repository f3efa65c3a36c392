"""A model whose graph has grown: old nodes keep what they learned, and new ones are read off their neighbours.

Legend: N nodes, D embedding size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hmlet.models.base import Model

RIDGE = 1e-2  # beside the mean diagonal of the normal equations


@torch.no_grad()
def grow(
    model: Model, product: Callable[[Tensor], Tensor], learned: Mapping[str, Tensor], n_users: int, n_items: int
) -> None:
    """Give a freshly built model what a model of its first `n_users` users and `n_items` items has learned.

    `product` is Â of the grown graph without self-loops. A new node's e⁰ is a linear function of what its neighbours
    send it, Σ e⁰(v) / sqrt(d d_v), fitted by ridge regression on the old nodes of its side. A new node without an old
    neighbour keeps its random e⁰.
    """
    state, of_nodes = model.state_dict(), model.node_tensors(model.n_users, model.n_items)
    old_N = torch.zeros(model.n_users + model.n_items, dtype=torch.bool, device=model.embedding.device)
    old_N[:n_users] = old_N[model.n_users : model.n_users + n_items] = True
    rows = {"nodes": slice(None), "users": slice(model.n_users), "items": slice(model.n_users, None)}
    for name, tensor in learned.items():
        if name not in of_nodes:
            state[name].copy_(tensor)
        elif not of_nodes[name].redrawn:
            state[name][old_N[rows[of_nodes[name].rows]]] = tensor.to(state[name])
    _read_off_neighbours(model, product, old_N)


def _read_off_neighbours(model: Model, product: Callable[[Tensor], Tensor], old_N: Tensor) -> None:
    """Replace the random e⁰ of new nodes that have old neighbours."""
    known_ND = torch.where(old_N[:, None], model.embedding, 0.0)
    sent_ND = product(known_ND).double()
    reached_N = sent_ND.abs().sum(dim=1) > 0
    users_N = torch.arange(len(old_N), device=old_N.device) < model.n_users
    for side_N in (users_N, ~users_N):
        new_N, fitted_N = side_N & ~old_N & reached_N, side_N & old_N & reached_N
        if new_N.any() and fitted_N.any():
            weights_DD = ridge(sent_ND[fitted_N], known_ND[fitted_N].double())
            model.embedding[new_N] = (sent_ND[new_N] @ weights_DD).to(model.embedding)


def ridge(features_ND: Tensor, targets_ND: Tensor) -> Tensor:
    """argmin ‖X W - Y‖² + λ ‖W‖², λ being RIDGE of XᵀX's mean diagonal."""
    gram_DD = features_ND.T @ features_ND
    gram_DD.diagonal().add_(RIDGE * gram_DD.diagonal().mean().clamp_min(1e-12))
    weights_DD: Tensor = torch.linalg.solve(gram_DD, features_ND.T @ targets_ND)
    return weights_DD
