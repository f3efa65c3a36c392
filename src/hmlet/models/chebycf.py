"""ChebyCF (Kim et al., SIGIR '25): a polynomial filter on the item graph, an ideal low-pass filter, and degrees.

W = D_i^-β (Σ_k c_k T_k(1 - 2 R̃ᵀR̃) + α V Vᵀ) D_i^β,  R̃ = D_u^-½ R D_i^-½, V its leading right singular vectors

T_k are the Chebyshev polynomials. The c_k interpolate a plateau: 1 at the lowest frequencies, 0 at the highest, and
nearly ½ between them, the flatter the larger φ. Only sparse products with R̃ are needed, K of them for a block of W.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from hmlet.models.item_item import BLOCK_BYTES, blocks
from hmlet.models.spectral_filter import SpectralFilter, SpectralFilterConfig

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class ChebyCFConfig(SpectralFilterConfig):
    """ChebyCF: a polynomial and a low-pass filter on the item graph, in closed form."""

    family: ClassVar[str] = "cheby-cf"
    name: Literal["cheby-cf"] = "cheby-cf"
    order: PositiveInt = 8
    """K, the degree of the polynomial."""
    flatness: PositiveFloat = 1.5
    """φ, how flat the middle of the plateau is."""
    alpha: Annotated[float, Field(ge=0.0)] = 0.2
    """α, the weight of the low-pass filter."""
    degree_power: Annotated[float, Field(ge=0.0)] = 0.4
    """β: the larger, the less popular items of a history count, and the more popular ones are recommended."""


class ChebyCF(SpectralFilter):
    """Two filters on the item graph, added up, between two scalings by the items' degrees."""

    Config = ChebyCFConfig
    config: ChebyCFConfig

    def rows(self, interactions: csr_matrix) -> Iterator[Tensor]:
        config, device = self.config, self.values.device
        graph, product, vectors_ID = self.spectrum(interactions)
        degree_I = torch.from_numpy(graph.degree[self.n_users :].astype(np.float32)).to(device)
        before_I = torch.where(degree_I > 0, degree_I.clamp_min(1) ** -config.degree_power, 0.0)
        after_I = degree_I.clamp_min(1) ** config.degree_power  # an item that nobody has is 0 in both filters
        weights = coefficients(config.order, config.flatness)

        def shifted(x_NB: Tensor) -> Tensor:
            """(1 - 2 R̃ᵀR̃) x, of items' rows; users' rows are 0."""
            return x_NB - 2.0 * product(product(x_NB))

        for block in blocks(self.n_items, graph.n_nodes):
            now_NB = torch.zeros(graph.n_nodes, block.stop - block.start, device=device)
            now_NB[self.n_users + block.start : self.n_users + block.stop].fill_diagonal_(1.0)
            sum_NB, later_NB = weights[0] * now_NB, shifted(now_NB)
            for weight in weights[1:]:
                sum_NB.add_(later_NB, alpha=float(weight))
                now_NB, later_NB = later_NB, 2.0 * shifted(later_NB) - now_NB
            rows_BI = sum_NB[self.n_users :].T + config.alpha * (vectors_ID[block] @ vectors_ID.T)
            yield before_I[block, None] * rows_BI * after_I

    def peak_bytes(self, n_edges: int) -> int:
        """What V takes, and six blocks with the users' rows."""
        n_nodes = self.n_users + self.n_items
        held = 6 * min(max(BLOCK_BYTES, 4 * n_nodes), 4 * n_nodes * self.n_items)
        return super().peak_bytes(n_edges) + held


def coefficients(order: int, flatness: float) -> npt.NDArray[np.float64]:
    """c_0 … c_K: a plateau interpolated at the K + 1 Chebyshev nodes.

    As in the authors' program, the plateau is stretched so that it is 1 and 0 at the outermost nodes.
    """
    at = np.arange(order + 1)
    places = -np.cos(at / order * math.pi)
    plateau = 0.5 - 0.5 * np.sign(places) * np.abs(places) ** flatness
    angles = (order + 0.5 - at) / (order + 1) * math.pi  # of the nodes, whose cosines grow from -1 to 1
    found: npt.NDArray[np.float64] = 2.0 / (order + 1) * np.cos(np.outer(at, angles)) @ plateau
    found[0] /= 2.0
    return found
