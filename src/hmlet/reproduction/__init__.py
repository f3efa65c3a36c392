"""The paper's tables and figures, made again: `hmlet reproduce` and its Python twin."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hmlet.data import Dataset
from hmlet.errors import MissingExtra
from hmlet.reproduction.campaign import Also, CampaignProgress, Outcome, nothing_else, plan_runs, run_campaign
from hmlet.reproduction.cells import title
from hmlet.reproduction.choosing import DEFAULT_TABLES, WantedRun, choose, wanted_runs
from hmlet.reproduction.markdown import sheet_markdown
from hmlet.reproduction.plan import Choice, Planned
from hmlet.reproduction.records import Records
from hmlet.reproduction.sheets import cost_sheet, sheets
from hmlet.reproduction.tables import Tables
from hmlet.system.files import put
from hmlet.system.progress import Advance, Progress, hidden, watching
from hmlet.training.trainer import Interrupted

__all__ = [
    "Choice",
    "Reproduction",
    "WantedRun",
    "choose",
    "plan_runs",
    "reproduce",
    "reproduce_choices",
    "wanted_runs",
]

PAGE_FILE, MARKDOWN_FILE = "reproduction.html", "reproduction.md"
log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Reproduction:
    """What `reproduce` did and where its pages are; `tables` has the numbers."""

    page: Path
    markdown: Path
    outcome: Outcome
    tables: tuple[Tables, ...]

    def __repr__(self) -> str:
        names, outcome = ", ".join(each.dataset for each in self.tables), self.outcome
        counts = f"{outcome.found} runs found, {len(outcome.trained)} trained, {len(outcome.left)} left"
        return f"<Reproduction on {names}: {counts}; {self.page}>"

    def as_json(self) -> dict[str, object]:
        return {
            "page": str(self.page),
            "markdown": str(self.markdown),
            **self.outcome.as_json(),
            "datasets": {each.dataset: _numbers(each) for each in self.tables},
        }


def reproduce(
    *datasets: Dataset | Path | str,
    models: Sequence[str] = (),
    tables: Sequence[str] = DEFAULT_TABLES,
    seeds: int | None = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    out: Path | str = "reproduction",
    minutes: float | None = None,
    packed: Path | str | None = None,
    device: str = "auto",
    keep: bool = False,
    progress: Progress | bool = True,
) -> Reproduction:
    """Train with the recorded recipes and set each number beside the paper's, on one page: `hmlet reproduce`.

    Example: hmlet.reproduce("debian", models=["lightgcn"], seeds=1).page

    `datasets` are debian by default, `models` all, `tables` the main one (the other is variants).
    `seeds` caps those of each cell. Recorded runs in `out` are skipped, so call it again to go on. `minutes` starts no
    run that would not end in that time; `packed` is one file with what the call records.
    """
    progress = watching(progress)
    choices, data = choose(
        datasets, models=models, tables=tables, seeds=seeds, preset=preset, overrides=overrides, progress=progress
    )
    return reproduce_choices(
        choices, data, out, minutes=minutes, packed=packed, device=device, keep=keep, progress=progress
    )


def reproduce_choices(
    choices: Sequence[Choice],
    data: Mapping[str, Dataset],
    out: Path | str,
    *,
    device: str = "auto",
    minutes: float | None = None,
    keep: bool = False,
    packed: Path | str | None = None,
    progress: Progress = hidden,
) -> Reproduction:
    """Train and record what is missing in `out`, then write its page and its Markdown tables.

    `data` has the data set of each choice by name. A training that is asked to stop saves itself, and the page is
    written before the call ends with that.
    """
    _require_page()
    out = Path(out)
    try:
        outcome = train_missing(
            "reproducing", plan_runs(choices), data, out,
            device=device, minutes=minutes, keep=keep, packed=packed, progress=progress,
        )  # fmt: skip
    except Interrupted as stop:
        write(choices, out)
        raise Interrupted(stop.message, "call it again to go on") from stop
    return replace(write(choices, out), outcome=outcome)


def train_missing(
    title: str,
    runs: Sequence[Planned],
    data: Mapping[str, Dataset],
    out: Path,
    *,
    device: str,
    minutes: float | None,
    keep: bool,
    packed: Path | str | None,
    progress: Progress,
    also: Also = nothing_else,
) -> Outcome:
    """Train and record the runs that `out` lacks, and tell how far that is."""
    with progress(title) as advance:
        return run_campaign(
            runs,
            data,
            out,
            device=device,
            minutes=minutes,
            keep=keep,
            packed=None if packed is None else Path(packed),
            also=also,
            listener=lambda now: _tell_run(now, advance),
        )


def _tell_run(now: CampaignProgress, advance: Advance) -> None:
    """Pass a campaign's progress on to a progress bar and, at the end of a run, to the log."""
    left = "" if now.seconds_left is None else f"  about {max(now.seconds_left, 0) / 60:.0f} min for the rest"
    advance(now.done + now.share % 1, now.wanted, f"run {now.done} of {now.wanted}  {now.run.name}{left}")
    if now.share == 1.0:
        log.info("%d of %d: %s/%s%s", now.done, now.wanted, now.run.dataset, now.run.name, left)


def write(choices: Sequence[Choice], out: Path) -> Reproduction:
    """Write the page and the Markdown tables from the records that `out` has, training nothing."""
    from hmlet.reproduction.page import render

    records = Records.read(out)
    tables = tuple(Tables(choice, records) for choice in choices)
    runs = plan_runs(choices)
    done = sum(records.find(run.dataset, run.recipe) is not None for run in runs)
    page = put(out / PAGE_FILE, render(tables, done, len(runs)).encode())
    markdown = put(out / MARKDOWN_FILE, _markdown(tables, out).encode())
    return Reproduction(page, markdown, Outcome(found=done), tables)


def _require_page() -> None:
    """Refuse to begin hours of work whose page could not be drawn."""
    try:
        import hmlet.reporting.figures  # noqa: F401
    except ImportError as error:
        raise MissingExtra("a page", "matplotlib", "report") from error


def _markdown(tables: Sequence[Tables], home: Path) -> str:
    parts = ["# HMLET, reproduced\n"]
    for each in tables:
        parts.append(f"## {title(each.dataset)}\n")
        parts += [sheet_markdown(sheet, home) for sheet in sheets(each).values()]
    parts.append(sheet_markdown(cost_sheet(tables, [title(each.dataset) for each in tables]), home, heading="##"))
    return "\n".join(parts)


def _numbers(tables: Tables) -> dict[str, object]:
    """The main table and the claims, for programs."""
    main = {}
    for model, row in tables.main.items():
        found = {metric: row.spread(metric) for metric in ("ndcg", "recall", "precision")}
        main[model] = {
            metric: None if each is None else {"mean": each.mean, "std": each.std, "verdict": row.verdict(metric)}
            for metric, each in found.items()
        } | {"seeds": len(row.records)}
    return {"main": main, "claims": {claim.about: claim.verdict for claim in tables.claims()}}
