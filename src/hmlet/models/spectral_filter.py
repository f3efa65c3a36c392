"""What filters on the item graph share: a low-pass filter, which keeps V, the leading right singular vectors of R̃.

Legend: I items, N nodes, D vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from hmlet.data import Csr
from hmlet.graph import Graph, propagator
from hmlet.graph.spectral import EXTRA, right_singular_vectors
from hmlet.models.item_item import ItemItem, ItemItemConfig

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


Product = Callable[[Tensor], Tensor]


class SpectralFilterConfig(ItemItemConfig):
    """What every filter with a low-pass part has."""

    vectors: PositiveInt = 256
    """How many leading singular vectors the low-pass filter keeps."""
    alpha: Annotated[float, Field(ge=0.0)]
    """α, the weight of the low-pass filter."""


class SpectralFilter(ItemItem):
    """An item-item model with a low-pass part."""

    config: SpectralFilterConfig

    def __init__(self, config: SpectralFilterConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.seed = int(torch.randint(2**62, (1,), generator=generator))

    def spectrum(self, interactions: csr_matrix) -> tuple[Graph, Product, Tensor]:
        """The graph of the interactions, products with its Â on the model's device, and V: I × D."""
        train = Csr(interactions.indptr.astype(np.int64), interactions.indices)
        graph, device = Graph.from_csr(train, self.n_items), self.values.device
        product = propagator(graph, device).product
        return graph, product, leading_vectors(product, graph, self.config.vectors, device, self.seed)

    def peak_bytes(self, n_edges: int) -> int:
        """What finding V takes: the graph, and blocks of the subspace iteration in float32 and float64."""
        vectors = 40 * n_edges + 6 * 8 * (self.n_users + self.n_items) * (self.config.vectors + EXTRA)
        return super().peak_bytes(n_edges) + vectors


def leading_vectors(product: Product, graph: Graph, size: int, device: torch.device, seed: int) -> Tensor:
    """V, found on a device by products with Â: I × D."""
    generator = torch.Generator().manual_seed(seed)
    return right_singular_vectors(product, graph.n_users, graph.n_nodes, size, device, generator).float()
