"""`hmlet evaluate`: metrics of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmlet.cli.console import Json, app, print_json, print_line, print_table, progress

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Mask = Annotated[str, typer.Option(help="Items excluded from the ranking: train or train+valid.")]
DataNow = Annotated[
    str | None,
    typer.Option("--data", help="The prepared directory, if the run has no copy of its data and it has moved."),
]
TopK = Annotated[int, typer.Option("-k", help="Length of the lists.", min=1)]


@app.command()
def evaluate(
    run: RunPath,
    split: Annotated[str, typer.Option(help="Held-out part: valid or test.")] = "test",
    mask: Mask = "train",
    k: TopK = 20,
    data: DataNow = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate a run: full-ranking metrics, averaged over users.

    Example: hmlet evaluate runs/end --split test --mask train -k 20
    """
    import hmlet

    result = hmlet.evaluate(hmlet.Run.open(run, data), split, mask, k, device=device, progress=progress)
    if as_json:
        print_json(result.as_json())
        return
    print_line(f"{run} on {split}, {len(result.users):,} users, items of {mask} left out")
    print_table(["metric", f"@{k}"], [[name, f"{value:.4f}"] for name, value in result.metrics.items()])
