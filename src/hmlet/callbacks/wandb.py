"""A training as a run of Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from hmlet.callbacks.base import Callback, Start, numbers
from hmlet.errors import MissingExtra
from hmlet.runs.record import RunRecord
from hmlet.training.trainer import EpochEvent


class WandB(Callback):
    """Logs the recipe as the config, each epoch as a step, and the best epoch in the summary.

    Example: hmlet.fit("debian", "lightgcn", callbacks=[hmlet.callbacks.WandB("debian", mode="offline")])

    `directory` is where its files go. A run of Weights & Biases that is active already is used, and stays active.
    """

    def __init__(
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        directory: Path | str | None = None,
    ) -> None:
        self.project, self.name, self.mode = project, name, mode
        self.directory = None if directory is None else str(directory)
        self._run: Any = None
        self._own = False

    def check(self) -> None:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise MissingExtra("logging to Weights & Biases", "wandb", "wandb") from error

    def begin(self, start: Start) -> None:
        import wandb

        self._own = wandb.run is None
        if self._own:
            name = self.name or start.recipe.model.name
            self._run = wandb.init(project=self.project, name=name, mode=self.mode, dir=self.directory)
        else:
            self._run = wandb.run
        self._run.config.update(start.parameters())

    def epoch(self, event: EpochEvent) -> None:
        self._run.log(numbers(event), step=event["epoch"])

    def end(self, record: RunRecord | None) -> None:
        if record is not None:
            self._run.summary["best_epoch"] = record.best_epoch
        if self._own:
            self._run.finish(exit_code=0 if record is not None else 1)
