"""What a report is made of: the content of each run's files, and what was measured of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hmlet.analysis.result import ANALYSIS, Analysis
from hmlet.ranking.evaluation import Evaluation
from hmlet.ranking.statistics import Comparison
from hmlet.runs.comparison import label_runs
from hmlet.runs.directory import Epoch, RunDirectory
from hmlet.runs.record import RunRecord

VARIANT_NAMES = ("all", "front", "middle", "end")


@dataclass(frozen=True)
class RunMaterial:
    """One run: its label on the page and the content of its files; `analysis` is None before `hmlet analyze`."""

    label: str
    record: RunRecord
    config: str
    metrics: list[Epoch]
    analysis: Analysis | None
    scores: Mapping[str, float] | None  # means of the metrics on the held-out part

    @property
    def variant(self) -> str | None:
        """all, front, middle or end; None for another model."""
        name = self.record.model.removeprefix("hmlet-")
        return name if name in VARIANT_NAMES else None

    @property
    def data(self) -> str:
        return self.record.data.name


@dataclass(frozen=True)
class Material:
    """All runs of a page, and the comparison between them."""

    runs: list[RunMaterial]
    comparison: Comparison | None = None
    evaluation: Evaluation | None = None  # the first run's; every run's scores were measured in the same way
    floor: Mapping[str, float] | None = None  # what every run has to beat, measured in the same way

    @property
    def analysed(self) -> RunMaterial | None:
        """The run whose gates the page shows: the first that has been analysed."""
        return next((run for run in self.runs if run.analysis), None)


def read_material(
    runs: Sequence[RunDirectory],
    comparison: Comparison | None = None,
    evaluations: Sequence[Evaluation] = (),
    floor: Mapping[str, float] | None = None,
) -> Material:
    """The content of finished runs' files, each checked as it is read; `evaluations` has one for each run, or none."""
    scores = [each.metrics for each in evaluations] if evaluations else [None] * len(runs)
    return Material(
        [_read(run, label, score) for run, label, score in zip(runs, _labels(runs), scores, strict=True)],
        comparison,
        next(iter(evaluations), None),
        floor,
    )


def _read(run: RunDirectory, label: str, scores: Mapping[str, float] | None) -> RunMaterial:
    run.require_finished()
    analysis = Analysis.from_json(run.read_bytes(ANALYSIS), str(run.path / ANALYSIS)) if run.has(ANALYSIS) else None
    return RunMaterial(label, run.record, run.content("config.toml").text(), run.metrics(), analysis, scores)


def _labels(runs: Sequence[RunDirectory]) -> list[str]:
    """Each run's label, by the same rule as a comparison; different seeds stay separate here."""
    return list(label_runs([(run.record.model, str(at), str(run.path)) for at, run in enumerate(runs)]))
