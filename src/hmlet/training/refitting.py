"""refit(): the number of epochs that validation chose, trained on everything.

The run that chose it has figures, and the refit has none: nothing is held out of its data. Its recipe is that of the
run, on the same schedule, ended after the same epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hmlet.data import Dataset
from hmlet.data.extension import everything_trains
from hmlet.errors import NothingHeldOut
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import RefittedFrom
from hmlet.training import loop
from hmlet.training.trainer import Listener, Tell, untold


def refit(
    before: RunDirectory,
    data: Dataset,
    test: Mapping[str, float] | None,
    out: Path | str,
    *,
    device: str,
    resume: bool,
    listener: Listener | None = None,
    tell: Tell = untold,
) -> RunDirectory:
    """Train the recipe of a finished run on all its data, for as many epochs as its validation chose.

    `test` is what the run's own test metrics are, for the record.
    """
    record = before.require_finished().record
    if data.count("train") == len(data):
        raise NothingHeldOut(f"{before.path} was already trained on all data", "use it as it is")
    recipe = before.recipe()
    stopped = recipe.train.model_copy(update={"stop_after": record.best_epoch})
    origin = RefittedFrom(
        run=str(before.path.resolve()),
        model=record.files["model.safetensors"][0],
        fingerprint=record.data.fingerprint,
        best_epoch=record.best_epoch,
        valid=record.valid,
        test=test,
    )
    return loop.fit(
        everything_trains(data),
        recipe.model_copy(update={"train": stopped}),
        out,
        device=device,
        resume=resume,
        listener=listener,
        tell=tell,
        origin=origin,
    )
