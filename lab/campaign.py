"""Train and record all that the documents show of a data set: the paper's tables, the ablation, and noise when ranking.

    python -m lab.campaign gowalla --table ablation --out lab/results/runs --minutes 9 --pack back.jsonl

`hmlet reproduce` fills the paper's own tables alone. Call it again to continue.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from hmlet.reproduction import train_missing
from hmlet.reproduction.cells import CAMPAIGN, TABLES
from hmlet.reproduction.choosing import choose, wanted_runs
from hmlet.reproduction.plan import Choice, Planned
from hmlet.system.progress import shown
from lab.ablation import cells
from lab.noise import record_noise
from lab.script import call, campaign_options, show_outcome, show_plan

ABLATION = "ablation"


def planned(choice: Choice, ablation: bool) -> list[Planned]:
    """The runs of a choice, with those of the ablation if it is wanted, the most valuable first."""
    return choice.runs([*choice.cells(), *(cells(choice) if ablation else ())])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a named data set or a prepared directory")
    parser.add_argument("--table", action="append", choices=[*TABLES, ABLATION], help="repeatable; by default all")
    parser.add_argument("--model", action="append", default=[], choices=list(CAMPAIGN.titles), help="repeatable")
    parser.add_argument("--preset", help="where the settings start")
    parser.add_argument("--set", action="append", default=[], help="section.key=value for every run, repeatable")
    campaign_options(parser, "reproduction")
    options = parser.parse_args(arguments)
    tables = options.table or [*TABLES, ABLATION]
    (choice,), data = choose(
        [options.data], models=options.model, tables=[each for each in tables if each != ABLATION], seeds=options.seeds,
        preset=options.preset, overrides=options.set, progress=shown,
    )  # fmt: skip
    runs = planned(choice, ABLATION in tables)
    if options.plan:
        wanted = wanted_runs(runs, options.out)
        if options.json:
            print(json.dumps({"runs": [run.as_json() for run in wanted]}))
        else:
            show_plan(wanted, options.out)
        return
    outcome = train_missing(
        "training", runs, data, options.out, device=options.device, minutes=options.minutes, keep=options.keep,
        packed=options.pack, progress=shown, also=record_noise,
    )  # fmt: skip
    if options.json:
        print(json.dumps(outcome.as_json()))
    else:
        show_outcome(outcome)


if __name__ == "__main__":
    sys.exit(call(main))
