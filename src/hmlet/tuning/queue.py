"""A queue of one process's own, without Optuna: which trial comes next, and what became of the others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hmlet.errors import HmletError, MissingExtra
from hmlet.training.trainer import Interrupted
from hmlet.tuning.space import Point
from hmlet.tuning.trial import Task, Train, TrialRecord


class LocalQueue:
    """Points that one process tries in order, without Optuna.

    `save` is told of all records after each trial; a queue that starts with them continues after the last one. The run
    directory `place` holds the current trial only.
    """

    def __init__(
        self,
        points: Sequence[Point],
        place: Path,
        records: Sequence[TrialRecord] = (),
        save: Callable[[Sequence[TrialRecord]], None] = lambda records: None,
    ) -> None:
        self._points, self._place, self._save = points, place, save
        self._records = list(records)

    def records(self) -> list[TrialRecord]:
        return list(self._records)

    def take(self, train: Train) -> bool:
        """Train the next point. A stop or a missing extra leaves it on the queue; any other failure is its record."""
        number = len(self._records)
        if number >= len(self._points):
            return False
        point, began = self._points[number], time.monotonic()
        try:
            trained = train(Task(point, self._place, lambda epoch, value: None))
        except (Interrupted, MissingExtra):  # the trial can be finished later, or on a machine with the extra
            raise
        except HmletError as error:
            seconds = round(time.monotonic() - began, 1)
            record = TrialRecord(number, "failed", point, None, seconds, None, str(error))
        else:
            seconds = round(max(time.monotonic() - began, trained.seconds), 1)
            record = TrialRecord(number, "complete", point, trained.value, seconds, None, trained=trained)
        self._records.append(record)
        self._save(self._records)
        shutil.rmtree(self._place, ignore_errors=True)
        return True
