"""`hmlet report`: figures and tables of finished runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmlet.cli.console import Json, app, print_json, print_line, progress
from hmlet.cli.evaluate import DataNow


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories; the gate figures show the first analysed run."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")],
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write every figure as SVG and PNG to this directory.")
    ] = None,
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained page about finished runs. Run `hmlet analyze` first to include the gates.

    Example: hmlet report runs/end --out report.html

    Example: hmlet report runs/end runs/lightgcn --out report.html --figures figures
    """
    import hmlet

    page, *drawn = hmlet.report(
        *(hmlet.Run.open(run, data) for run in runs), out=out, figures=figures, progress=progress
    )
    if as_json:
        print_json({"report": str(page), "figures": [str(path) for path in drawn]})
    else:
        print_line(f"report written to {out}" + (f", figures to {figures}" if figures else ""))
