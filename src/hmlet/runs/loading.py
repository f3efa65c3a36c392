"""From a run directory back to the trained module: the one way there is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from hmlet.models import Model
from hmlet.runs.directory import RunDirectory
from hmlet.runs.expected import empty_model


def load_model(run: RunDirectory, *, nodes: bool = True) -> Model:
    """The trained model of a finished run, in evaluation mode and on the CPU.

    Without `nodes` it has the trained weights and no users or items: a folded-in node brings its own e⁰.
    """
    stored, model = run.weights(), empty_model(run.recipe())
    of_nodes = model.node_tensors(*run.nodes)
    model.load_state_dict({name: tensor for name, tensor in stored.items() if name not in of_nodes}, strict=False)
    if nodes:
        set_nodes(model, {name: stored[name] for name in of_nodes})
        model.n_users, model.n_items = run.nodes
    return model.eval()


def set_nodes(whole: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model or its scores other nodes: a tensor for each of the `node_tensors`."""
    for name, tensor in tensors.items():
        path, _, own = name.rpartition(".")
        module = whole.get_submodule(path)
        before = getattr(module, own)
        parameter = isinstance(before, nn.Parameter)
        setattr(module, own, nn.Parameter(tensor, before.requires_grad) if parameter else tensor)
