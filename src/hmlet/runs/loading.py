"""From a run directory back to the trained module: the one way there is."""

from __future__ import annotations

from hmlet.models import Model
from hmlet.runs.directory import RunDirectory
from hmlet.runs.expected import empty_model


def load_model(run: RunDirectory, *, nodes: bool = True) -> Model:
    """The trained model of a finished run, in evaluation mode and on the CPU.

    Without `nodes` it has the trained weights and no users or items: a folded-in node brings its own e⁰.
    """
    stored, model = run.weights(), empty_model(run.recipe())
    per_node = model.per_node()
    model.load_state_dict({name: tensor for name, tensor in stored.items() if name not in per_node}, strict=False)
    if nodes:
        model.set_nodes(*run.nodes, {name: stored[name] for name in per_node})
    return model.eval()
