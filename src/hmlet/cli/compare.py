"""`hmlet compare`: compare models and test whether the difference between the two best is significant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmlet.cli.console import Json, app, print_emphasised, print_json, print_line, progress
from hmlet.cli.evaluate import DataNow


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Two or more run directories on one data set.")],
    split: Annotated[str, typer.Option("--split", help="The part to rank: valid or test.")] = "test",
    mask: Annotated[
        str, typer.Option("--mask", help="Items excluded from the ranking: train or train+valid.")
    ] = "train",
    k: Annotated[int, typer.Option("-k", help="Length of the lists.", min=1)] = 20,
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Compare models: means, %improvement, paired t-test, Wilcoxon, effect size, 95 % interval.

    Runs that differ only in their seed count as one model: mean ± standard deviation over the seeds. The last model is
    the floor, popularity, computed on the same data unless a run is of that model.

    Example: hmlet compare runs/hmlet-end runs/lightgcn
    """
    import hmlet

    comparison = hmlet.compare(
        *(hmlet.Run.open(run, data) for run in runs), split=split, mask=mask, k=k, progress=progress
    )
    if as_json:
        print_json(comparison.as_json())
        return
    print_emphasised(comparison.markdown())
    print_line()
    print_line(comparison.conclusion())
