"""The contract of a callback, and how a training tells several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.runs.record import RunRecord
from hmlet.training.trainer import EpochEvent, Listener


@dataclass(frozen=True)
class Start:
    """A training that is about to begin."""

    recipe: Recipe
    data: Dataset
    out: Path

    def parameters(self) -> dict[str, object]:
        """Every setting of the recipe under the name that `--set` has for it, and the data set's name."""
        return {"data": self.data.name, **self.recipe.flat()}


class Callback:
    """A listener to a training; override what you need. Only the first of several processes calls it."""

    def begin(self, start: Start) -> None:
        """Called before the first epoch, of a resumed training too."""

    def epoch(self, event: EpochEvent) -> None:
        """Called after every epoch. Raise `StopTraining` to end the training; the run can be resumed."""

    def end(self, record: RunRecord | None) -> None:
        """Called at the end, with the record of the finished run; None if the training failed or was stopped."""


def numbers(event: EpochEvent) -> dict[str, float]:
    """What a tracker draws of an epoch: its loss and, if it was validated, "valid/ndcg" and the like."""
    return {"loss": event["loss"], **{f"valid/{name}": value for name, value in event.get("valid", {}).items()}}


@dataclass
class Told:
    """What the callbacks of one training are told."""

    epoch: Listener
    record: RunRecord | None = None  # of the finished run


@contextmanager
def telling(callbacks: Iterable[Callback | Listener], start: Start, *, first: bool = True) -> Iterator[Told]:
    """Begin the callbacks, and end those that began, whatever happens. Functions are told of epochs, and never end.

    Without `first`, this is not the first of several processes, and only functions are told.
    """
    epochs: list[Callable[[EpochEvent], None]] = []

    def epoch(event: EpochEvent) -> None:
        for each in epochs:
            each(event)

    told = Told(epoch)
    with ExitStack() as ends:
        for each in callbacks:
            if not isinstance(each, Callback):
                epochs.append(each)
            elif first:
                each.begin(start)
                ends.callback(_end, each, told)
                epochs.append(each.epoch)
        yield told


def _end(callback: Callback, told: Told) -> None:
    callback.end(told.record)
