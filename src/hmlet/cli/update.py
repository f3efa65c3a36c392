"""`hmlet update`: new interactions for a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmlet.cli.console import Json, app, print_json, print_line, progress
from hmlet.cli.evaluate import DataNow, RunPath
from hmlet.cli.train import summary


@app.command()
def update(
    run: RunPath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new interactions.")],
    out: Annotated[
        Path | None, typer.Option(help="The run directory to write. Default: the first free of RUN-2, RUN-3, …")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Column of user ids.")] = None,
    item: Annotated[str | None, typer.Option(help="Column of item ids.")] = None,
    rating: Annotated[str | None, typer.Option(help="Column of ratings.")] = None,
    timestamp: Annotated[str | None, typer.Option(help="Column of times.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of weights.")] = None,
    min_rating: Annotated[
        float | None, typer.Option(help="Drop rows with a lower rating. Default: as in the run's data.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip invalid rows.")] = False,
    file_format: Annotated[
        str | None, typer.Option("--format", help="The file's format. Default: from its suffix.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Field delimiter.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Column names of a file without a header, such as user,item,rating")
    ] = None,
    decimal: Annotated[str, typer.Option(help="Decimal separator of ratings and weights: . or a comma.")] = ".",
    day_first: Annotated[
        bool, typer.Option("--day-first", help="Dates are written as 31/12/2024 or 31.12.2024.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted update in --out with the same FILE.")
    ] = False,
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Train a finished run further on new interactions, users and items, without starting over.

    The result is a new run; RUN stays as it is. All new interactions join the training part. A model trained by
    gradient steps continues for a few epochs; a closed form is refitted. Columns have the names that the run's data was
    prepared with, unless you name others. If that data has a rating threshold, weights or times, FILE should too.

    Example: hmlet update runs/end new.csv --out runs/end-2
    """
    import hmlet

    updated = hmlet.update(
        hmlet.Run.open(run, data),
        file,
        out,
        user=user,
        item=item,
        rating=rating,
        timestamp=timestamp,
        weight=weight,
        min_rating=min_rating,
        skip_bad=skip_bad,
        format=file_format,
        delimiter=delimiter,
        columns=columns or (),
        decimal=decimal,
        day_first=day_first,
        device=device,
        threads=threads,
        resume=resume,
        progress=progress,
    )
    if as_json:
        found = updated.record.model_dump(include={"model", "best_epoch", "epochs", "valid", "timings", "updated_from"})
        print_json({"run": str(updated.directory.path), **found})
        return
    print_line(summary(updated))
