"""`hmlet board`: our best configurations on a benchmark's public split, compared with published results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import Json, app, note, print_json, print_line, print_table, progress
from hmlet.cli.reproduce import tell_plan

if TYPE_CHECKING:
    from hmlet import Board


@app.command()
def board(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A named benchmark such as gowalla, or its prepared directory.")
    ],
    arm: Annotated[list[str] | None, typer.Option(help="Run only this arm; repeatable. Default: all arms.")] = None,
    arms: Annotated[
        Path | None, typer.Option(help="A TOML file with arms under [[DATA]]. Default: the arms that come with hmlet.")
    ] = None,
    selection: Annotated[
        bool,
        typer.Option("--selection", help="Score on a held-out tenth of the training part, to choose between arms."),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="At most this many seeds per arm. Default: 5, or 1 for a closed form.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the records; finished runs are not repeated.")] = Path(
        "board"
    ),
    minutes: Annotated[
        float | None, typer.Option(help="Skip runs that would not finish within this many minutes.")
    ] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Also write this call's records into one file of JSON lines after each run.")
    ] = None,
    prepare: Annotated[Path | None, typer.Option(help="Only write both splits as prepared directories here.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the weights of every run.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only list the planned runs and which are done.")] = False,
    as_json: Json = False,
) -> None:
    """Train our arms on a benchmark's public split and compare them with published numbers.

    Each arm trains on the whole training part, for a fixed number of epochs, and is tested on the published test set.
    Choose between recipes with --selection, which never reads that set. Call it again to continue.

    Example: hmlet board gowalla --arm ease --arm gf-cf --seeds 1

    Example: hmlet board yelp2018 --selection --arms candidates.toml --minutes 9
    """
    import hmlet
    from hmlet.reproduction import wanted_runs
    from hmlet.reproduction.board import load_arms, plan_board, prepare_board
    from hmlet.reproduction.choosing import load_distinct

    if prepare is not None:
        written = prepare_board(data, prepare, progress=progress)
        if as_json:
            print_json({"prepared": [str(path) for path in written]})
        for path in [] if as_json else written:
            print_line(f"{path} is a prepared directory")
    elif plan:
        name = load_distinct(data, progress).name
        chosen = load_arms(name, arms, arm or [])
        tell_plan(wanted_runs(plan_board(name, chosen, selection=selection, seeds=seeds), out), out, as_json)
    else:
        result = hmlet.board(
            data,
            arms=arm or [],
            file=arms,
            selection=selection,
            seeds=seeds,
            out=out,
            minutes=minutes,
            packed=pack,
            device=device,
            keep=keep,
            progress=progress,
        )
        if as_json:
            print_json(result.as_json())
        else:
            _tell(result, selection)


def _tell(result: Board, selection: bool) -> None:
    from hmlet.reproduction.board import seconds_text
    from hmlet.reproduction.sheets import number

    where = "held-out tenth of the training part" if selection else "published test set"
    print_line(f"{result.dataset}: {where}, items of train left out")
    rows = [
        [
            row.arm.name,
            "–" if row.size is None else f"{row.size}",
            *(number(row.spread(metric, held_out=selection)) for metric in ("recall", "ndcg")),
            seconds_text(row.seconds(held_out=selection)),
        ]
        for row in result.rows
    ]
    others = [] if selection else result.published
    rows += [
        [row.method, "–" if row.size is None else f"{row.size}", f"{row.recall:.4f}", f"{row.ndcg:.4f}", "published"]
        for row in others
    ]
    print_table(["method", "D", "Recall@20", "NDCG@20", "seconds"], rows)
    outcome = result.outcome
    for name, reason in outcome.skipped.items():
        note(f"{name} cannot be run here: {reason}")
    print_line(
        f"{outcome.found} runs were there, {len(outcome.trained)} trained, {len(outcome.left)} not started in time"
    )
