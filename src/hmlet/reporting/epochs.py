"""What the figures over training time share: their columns, and the values that they show on hover."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hmlet.reporting.drawing import Spot, strips
from hmlet.reporting.material import RunMaterial

MOST_STRIPS = 50  # along a time axis: each is a place to hover over, and a finger needs room


def validated(run: RunMaterial) -> list[dict[str, Any]]:
    return [{"epoch": row["epoch"], "loss": row["loss"], **row["valid"]} for row in run.metrics if row.get("valid")]


def epoch_spots(
    top: Any, bottom: Any, runs: Sequence[RunMaterial], words: Callable[[RunMaterial, int], list[str]]
) -> list[Spot]:
    """A strip for each validated epoch, over both axes; where there are many, every n-th and the kept ones."""
    epochs = sorted({row["epoch"] for run in runs for row in validated(run)})
    kept = {run.record.best_epoch for run in runs}
    step = -(-len(epochs) // MOST_STRIPS) or 1
    shown = [epoch for at, epoch in enumerate(epochs) if at % step == 0 or epoch in kept]
    if not shown:
        return []
    ranges = strips(shown, *top.get_xlim())
    lines = [[f"epoch {epoch}", *(line for run in runs for line in words(run, epoch))] for epoch in shown]
    return [Spot(top, x, None, text, last=bottom) for x, text in zip(ranges, lines, strict=True)]


def column(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    some = [row for row in rows if row.get(name) is not None]
    return [row["epoch"] for row in some], [row[name] for row in some]
