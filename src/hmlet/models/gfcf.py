"""GF-CF (Shen et al., CIKM '21): a linear filter and an ideal low-pass filter on the item graph.

W = R̃ᵀR̃ + α D_i^-½ V Vᵀ D_i^½,  R̃ = D_u^-½ R D_i^-½, V its leading right singular vectors
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hmlet.models.item_item import blocks
from hmlet.models.spectral_filter import SpectralFilter, SpectralFilterConfig

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class GFCFConfig(SpectralFilterConfig):
    """GF-CF: two linear filters on the item graph, in closed form."""

    family: ClassVar[str] = "gf-cf"
    name: Literal["gf-cf"] = "gf-cf"
    alpha: Annotated[float, Field(ge=0.0)] = 0.3
    """α, the weight of the low-pass filter."""


class GFCF(SpectralFilter):
    """Two filters on the item graph, added up."""

    Config = GFCFConfig
    config: GFCFConfig

    def rows(self, interactions: csr_matrix) -> Iterator[Tensor]:
        from scipy.sparse import diags

        graph, _, vectors_ID = self.spectrum(interactions)
        vectors_ID, scale_N = vectors_ID.cpu(), graph.scale()
        normalised = (diags(scale_N[: self.n_users]) @ interactions @ diags(scale_N[self.n_users :])).tocsr()
        by_item = normalised.T.tocsr()
        scale_I1 = torch.from_numpy(scale_N[self.n_users :])[:, None]
        left_ID = self.config.alpha * scale_I1 * vectors_ID
        right_ID = torch.where(scale_I1 > 0, 1.0 / scale_I1, 0.0) * vectors_ID
        for block in blocks(self.n_items):
            linear_BI = torch.from_numpy((by_item[block] @ normalised).toarray())
            yield linear_BI.addmm_(left_ID[block], right_ID.T)
