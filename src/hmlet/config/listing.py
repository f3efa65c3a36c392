"""Every model in a few words: `hmlet models`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from hmlet.losses import LOSSES
from hmlet.models import MODELS


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
        summary = config.summary or (inspect.getdoc(config) or "").partition("\n")[0]
        losses = tuple(LOSSES) if config.losses is None else config.losses
        found.append(ModelSummary(name, config.kind(), summary, losses))
    return found
