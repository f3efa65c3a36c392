"""WRMF (Hu, Koren and Volinsky, ICDM '08): weighted least squares over all cells, one side after the other.

min Σ_ui c_ui (p_ui - x_u · y_i)² + λ (Σ ‖x_u‖² + Σ ‖y_i‖²)
with c = 1 + w and p = 1 for an interaction, c = 1 and p = 0 elsewhere; w = α r, and r = 1 if the data has no weights

Given Y, a user with the items S solves (YᵀY + λ + Y_Sᵀ W Y_S) x = Y_Sᵀ (1 + w). All users share YᵀY + λ = L Lᵀ. So with
Z = √W Y_S L^-ᵀ and t = (1 + w) / √w, each user has a system of D unknowns or, with the same solution, of |S|:
x = L^-ᵀ (1 + ZᵀZ)^-1 Zᵀ t = L^-ᵀ Zᵀ (1 + ZZᵀ)^-1 t
Most users have fewer items than D. The condition number of both is at most 1 + max w, so float32 is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import embedding

from hmlet.data import Csr
from hmlet.errors import TrainingError
from hmlet.graph import Graph
from hmlet.graph.ordering import stable_order
from hmlet.models.base import EmbeddingConfig, FoldInRule, Layers, Model, Pass, Product, Side, Solved

BLOCK = 2**21  # floats of the neighbours' factors that are gathered at once
PIECE = 2**13  # rows that are in float64 at once


class WRMFConfig(EmbeddingConfig):
    """WRMF: weighted matrix factorisation by alternating least squares; one epoch solves both sides once."""

    family: ClassVar[str] = "wrmf"
    solved: ClassVar[bool] = True
    name: Literal["wrmf"] = "wrmf"
    alpha: PositiveFloat = 10.0
    """Confidence of an interaction is 1 + alpha, or 1 + alpha times its weight."""
    regularization: PositiveFloat = 0.01
    """λ of the least-squares problems."""


class Block(NamedTuple):
    """Nodes of about the same degree, with their neighbours: B nodes, at most S neighbours."""

    nodes_B: Tensor
    neighbours_BS: Tensor
    weights_BS: Tensor  # w; 0 where a node has fewer neighbours


class WRMF(Model, Solved):
    """Factors that alternating least squares improves; nothing here has a gradient."""

    Config = WRMFConfig
    config: WRMFConfig
    propagated = None

    def __init__(self, config: WRMFConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.embedding.requires_grad_(False)

    def propagate(self, product: Product, how: Pass) -> Layers:
        return self.readout([self.embedding], how)

    def solve(self, train: Csr) -> float:
        """One exact solution of the users given the items, then of the items given the users; returns the loss.

        The loss is the objective divided by the sum of all confidences.
        """
        weights_E = np.ones(len(train.items), dtype=np.float32) if train.weights is None else train.weights
        by_user = Csr(train.indptr, train.items, self.config.alpha * weights_E)
        try:
            users_UD, _ = self._side(self.embedding[self.n_users :].cpu(), by_user)
            items_ID, explained = self._side(users_UD, _transposed(by_user, self.n_items))
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise TrainingError("WRMF's systems are singular", "raise model.regularization") from error
        self.embedding.copy_(torch.cat([users_UD, items_ID]))
        added = float(self.config.alpha * weights_E.sum(dtype=np.float64))
        penalty = self.config.regularization * float(users_UD.double().square().sum())
        return (len(train.items) + added - explained + penalty) / (self.n_users * self.n_items + added)

    def _side(self, others_XD: Tensor, rows: Csr) -> tuple[Tensor, float]:
        """The factors of one side given the other's, and Σ (1 + w) x · y over all interactions.

        That sum is the difference between the objective at 0 and at its minimum.
        """
        size = self.config.embedding_size
        gram_DD = self.config.regularization * torch.eye(size).double()
        for piece_PD in torch.split(others_XD, PIECE):
            gram_DD += piece_PD.double().T @ piece_PD.double()
        root_DD = torch.linalg.cholesky(gram_DD)
        shared_XD = _times_inverse(others_XD, root_DD.T, upper=True)
        found_ND, explained = torch.zeros(len(rows.counts), size), 0.0
        for block in _blocks(rows, size):
            roots_BS1 = block.weights_BS.sqrt()[..., None]
            z_BSD = embedding(block.neighbours_BS, shared_XD).mul_(roots_BS1)
            t_BS1 = torch.where(roots_BS1 > 0, roots_BS1 + 1 / roots_BS1, 0.0)
            right_BD1 = z_BSD.mT @ t_BS1
            if z_BSD.shape[1] < size:
                solution_BD1 = z_BSD.mT @ _plus_one_solved(z_BSD @ z_BSD.mT, t_BS1)
            else:
                solution_BD1 = _plus_one_solved(z_BSD.mT @ z_BSD, right_BD1)
            found_ND[block.nodes_B] = solution_BD1[..., 0]
            explained += float((right_BD1 * solution_BD1).sum(dtype=torch.float64))
        return _times_inverse(found_ND, root_DD, upper=False), explained

    def peak_bytes(self, n_edges: int) -> int:
        """Four copies of the factors at most, the interactions by user and by item, and a block.

        A block has at least one node with all its neighbours, which may be a whole side.
        """
        return 4 * self.embedding.nbytes + 3 * 12 * n_edges + 2 * 4 * max(BLOCK, self.embedding.numel())

    def fold_in(self, side: Side, others_ND: Tensor) -> FoldInRule:
        """WRMF's own problem for one side, the other's factors fixed: (YᵀY + α Y_SᵀY_S + λ) x = (1 + α) Σ_S y."""
        config = self.config
        gram_DD = others_ND.T @ others_ND + config.regularization * torch.eye(others_ND.shape[1]).double()

        def solve(own_SD: Tensor) -> Tensor:
            right_D = (1 + config.alpha) * own_SD.sum(dim=0)
            x_D: Tensor = torch.linalg.solve(gram_DD + config.alpha * own_SD.T @ own_SD, right_D)
            return x_D

        return FoldInRule(solve)


def _plus_one_solved(left_BXX: Tensor, right_BX1: Tensor) -> Tensor:
    """The solutions of (left + 1) x = right."""
    left_BXX.diagonal(dim1=1, dim2=2).add_(1.0)
    return torch.cholesky_solve(right_BX1, torch.linalg.cholesky(left_BXX))


def _times_inverse(rows_ND: Tensor, triangle_DD: Tensor, upper: bool) -> Tensor:
    """Rows times the inverse of a triangular matrix, which is nearly singular if λ is small: in float64."""
    pieces = [
        torch.linalg.solve_triangular(triangle_DD, piece_PD.double(), upper=upper, left=False).float()
        for piece_PD in torch.split(rows_ND, PIECE)
    ]
    return torch.cat(pieces)


def _transposed(by_user: Csr, n_items: int) -> Csr:
    """For each item a run of users, as `by_user` has for each user a run of items."""
    assert by_user.weights is not None
    order = stable_order(by_user.items)
    users = np.repeat(np.arange(len(by_user.counts), dtype=by_user.items.dtype), by_user.counts)[order]
    counts = np.bincount(by_user.items, minlength=n_items)
    return Csr(np.concatenate([[0], counts.cumsum()]), users, by_user.weights[order])


def _blocks(rows: Csr, size: int) -> Iterator[Block]:
    """The nodes with neighbours by falling degree, so that those of a block have about as many."""
    assert rows.weights is not None
    order = np.argsort(-rows.counts, kind="stable")[: np.count_nonzero(rows.counts)]
    start = 0
    while start < len(order):
        most = rows.counts[order[start]]
        nodes = order[start : start + max(1, BLOCK // (most * size))]
        steps = np.arange(most)
        there_BS = steps < rows.counts[nodes][:, None]
        at_BS = np.where(there_BS, rows.indptr[nodes][:, None] + steps, 0)
        weights_BS = np.where(there_BS, rows.weights[at_BS], np.float32(0))
        yield Block(*map(torch.from_numpy, (nodes, rows.items[at_BS].astype(np.int64), weights_BS)))
        start += len(nodes)
