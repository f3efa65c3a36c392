"""Which tensors a recipe makes for so many users and items: what the tensors of a run are compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hmlet.config import Recipe
from hmlet.data import Csr
from hmlet.graph import Graph
from hmlet.models import ItemWeights, Model, Scores, build
from hmlet.runs.tensors import Shape
from hmlet.system.outside import Origin, first_line

NOBODY = Graph.from_csr(Csr(np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int32)), 0)


def model_tensors(
    recipe: Recipe, n_users: int, n_items: int, stored: Mapping[str, Tensor], origin: Origin
) -> dict[str, Shape]:
    """The parameters and buffers of a recipe's model, by name; `stored` is what a run has of them.

    A recipe that would need far more memory than the run's own file takes is refused before a model is made of it.
    """
    embedding = stored.get("embedding")
    if embedding is not None and embedding.shape[-1:] != (recipe.model.columns,):
        wide = tuple(embedding.shape)
        raise origin.fault(f": tensor 'embedding': it is {wide}, and the recipe has {recipe.model.columns} columns")
    try:
        model, scores = empty_model(recipe), Scores.start(recipe.scoring, NOBODY)
    except (RuntimeError, MemoryError) as error:
        raise origin.fault(f"does not fit its recipe, whose model cannot be made ({first_line(error)})") from error
    of_nodes = model.node_tensors(n_users, n_items) | scores.node_tensors(n_users, n_items)
    return {
        name: Shape(of_nodes[name].shape if name in of_nodes else tuple(tensor.shape), (tensor.dtype,))
        for name, tensor in (model.state_dict() | scores.state_dict()).items()
    }


def empty_model(recipe: Recipe) -> Model:
    """The recipe's model for no users and no items."""
    return build(recipe.model, NOBODY, torch.Generator())


def require_item_weights(weights: ItemWeights, n_items: int, origin: Origin) -> None:
    """Refuse sparse weights whose rows or items are out of range."""
    if not weights.sparse:
        return
    offsets, items = weights.offsets, weights.items
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(items) or bool((offsets.diff() < 0).any()):
        raise origin.fault(": tensor 'offsets': its rows do not follow one another from 0 to the number of weights")
    if len(items) and not 0 <= int(items.min()) <= int(items.max()) < n_items:
        raise origin.fault(f": tensor 'items': it has items outside 0 to {n_items - 1}")
