"""A training's curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hmlet.callbacks.base import Callback, Start, numbers
from hmlet.errors import MissingExtra
from hmlet.runs.record import RunRecord
from hmlet.training.trainer import EpochEvent


class TensorBoard(Callback):
    """Writes the loss and the validation metrics of each epoch as TensorBoard events.

    Example: hmlet.fit("debian", "lightgcn", callbacks=[hmlet.callbacks.TensorBoard("events")])
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._writer: Any = None

    def check(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: F401
        except ImportError as error:
            raise MissingExtra("writing TensorBoard events", "tensorboard", "tensorboard") from error

    def begin(self, start: Start) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.directory))

    def epoch(self, event: EpochEvent) -> None:
        for name, value in numbers(event).items():
            self._writer.add_scalar(name, value, event["epoch"])

    def end(self, record: RunRecord | None) -> None:
        self._writer.close()
