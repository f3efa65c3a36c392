"""`hmlet finish`: a model from an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmlet.cli.console import Json, app, print_json, print_line, progress
from hmlet.cli.evaluate import DataNow
from hmlet.cli.train import summary


@app.command()
def finish(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of an unfinished run.")],
    data: DataNow = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Json = False,
) -> None:
    """Finish an interrupted run with the best model it has so far.

    Example: hmlet finish runs/end

    A finished run cannot continue training. To continue instead, use hmlet train DATA --out RUN --resume.
    """
    import hmlet

    finished = hmlet.finish(run, data, device=device, progress=progress)
    if as_json:
        found = finished.record.model_dump(include={"model", "best_epoch", "epochs", "valid", "timings", "note"})
        print_json({"run": str(run), **found})
        return
    print_line(summary(finished))
