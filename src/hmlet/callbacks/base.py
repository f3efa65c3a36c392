"""The contract of a callback, and how a training tells several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

    def check(self) -> None:
        """Called before anything else: raise an error if something is missing."""

    def begin(self, start: Start) -> None:
        """Called before the first epoch, of a resumed training too, when the recipe is settled."""

    def epoch(self, event: EpochEvent) -> None:
        """Called after every epoch. Raise `StopTraining` to end the training; the run can be resumed."""

    def end(self, record: RunRecord | None) -> None:
        """Called at the end, with the record of the finished run; None if the training failed or was stopped."""


def numbers(event: EpochEvent) -> dict[str, float]:
    """What a tracker draws of an epoch: its loss and, if it was validated, "valid/ndcg" and the like."""
    return {"loss": event["loss"], **{f"valid/{name}": value for name, value in event.get("valid", {}).items()}}


class Told:
    """The callbacks of one training as one. Functions are called after epochs only."""

    def __init__(self, callbacks: Iterable[Callback | Listener], data: Dataset, out: Path, first: bool) -> None:
        self.data, self.out = data, out
        self.record: RunRecord | None = None  # of the finished run
        given = [each for each in callbacks if first or not isinstance(each, Callback)]
        self._callbacks = [each for each in given if isinstance(each, Callback)]
        self._epochs = [each.epoch if isinstance(each, Callback) else each for each in given]
        self._begun: list[Callback] = []

    def check(self) -> None:
        for each in self._callbacks:
            each.check()

    def begin(self, recipe: Recipe) -> None:
        for each in self._callbacks:
            each.begin(Start(recipe, self.data, self.out))
            self._begun.append(each)

    def epoch(self, event: EpochEvent) -> None:
        for each in self._epochs:
            each(event)

    def end(self) -> None:
        with ExitStack() as ends:  # all of them, even if one fails
            for each in self._begun:
                ends.callback(each.end, self.record)


@contextmanager
def telling(
    callbacks: Iterable[Callback | Listener], data: Dataset, out: Path, *, first: bool = True
) -> Iterator[Told]:
    """Check the callbacks, and close the started ones at the end of the block, even after an error.

    Without `first`, this is not the first of several processes, and only functions are called.
    """
    told = Told(callbacks, data, out, first)
    told.check()
    try:
        yield told
    finally:
        told.end()
