"""One self-contained page, and its figures as files, from what finished runs have written. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hmlet.errors import MissingExtra
from hmlet.ranking.evaluation import Evaluation
from hmlet.ranking.statistics import Comparison
from hmlet.reporting.material import read_material
from hmlet.runs.directory import RunDirectory
from hmlet.runs.recorded import require_unrecorded
from hmlet.system.files import put

__all__ = ["write_report"]


def write_report(
    runs: Sequence[RunDirectory],
    out: Path,
    *,
    comparison: Comparison | None = None,
    scores: Sequence[Evaluation] = (),
    floor: Mapping[str, float] | None = None,
    figures: Path | None = None,
) -> list[Path]:
    """Write the page, and with `figures` every figure as SVG and PNG; the paths written, the page first.

    `comparison` is between the runs; `scores` has each run's evaluation, or none; every run has to beat the `floor`.
    """
    require_unrecorded(out)
    try:
        from hmlet.reporting import figures as drawing
        from hmlet.reporting.page import render
    except ImportError as error:
        raise MissingExtra("a report", "matplotlib", "report") from error
    material = read_material(runs, comparison, scores, floor)
    drawn = drawing.draw_all(material)
    written = [put(out, render(material, drawn).encode())]
    if figures is not None:
        for each in drawn:
            written += [
                put(figures / f"{each.name}.svg", each.svg.encode()),
                put(figures / f"{each.name}.png", each.png),
            ]
    return written
