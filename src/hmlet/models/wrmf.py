"""WRMF (Hu, Koren and Volinsky, ICDM '08): weighted least squares over all cells, solved side by side by `implicit`.

min Σ_ui c_ui (p_ui - x_u · y_i)² + λ (Σ ‖x_u‖² + Σ ‖y_i‖²)
with c = 1 + α and p = 1 for an interaction, c = 1 and p = 0 for every other cell
"""

from __future__ import annotations

import numpy as np
import torch

from hmlet.config import WRMFConfig
from hmlet.data import Csr
from hmlet.errors import MissingExtra
from hmlet.models.base import Layers, Model, Pass, Product


class WRMF(Model):
    """Factors that alternating least squares improves; nothing here has a gradient."""

    def __init__(self, config: WRMFConfig, n_users: int, n_items: int, generator: torch.Generator) -> None:
        super().__init__(config, n_users, n_items, generator)
        self.config = config
        self.embedding.requires_grad_(False)

    def propagate(self, product: Product, how: Pass) -> Layers:
        return Layers([self.embedding], {})

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
        confidence = np.full(len(train.items), 1.0 + self.config.alpha, dtype=np.float32)
        matrix = csr_matrix((confidence, train.items, train.indptr), shape=(self.n_users, self.n_items))
        als.fit(matrix, show_progress=False, callback=lambda iteration, elapsed, loss: losses.append(float(loss)))
        self.embedding.data.copy_(torch.from_numpy(np.concatenate([als.user_factors, als.item_factors])))
        return losses[-1]
