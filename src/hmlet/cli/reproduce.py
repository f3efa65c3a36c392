"""`hmlet reproduce`: reproduce the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import Json, app, note, print_json, print_line, print_table, progress

if TYPE_CHECKING:
    from hmlet.reproduction import Reproduction, WantedRun


@app.command()
def reproduce(
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="A named data set or a prepared directory; repeatable. Default: debian."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Run only this model; repeatable. Default: all eleven.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="main or variants; repeatable. Default: main.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="At most this many seeds per cell. Default: 5, 3 or 1, depending on the table.", min=1),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Preset to start from. Default: gpu for the paper's data sets, hmlet for others."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value for every recipe, repeatable.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Directory for the records and the page; finished runs are not repeated.")
    ] = Path("reproduction"),
    minutes: Annotated[
        float | None, typer.Option(help="Skip runs that would not finish within this many minutes.")
    ] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Also write this call's records into one file of JSON lines after each run.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the weights of every run.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only list the planned runs and which are done.")] = False,
    as_json: Json = False,
) -> None:
    """Train with the recorded recipes and compare every number with the paper's on one page.

    Call it again to continue: recorded runs are skipped, and an interrupted one resumes. Cells without a run say
    "not run".

    Example: hmlet reproduce --dataset debian --seeds 1

    Example: hmlet reproduce --dataset gowalla --table main --table variants --out results --minutes 9
    """
    from hmlet.reproduction import choose, plan_runs, reproduce_choices, wanted_runs

    choices, data = choose(
        dataset or [],
        models=model or [],
        tables=table or ["main"],
        seeds=seeds,
        preset=preset,
        overrides=overrides or [],
        progress=progress,
    )
    if plan:
        _tell_plan(wanted_runs(plan_runs(choices), out), out, as_json)
    else:
        result = reproduce_choices(
            choices, data, out, device=device, minutes=minutes, keep=keep, packed=pack, progress=progress
        )
        _tell(result, as_json)


def _tell(result: Reproduction, as_json: bool) -> None:
    if as_json:
        print_json(result.as_json())
        return
    for each in result.tables:
        print_line(f"{each.dataset}: test part, items of train left out")
        rows = []
        for row in each.main.values():
            values = [row.spread(metric) for metric in ("ndcg", "recall", "precision")]
            shown = ["not run" if value is None else f"{value.mean:.4f}" for value in values]
            rows.append([row.cell.label, row.seeds, *shown, row.verdict("ndcg")])
        print_table(["model", "seeds", "NDCG@20", "Recall@20", "Precision@20", "against the paper"], rows)
        print_line()
    outcome = result.outcome
    for name, reason in outcome.skipped.items():
        note(f"{name} cannot be run here: {reason}")
    print_line(
        f"{outcome.found} already recorded, {len(outcome.trained)} trained, "
        f"{len(outcome.left)} skipped: not enough time left"
    )
    print_line(f"{result.page} has every table and figure")


def _tell_plan(runs: list[WantedRun], out: Path, as_json: bool) -> None:
    """The planned runs, and which are done."""
    if as_json:
        print_json({"runs": [run.as_json() for run in runs]})
        return
    print_table(
        ["data set", "table", "cell", "seed", "run", "done"],
        [[run.dataset, run.table, run.cell, run.seed, run.run, "yes" if run.done else "no"] for run in runs],
    )
    print_line(f"{sum(run.done for run in runs)} of {len(runs)} runs are in {out}")
