"""From a run directory back to the trained module: the one way there is."""

from __future__ import annotations

import numpy as np
import torch

from hmlet.data import Csr
from hmlet.graph import Graph
from hmlet.models import Model, build
from hmlet.runs.directory import RunDirectory

NOBODY = Graph.from_csr(Csr(np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int32)), 0)


def load_model(run: RunDirectory, *, nodes: bool = True) -> Model:
    """The trained model of a finished run, in evaluation mode and on the CPU.

    Without `nodes` it has the trained weights and no users or items: whoever is folded in brings its own e⁰.
    """
    recipe = run.require_finished().recipe()
    model = build(recipe.model, NOBODY, torch.Generator(), recipe.similarity)
    stored, per_node = run.weights(), model.per_node()
    missing, unexpected = model.load_state_dict(
        {name: tensor for name, tensor in stored.items() if name not in per_node}, strict=False
    )
    assert not unexpected, f"model.safetensors has weights that the model lacks: {unexpected}"
    assert per_node.issuperset(missing), f"model.safetensors lacks weights of the model: {missing}"
    if nodes:
        sides = run.read_table("ids.parquet").column("side").to_pylist()
        model.set_nodes(sides.count("user"), sides.count("item"), {name: stored[name] for name in per_node})
    return model.eval()
