"""What a report is made of: each run's files as they are, and the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hmlet.analysis.verdict import judged
from hmlet.runs.comparison import label_runs
from hmlet.runs.directory import Epoch, RunDirectory
from hmlet.runs.record import RunRecord

VARIANTS = ("all", "front", "middle", "end")


@dataclass(frozen=True)
class RunMaterial:
    """One run: its label on the page and the content of its files; `analysis` is None before `hmlet analyze`."""

    label: str
    record: RunRecord
    config: str
    metrics: list[Epoch]
    analysis: dict[str, Any] | None
    scores: dict[str, Any] | None

    @property
    def variant(self) -> str | None:
        """all, front, middle or end; None for another model."""
        name = self.record.model.removeprefix("hmlet-")
        return name if name in VARIANTS else None

    @property
    def data(self) -> str:
        return self.record.data.name


@dataclass(frozen=True)
class Material:
    """All runs of a page, and the comparison between them."""

    runs: list[RunMaterial]
    comparison: dict[str, Any] | None

    @property
    def analysed(self) -> RunMaterial | None:
        """The run whose gates the page shows: the first that has been analysed."""
        return next((run for run in self.runs if run.analysis), None)


@cache
def paper() -> dict[str, Any]:
    """The numbers of the paper's tables and figures."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    return found


def read_material(
    runs: Sequence[RunDirectory], comparison: dict[str, Any] | None, scores: Sequence[dict[str, Any] | None]
) -> Material:
    """The content of finished runs' files, every one checked as it is read."""
    padded = [*scores, *[None] * (len(runs) - len(scores))]
    return Material(
        [_read(run, label, score) for run, label, score in zip(runs, _labels(runs), padded, strict=True)], comparison
    )


def _read(run: RunDirectory, label: str, scores: dict[str, Any] | None) -> RunMaterial:
    run.require_finished()
    analysis = judged(run.read_json("analysis.json")) if run.has("analysis.json") else None
    return RunMaterial(label, run.record, run.read_bytes("config.toml").decode(), run.metrics(), analysis, scores)


def _labels(runs: Sequence[RunDirectory]) -> list[str]:
    """Each run's label by the rule of a comparison, so that a page has one name for a run; seeds keep apart here."""
    return list(label_runs([(run.record.model, str(at), str(run.path)) for at, run in enumerate(runs)]))
