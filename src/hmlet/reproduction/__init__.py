"""The paper's tables and figures, made again: `hmlet reproduce` and its Python twin."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hmlet.data import Dataset
from hmlet.errors import ConfigError, MissingExtra
from hmlet.reproduction.campaign import Outcome, Progress, plan_runs, run_campaign
from hmlet.reproduction.cells import title
from hmlet.reproduction.markdown import sheet_markdown
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import Records, pack
from hmlet.reproduction.search import Trial, search
from hmlet.reproduction.sheets import cost_sheet, sheets
from hmlet.reproduction.tables import Tables
from hmlet.system.files import put
from hmlet.training.loop import Interrupted

__all__ = ["Choice", "Progress", "Reproduction", "Trial", "reproduce", "search_recipes"]

PAGE_FILE, MARKDOWN_FILE = "reproduction.html", "reproduction.md"


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` did and where its pages are; `tables` has the numbers."""

    page: Path
    markdown: Path
    outcome: Outcome
    tables: tuple[Tables, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "page": str(self.page),
            "markdown": str(self.markdown),
            **self.outcome.as_json(),
            "datasets": {each.dataset: _numbers(each) for each in self.tables},
        }


def reproduce(
    choices: Sequence[Choice],
    data: Mapping[str, Dataset],
    out: Path,
    *,
    device: str = "auto",
    minutes: float | None = None,
    keep: bool = False,
    packed: Path | None = None,
    listener: Callable[[Progress], None] = lambda progress: None,
) -> Reproduction:
    """Train and record what is missing in `out`, then write its page and its Markdown tables: `hmlet reproduce`.

    `data` has the data set of each choice by name; a choice's name is the data set's. The options are run_campaign's.
    A training that is asked to stop saves itself, and the page is written before the call ends with that.
    """
    _require_page()
    try:
        outcome = run_campaign(
            choices, data, out, device=device, minutes=minutes, keep=keep, packed=packed, listener=listener
        )
    except Interrupted as stop:
        write(choices, out)
        raise Interrupted(stop.message, "call it again to go on") from stop
    return replace(write(choices, out), outcome=outcome)


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


def search_recipes(
    choices: Sequence[Choice],
    data: Mapping[str, Dataset],
    out: Path,
    trials: int,
    *,
    space: Path | None = None,
    device: str = "auto",
    minutes: float | None = None,
    packed: Path | None = None,
    listener: Callable[[Trial], None] = lambda trial: None,
) -> list[Path]:
    """Search the chosen models' recipes on each data set, as many trials for each: `hmlet reproduce --search`.

    The files that say what was tried; the test part is never read. `space` is a TOML file, by default each family has
    its own. `packed` is rewritten after each trial.
    """
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"--minutes {minutes:g} is not positive", "use --minutes 9, say")
    deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def tell(trial: Trial) -> None:
        if packed is not None:
            pack(out, [], packed)
        listener(trial)

    return [
        path
        for choice in choices
        for path in search(
            choice,
            data[choice.dataset],
            out,
            trials,
            space=space,
            device=device,
            deadline=deadline,
            listener=tell,
        )
    ]


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
