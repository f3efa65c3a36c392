"""WRMF (Hu, Koren and Volinsky, ICDM '08): weighted least squares over all cells, solved side by side by `implicit`.

min Σ_ui c_ui (p_ui - x_u · y_i)² + λ (Σ ‖x_u‖² + Σ ‖y_i‖²)
with c = 1 + α r and p = 1 for an interaction of weight r (1 if the data has no weights), c = 1 and p = 0 elsewhere
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor

from hmlet.data import Csr
from hmlet.errors import MissingExtra
from hmlet.graph import Graph
from hmlet.graph.layers import Layers
from hmlet.graph.work import Part
from hmlet.models.base import EmbeddingConfig, Model, Newcomer, Pass, Product, Side


class WRMFConfig(EmbeddingConfig):
    """WRMF: weighted matrix factorisation by alternating least squares; one epoch solves both sides once."""

    family: ClassVar[str] = "wrmf"
    solved: ClassVar[bool] = True
    losses: ClassVar[tuple[str, ...] | None] = ()
    splits: ClassVar[bool] = False
    name: Literal["wrmf"] = "wrmf"
    alpha: PositiveFloat = 10.0
    """Confidence of an interaction is 1 + alpha, or 1 + alpha times its weight."""
    regularization: PositiveFloat = 0.01
    """λ of the least-squares problems."""

    def solving(self, n_users: int, n_items: int, n_edges: int) -> list[Part]:
        """For every node of both sides a D × D system, which every interaction adds to; and both Gram matrices."""
        size, n_nodes = self.embedding_size, n_users + n_items
        operations = 2 * 2 * n_edges * size**2 + n_nodes * (2 * size**2 + size**3 / 3)
        return [Part("systems", operations=operations)]


class WRMF(Model):
    """Factors that alternating least squares improves; nothing here has a gradient."""

    Config = WRMFConfig

    def __init__(self, config: WRMFConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.config = config
        self.embedding.requires_grad_(False)

    def propagate(self, product: Product, how: Pass) -> Layers:
        return self.layers([self.embedding])

    def solve(self, train: Csr) -> float:
        """One exact solution of the users given the items, then of the items given the users; returns the loss."""
        try:
            from implicit.cpu.als import AlternatingLeastSquares
        except ImportError as error:
            raise MissingExtra("WRMF", "implicit", "wrmf") from error
        from scipy.sparse import csr_matrix  # here, because every command imports this module

        losses: list[float] = []
        als = AlternatingLeastSquares(
            factors=self.config.embedding_size,
            regularization=self.config.regularization,
            use_cg=False,
            iterations=1,
            calculate_training_loss=True,
            num_threads=torch.get_num_threads(),
        )
        # implicit continues from the factors it is given.
        factors = self.embedding.detach().cpu().numpy()
        als.user_factors, als.item_factors = factors[: self.n_users].copy(), factors[self.n_users :].copy()
        weights = np.ones(len(train.items), dtype=np.float32) if train.weights is None else train.weights
        confidence = (1.0 + self.config.alpha * weights).astype(np.float32)
        matrix = csr_matrix((confidence, train.items, train.indptr), shape=(self.n_users, self.n_items))
        als.fit(matrix, show_progress=False, callback=lambda iteration, elapsed, loss: losses.append(float(loss)))
        self.embedding.data.copy_(torch.from_numpy(np.concatenate([als.user_factors, als.item_factors])))
        return losses[-1]

    def solving_bytes(self, n_edges: int) -> int:
        """implicit copies the factors, and holds the interactions by user and by item with their confidence."""
        return self.embedding.nbytes + 3 * 12 * n_edges

    def newcomer(self, side: Side, others_ND: Tensor) -> Newcomer:
        """WRMF's own problem for one side, the other's factors fixed: (YᵀY + α Y_SᵀY_S + λ) x = (1 + α) Σ_S y."""
        config = self.config
        gram_DD = others_ND.T @ others_ND + config.regularization * torch.eye(others_ND.shape[1]).double()

        def solve(own_SD: Tensor) -> Tensor:
            right_D = (1 + config.alpha) * own_SD.sum(dim=0)
            x_D: Tensor = torch.linalg.solve(gram_DD + config.alpha * own_SD.T @ own_SD, right_D)
            return x_D

        return Newcomer(solve)
