"""EASE (Steck, WWW '19): the linear map from a history to itself whose diagonal is 0, in closed form.

P = (RᵀR + λ)^-1,  W_ij = - P_ij / P_jj for i ≠ j, W_ii = 0

Where there are fewer users than items, the inverse of the smaller matrix is enough: P = (1 - Rᵀ (RRᵀ + λ)^-1 R) / λ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import embedding_bag

from hmlet.models.item_item import ItemItem, ItemItemConfig, blocks

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class EASEConfig(ItemItemConfig):
    """EASE: a linear autoencoder without a diagonal, in closed form."""

    family: ClassVar[str] = "ease"
    name: Literal["ease"] = "ease"
    regularization: PositiveFloat = 5.0
    """λ, in units of the mean number of interactions of an item."""


class EASE(ItemItem):
    """The solution of a ridge regression for every item at once."""

    Config = EASEConfig
    config: EASEConfig

    def rows(self, interactions: csr_matrix) -> Iterator[Tensor]:
        penalty = self.config.regularization * interactions.nnz / self.n_items
        precision = self._by_users if self.n_users < self.n_items else self._by_items
        diagonal_I, rows = precision(interactions, penalty)
        for block, precision_BI in zip(blocks(self.n_items), rows, strict=True):
            weights_BI = precision_BI / -diagonal_I
            weights_BI[:, block].fill_diagonal_(0.0)
            yield weights_BI

    def _by_items(self, interactions: csr_matrix, penalty: float) -> tuple[Tensor, Iterator[Tensor]]:
        """The diagonal of P and blocks of its rows, by inverting RᵀR + λ."""
        inverse_II = self._inverse(interactions.T @ interactions, penalty)
        return inverse_II.diagonal(), (inverse_II[block] for block in blocks(self.n_items))

    def _by_users(self, interactions: csr_matrix, penalty: float) -> tuple[Tensor, Iterator[Tensor]]:
        """The same by inverting RRᵀ + λ; only a block of P exists at a time."""
        inverse_UU = self._inverse(interactions @ interactions.T, penalty)
        by_item = interactions.T.tocsr()
        users_E = torch.from_numpy(by_item.indices).long().to(inverse_UU.device)
        offsets = torch.from_numpy(by_item.indptr).long().to(inverse_UU.device)

        def left(block: slice) -> Tensor:
            """Rᵀ (RRᵀ + λ)^-1 of a block of items: B × U."""
            bounds = offsets[block.start : block.stop + 1]
            own_E = users_E[bounds[0] : bounds[-1]]
            return embedding_bag(own_E, inverse_UU, bounds - bounds[0], mode="sum", include_last_offset=True)

        def times_interactions(x_BU: Tensor) -> Tensor:
            """x R: B × I."""
            by_item_IB = embedding_bag(users_E, x_BU.T.contiguous(), offsets, mode="sum", include_last_offset=True)
            return by_item_IB.T.contiguous()

        def rows() -> Iterator[Tensor]:
            for block in blocks(self.n_items):
                rows_BI = -times_interactions(left(block))
                rows_BI[:, block].diagonal().add_(1.0)
                yield rows_BI.div_(penalty)

        own = [(left(block).cpu().numpy() * by_item[block].toarray()).sum(axis=1) for block in blocks(self.n_items)]
        return (1.0 - torch.from_numpy(np.concatenate(own)).to(inverse_UU.device)) / penalty, rows()

    def _inverse(self, gram: csr_matrix, penalty: float) -> Tensor:
        """(gram + λ)^-1 in float32, which suffices: λ keeps the condition number below about 10^4."""
        dense = torch.from_numpy(gram.toarray()).to(self.values.device)
        dense.diagonal().add_(penalty)
        inverse: Tensor = torch.cholesky_inverse(torch.linalg.cholesky(dense))
        return inverse

    def peak_bytes(self, n_edges: int) -> int:
        """The smaller Gram matrix, its Cholesky factor and its inverse, and a block's products."""
        return super().peak_bytes(n_edges) + 3 * 4 * min(self.n_users, self.n_items) ** 2
