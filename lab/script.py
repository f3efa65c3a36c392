"""What the laboratory's commands share: options, one line for a user's mistake, and plain tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hmlet.errors import HmletError
from hmlet.ranking.statistics import markdown_table
from hmlet.reproduction.campaign import Outcome
from hmlet.reproduction.choosing import WantedRun
from hmlet.system.spelling import in_shell


def campaign_options(parser: argparse.ArgumentParser, out: str) -> None:
    """The options of a command that trains and records runs."""
    parser.add_argument("--seeds", type=int, help="at most this many for each row")
    parser.add_argument("--out", type=Path, default=Path(out), help="for the records; finished runs are not repeated")
    parser.add_argument("--minutes", type=float, help="skip runs that would not finish within this time")
    parser.add_argument("--pack", type=Path, help="also write this call's records into one file of JSON lines")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--keep", action="store_true", help="keep the weights of every run")
    parser.add_argument("--plan", action="store_true", help="only list the planned runs and which are done")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def call(main: Callable[[Sequence[str] | None], None], arguments: Sequence[str] | None = None) -> int:
    """The exit status of a command: 0, or 2 and one line on standard error."""
    try:
        with in_shell():
            main(arguments)
    except HmletError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def show(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    print(markdown_table([list(columns), *([str(cell) for cell in row] for row in rows)]))


def show_plan(runs: Sequence[WantedRun], out: Path) -> None:
    rows = [[run.dataset, run.cell, run.seed, run.run, "yes" if run.done else "no"] for run in runs]
    show(["data set", "row", "seed", "run", "done"], rows)
    print(f"{sum(run.done for run in runs)} of {len(runs)} runs are in {out}")


def show_outcome(outcome: Outcome) -> None:
    for name, reason in outcome.skipped.items():
        print(f"{name} cannot be run here: {reason}", file=sys.stderr)
    done, trained, left = outcome.found, len(outcome.trained), len(outcome.left)
    print(f"{done} already recorded, {trained} trained, {left} skipped: not enough time left")
