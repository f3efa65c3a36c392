"""`hmlet reproduce`: the paper's tables and figures, made again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import Json, app, note, print_json, print_line, print_table, progress

if TYPE_CHECKING:
    from hmlet.data import Dataset
    from hmlet.reproduction import Choice, Progress, Reproduction, Trial


@app.command()
def reproduce(
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="A named set or a prepared directory, repeatable; by default debian."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Only this model, repeatable; by default all eleven.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="main, variants or ablation, repeatable; by default main.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="At most this many seeds of each cell; by default 5, 3 or 1.", min=1)
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Recipes to start from; by default gpu for the paper's sets and hmlet for others."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value for every recipe, repeatable.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where the records and the page go; what is there is not run again.")
    ] = Path("reproduction"),
    minutes: Annotated[
        float | None, typer.Option(help="Start no run that would not end within this many minutes.")
    ] = None,
    search: Annotated[
        int | None, typer.Option(help="Instead, search each model's recipe with this many trials, on validation only.")
    ] = None,
    space: Annotated[
        Path | None, typer.Option(help="With --search, a TOML file with a [space] table; by default each model's own.")
    ] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Keep what this call records in one .tar.gz, rewritten after each run.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the weights of every run.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say which runs are wanted and which are there.")] = False,
    as_json: Json = False,
) -> None:
    """Train with the recorded recipes, and set each number beside the paper's with a verdict, on one page.

    Call it again to go on: recorded runs are skipped, an interrupted one resumes. What was not run says so.

    Example: hmlet reproduce --dataset debian --seeds 1

    Example: hmlet reproduce --dataset gowalla --table main --table ablation --out results --minutes 9
    """
    from hmlet.data.catalog import known_name
    from hmlet.errors import ConfigError
    from hmlet.reproduction import Choice, search_recipes
    from hmlet.reproduction import reproduce as campaign

    if space is not None and search is None:
        raise ConfigError(f"--space {space} is for a search", "add --search 8, say")
    named = {"tables": tuple(table or ["main"]), "models": tuple(model or []), "overrides": tuple(overrides or [])}
    asked = {  # data of one's own has its name when it is loaded
        each: Choice(known_name(each) or "own", **named, seeds=seeds, preset=preset) for each in dataset or ["debian"]
    }
    for choice in asked.values():
        choice.runs()  # a recipe that cannot be resolved is said before anything is loaded
    choices, loaded = _load(asked)
    if plan:
        _tell_plan(choices, out, as_json)
    elif search is not None:
        _search(
            partial(
                search_recipes,
                choices,
                loaded,
                out,
                search,
                space=space,
                device=device,
                minutes=minutes,
                packed=pack,
            ),
            as_json,
        )
    else:
        _reproduce(
            partial(campaign, choices, loaded, out, device=device, minutes=minutes, keep=keep, packed=pack), as_json
        )


def _load(asked: dict[str, Choice]) -> tuple[list[Choice], dict[str, Dataset]]:
    """The choices with the names of their data sets, and these by name."""
    from dataclasses import replace

    from hmlet.data.catalog import distinct_name, load
    from hmlet.errors import DataError

    choices, loaded = [], {}
    for each, choice in asked.items():
        with progress(f"loading {each}") as advance:
            data = load(each, advance=advance)
        data.name = distinct_name(data)
        if data.name in loaded:  # their records would lie in one folder
            raise DataError(f"two data sets are called {data.name}", "reproduce them apart, each with its own --out")
        choices.append(replace(choice, dataset=data.name))
        loaded[data.name] = data
    return choices, loaded


def _reproduce(run: Callable[..., Reproduction], as_json: bool) -> None:
    with progress("reproducing") as advance:

        def tell(now: Progress) -> None:
            left = "" if now.seconds_left is None else f"  about {max(now.seconds_left, 0) / 60:.0f} min for the rest"
            advance(now.done + now.share % 1, now.wanted, f"run {now.done} of {now.wanted}  {now.run.name}{left}")
            if now.share == 1.0:
                note(f"{now.done} of {now.wanted}: {now.run.dataset}/{now.run.name}{left}")

        result = run(listener=tell)
    if as_json:
        print_json(result.as_json())
        return
    _tell(result)


def _tell(result: Reproduction) -> None:
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
        f"{outcome.found} runs were there, {len(outcome.trained)} trained, {len(outcome.left)} left for want of time"
    )
    print_line(f"{result.page} has every table and figure")


def _search(search: Callable[..., list[Path]], as_json: bool) -> None:
    with progress("searching") as advance:

        def tell(trial: Trial) -> None:
            value = "failed" if trial.value is None else f"validation NDCG@20 {trial.value:.4f}"
            advance(trial.number, trial.trials, f"{trial.dataset}/{trial.model} {value}")
            note(f"{trial.dataset}/{trial.model}: trial {trial.number} of {trial.trials}, {value}")

        files = search(listener=tell)
    if as_json:
        print_json({"searches": [str(path) for path in files]})
        return
    for path in files:
        print_line(f"{path} has the trials")


def _tell_plan(choices: list[Choice], out: Path, as_json: bool) -> None:
    from hmlet.reproduction.campaign import plan_runs
    from hmlet.reproduction.records import Records

    records = Records.read(out)
    rows = []
    for run in plan_runs(choices):
        record = records.find(run.dataset, run.recipe)
        done = record is not None and record.complete(run)
        rows.append(
            [
                run.dataset,
                run.cell.table,
                f"{run.cell.group}: {run.cell.label}".removeprefix(": "),
                run.recipe.seed,
                run.name,
                done,
            ]
        )
    if as_json:
        keys = ("dataset", "table", "cell", "seed", "run", "done")
        print_json({"runs": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    print_table(
        ["data set", "table", "cell", "seed", "run", "there"], [[*row[:-1], "yes" if row[-1] else "no"] for row in rows]
    )
    print_line(f"{sum(bool(row[-1]) for row in rows)} of {len(rows)} runs are in {out}")
