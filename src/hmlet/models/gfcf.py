"""GF-CF (Shen et al., CIKM '21): a linear filter and an ideal low-pass filter on the item graph.

W = R̃ᵀR̃ + α D_i^-½ V Vᵀ D_i^½,  R̃ = D_u^-½ R D_i^-½, V its leading right singular vectors
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from hmlet.data import Csr
from hmlet.graph import Graph, propagator
from hmlet.graph.spectral import EXTRA, right_singular_vectors
from hmlet.models.base import Product
from hmlet.models.item_item import ItemItem, ItemItemConfig, blocks

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class GFCFConfig(ItemItemConfig):
    """GF-CF: two linear filters on the item graph, in closed form."""

    family: ClassVar[str] = "gf-cf"
    name: Literal["gf-cf"] = "gf-cf"
    vectors: PositiveInt = 256
    """How many leading singular vectors the low-pass filter keeps."""
    alpha: Annotated[float, Field(ge=0.0)] = 0.3
    """α, the weight of the low-pass filter."""

    @property
    def widest(self) -> int:
        return self.vectors + EXTRA


class GFCF(ItemItem):
    """Two filters on the item graph, added up."""

    Config = GFCFConfig
    config: GFCFConfig

    def __init__(self, config: GFCFConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.seed = int(torch.randint(2**62, (1,), generator=generator))

    def rows(self, interactions: csr_matrix) -> Iterator[Tensor]:
        from scipy.sparse import diags

        train = Csr(interactions.indptr.astype(np.int64), interactions.indices)
        graph = Graph.from_csr(train, self.n_items)
        scale_N = graph.scale()
        normalised = (diags(scale_N[: self.n_users]) @ interactions @ diags(scale_N[self.n_users :])).tocsr()
        by_item = normalised.T.tocsr()
        vectors_ID = leading_vectors(
            propagator(graph, self.values.device).product, graph, self.config.vectors, self.values.device, self.seed
        ).cpu()
        scale_I1 = torch.from_numpy(scale_N[self.n_users :])[:, None]
        left_ID = self.config.alpha * scale_I1 * vectors_ID
        right_ID = torch.where(scale_I1 > 0, 1.0 / scale_I1, 0.0) * vectors_ID
        for block in blocks(self.n_items):
            linear_BI = torch.from_numpy((by_item[block] @ normalised).toarray())
            yield linear_BI.addmm_(left_ID[block], right_ID.T)

    def solving_bytes(self, n_edges: int) -> int:
        return super().solving_bytes(n_edges) + vector_bytes(self.n_users + self.n_items, n_edges, self.config.vectors)


def leading_vectors(product: Product, graph: Graph, size: int, device: torch.device, seed: int) -> Tensor:
    """V, the leading right singular vectors of R̃, found on a device by products with Â: I × D."""
    generator = torch.Generator().manual_seed(seed)
    return right_singular_vectors(product, graph.n_users, graph.n_nodes, size, device, generator).float()


def vector_bytes(n_nodes: int, n_edges: int, size: int) -> int:
    """What finding V takes: the graph, and blocks of the subspace iteration in float32 and float64."""
    return 40 * n_edges + 6 * 8 * n_nodes * (size + EXTRA)
