"""What follows a finished run: new interactions, a last training on everything, and its way to other machines."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Unpack

from hmlet import packaging
from hmlet.api.runs import Run, open_run
from hmlet.api.training import training_threads
from hmlet.data.extension import Added, extended, new_interactions
from hmlet.data.inputs import Reading, reading
from hmlet.packaging import hub
from hmlet.runs.record import RECORD
from hmlet.system.progress import Advance, Progress, watching
from hmlet.training import refitting, updating
from hmlet.training.loop import choose_device
from hmlet.training.trainer import EpochEvent, Listener

log = logging.getLogger(__name__)


def update(
    run: Run | Path | str,
    interactions: Any,
    out: Path | str | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    resume: bool = False,
    progress: Progress | bool = True,
    **options: Unpack[Reading],
) -> Run:
    """Train a finished run further on new interactions, users and items, as a new run: `hmlet update`.

    Example: hmlet.update("runs/end", "new.csv", "runs/end-2")

    `interactions` is a file or a frame. All of them join the training part; the validation and test parts stay as they
    are. `options` are those of `Dataset.from_file` that say how interactions are read. Columns have by default the
    names that the run's data was prepared with, and its `min_rating` applies. What the run's data has of ratings,
    weights and times, the interactions should have too. The old run stays; `out` is by default the first free of RUN-2,
    RUN-3 and so on. A closed form is fitted again.
    """
    opened = open_run(run)
    path = _next_to(opened.directory.path) if out is None else Path(out)
    with watching(progress)(f"reading {interactions}" if isinstance(interactions, str | Path) else "reading"):
        columns, dialect, rows = reading(options, Reading.__annotations__)
        read = new_interactions(interactions, opened.data, columns=columns, dialect=dialect, **rows)
        grown, added = extended(opened.data, read)
    log.info("%s", _told(added))
    with (
        training_threads(choose_device(device), threads),
        watching(progress)(f"updating {opened.record.model}") as advance,
    ):
        trained = updating.update(
            opened.directory,
            grown,
            added,
            path,
            device=device,
            resume=resume,
            listener=_showing(advance),
            tell=lambda text: log.info("%s", text),
        )
    found = Run(trained)
    found.data = grown  # it need not be read again
    return found


def refit(
    run: Run | Path | str,
    out: Path | str,
    *,
    device: str = "auto",
    threads: int | None = None,
    resume: bool = False,
    progress: Progress | bool = True,
) -> Run:
    """Train a finished run's recipe on all its data, for the epochs that validation chose: `hmlet train --refit-all`.

    Example: hmlet.refit("runs/selection", "runs/production")

    The training, validation and test parts are all trained on. So the refit has no test figures, and its record has
    those of the run.
    """
    opened = open_run(run)
    test = opened.evaluate().metrics if opened.data.count("test") else None
    with (
        training_threads(choose_device(device), threads),
        watching(progress)(f"refitting {opened.record.model}") as advance,
    ):
        trained = refitting.refit(
            opened.directory,
            opened.data,
            test,
            out,
            device=device,
            resume=resume,
            listener=_showing(advance),
            tell=lambda text: log.info("%s", text),
        )
    return Run(trained)


def package(
    run: Run | Path | str, out: Path | str, *, wheel: Path | str | None = None, progress: Progress | bool = True
) -> Path:
    """Write everything needed to serve a run elsewhere as one folder, or as one .tar.gz: `hmlet package`.

    Example: hmlet.package("runs/end", "package")

    It has the run with its data, a model card, a Dockerfile, a compose file and a Kubernetes manifest. `wheel` is a
    wheel of hmlet to include.
    """
    opened = open_run(run)
    with watching(progress)(f"packaging {opened.directory.path}"):
        return packaging.package(opened, Path(out), wheel=None if wheel is None else Path(wheel))


def push(
    run: Run | Path | str,
    repository: str,
    *,
    private: bool = True,
    token: str | None = None,
    progress: Progress | bool = True,
) -> str:
    """Upload a run's package to a Hugging Face Hub repository, and return the address of the commit: `hmlet push`.

    Example: hmlet.push("runs/end", "me/recommender")

    A repository that does not exist is created, `private` unless told otherwise. `token` is by default what
    huggingface_hub finds: HF_TOKEN, or a login.
    """
    opened = open_run(run)
    with watching(progress)(f"uploading to {repository}"):
        return hub.push(opened, repository, private=private, token=token)


def pull(
    repository: str,
    out: Path | str,
    *,
    revision: str | None = None,
    token: str | None = None,
    progress: Progress | bool = True,
) -> Run:
    """Download a run that `push` uploaded, and open it: `hmlet pull`.

    Example: hmlet.pull("me/recommender", "runs/pulled")

    `out` gets the whole package. The run is in its folder `run`.
    """
    with watching(progress)(f"downloading {repository}"):
        return Run.open(hub.pull(repository, Path(out), revision=revision, token=token))


def _next_to(path: Path) -> Path:
    """The first free name of RUN-2, RUN-3 and so on."""
    number = 2
    while (path.with_name(f"{path.name}-{number}") / RECORD).exists():
        number += 1
    return path.with_name(f"{path.name}-{number}")


def _told(added: Added) -> str:
    """An extension in words."""
    known = f"; {added.known:,} were known already" if added.known else ""
    return f"{added.interactions:,} new interactions, {added.users:,} new users, {added.items:,} new items{known}"


def _showing(advance: Advance) -> Listener:
    """A listener that moves a progress bar."""

    def listen(event: EpochEvent) -> None:
        advance(event["epoch"], event["epochs"], f"epoch {event['epoch']} of {event['epochs']}")

    return listen
