"""ItemKNN: an item is recommended to those who have the items that are most similar to it.

W_ij = |users of both| / (sqrt(d_i d_j) + shrinkage) for the N items i that are most similar to j, else 0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from hmlet.models.item_item import ItemItem, ItemItemConfig, blocks

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class ItemKNNConfig(ItemItemConfig):
    """ItemKNN: shrunk cosine similarity of items, with a few neighbours each."""

    family: ClassVar[str] = "itemknn"
    name: Literal["itemknn"] = "itemknn"
    neighbours: PositiveInt = 200
    """N, how many of the most similar items speak for each item."""
    shrinkage: Annotated[float, Field(ge=0.0)] = 10.0
    """Added to the denominator of the cosine: the larger, the less a few common users count."""


class ItemKNN(ItemItem):
    """Cosines between the items' columns of the interactions."""

    Config = ItemKNNConfig
    by_target = True
    config: ItemKNNConfig

    def rows(self, interactions: csr_matrix) -> Iterator[Tensor]:
        by_item = interactions.T.tocsr()
        root_I = np.sqrt(np.diff(by_item.indptr)).astype(np.float32)
        for block in blocks(self.n_items):
            shared = by_item[block] @ interactions  # how many users each pair of items has in common
            item_E = np.repeat(np.arange(block.start, block.stop), np.diff(shared.indptr))
            shared.data /= root_I[item_E] * root_I[shared.indices] + np.float32(self.config.shrinkage)
            shared.data[item_E == shared.indices] = 0.0
            yield torch.from_numpy(shared.toarray())
