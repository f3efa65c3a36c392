"""A training's curves for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hmlet.errors import MissingExtra
from hmlet.system.spelling import option
from hmlet.training.trainer import EpochEvent, Listener


@contextmanager
def tensorboard_events(directory: Path | str) -> Iterator[Listener]:
    """A listener that writes the loss and the validation metrics of each epoch as TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra(option("tensorboard"), "tensorboard", "tensorboard") from error
    writer: Any = SummaryWriter(str(directory))

    def listen(event: EpochEvent) -> None:
        writer.add_scalar("loss", event["loss"], event["epoch"])
        for name, value in event.get("valid", {}).items():
            writer.add_scalar(f"valid/{name}", value, event["epoch"])

    try:
        yield listen
    finally:
        writer.close()
