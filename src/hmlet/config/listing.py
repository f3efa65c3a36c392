"""Every model in a few words: `hmlet models`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from hmlet.losses import LOSSES
from hmlet.models import MODELS, ModelConfig


@dataclass(frozen=True)
class ModelSummary:
    """What a model says of itself."""

    name: str
    kind: str
    summary: str
    losses: tuple[str, ...]  # those that can train it; none for a model that is solved

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "kind": self.kind, "summary": self.summary, "losses": list(self.losses)}


def list_models() -> list[ModelSummary]:
    """Every model with its kind, a summary and the losses that can train it: `hmlet models`.

    Example: hmlet.list_models()[0].losses
    """
    found = []
    for name, model in MODELS.items():
        config = model.Config
        summary = (inspect.getdoc(config) or "").partition("\n")[0]
        found.append(ModelSummary(name, kind(config), summary, () if config.solved else tuple(LOSSES)))
    return found


def kind(config: type[ModelConfig]) -> str:
    """What kind of model it is: one that propagates over the graph, a factorisation, or a closed form."""
    if "layers" in config.model_fields:
        return "graph"
    return "factorisation" if "embedding_size" in config.model_fields else "closed form"
