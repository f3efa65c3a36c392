"""`hmlet report`: figures and tables of finished runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmlet.cli.console import Json, app, note, print_json, print_line, progress


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories; the gates shown are the first's.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")],
    figures: Annotated[
        Path | None, typer.Option("--figures", help="A directory for every figure as SVG and PNG besides.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained page about finished runs; `hmlet analyze` first adds what the gates chose.

    Example: hmlet report runs/end --out report.html

    Example: hmlet report runs/end runs/lightgcn --out report.html --figures figures
    """
    from hmlet.api import Run
    from hmlet.errors import NothingHeldOut
    from hmlet.reporting import write_report
    from hmlet.runs.comparison import compare_runs

    opened = [Run.open(path) for path in runs]
    with progress("comparing") as advance:
        try:
            scores = [run.evaluate("test", "train", 20) for run in opened]
            comparison = compare_runs(opened, advance=advance) if len(opened) > 1 else None
        except NothingHeldOut as error:  # the page has its other figures
            note(f"the report has no test scores: {error.message}")
            scores, comparison = [], None
    written = write_report(
        [run.directory for run in opened], out, comparison=comparison, scores=scores, figures=figures
    )
    if as_json:
        print_json({"report": str(written[0]), "figures": [str(path) for path in written[1:]]})
    else:
        print_line(f"report written to {out}" + (f", figures to {figures}" if figures else ""))
