"""`hmlet train`: train a model from a recipe and a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import (
    Data,
    Json,
    MaybeModel,
    Overrides,
    Preset,
    app,
    given,
    note,
    print_json,
    print_line,
    print_table,
    progress,
    speaks,
)
from hmlet.errors import ConfigError

if TYPE_CHECKING:
    from hmlet import Evaluation, Recipe, Run
    from hmlet.api import MeasuredRun


@app.command()
def train(
    context: typer.Context,
    data: Data,
    model: MaybeModel = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to write.")] = None,
    preset: Preset = "hmlet",
    config: Annotated[Path | None, typer.Option(help="A TOML recipe applied on top of the preset.")] = None,
    overrides: Overrides = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Time budget: shorten the schedule so that training fits and still anneals to its end."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads. Default: as many as the process may use.", min=1)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue from the last checkpoint in --out; without --model, with its own recipe."
        ),
    ] = False,
    extend: Annotated[
        bool,
        typer.Option(
            "--extend",
            help="Continue the run in --out to more epochs: twice its number, or --set train.epochs. Needs a"
            " constant step size.",
        ),
    ] = False,
    evaluated: Annotated[
        bool, typer.Option("--evaluate", help="Also evaluate the finished run on the test part.")
    ] = False,
    refit_all: Annotated[
        bool,
        typer.Option(
            "--refit-all",
            help="Train in OUT-selection first, and then in OUT on all data for as many epochs as validation chose"
            " there. Nothing is left to test OUT on.",
        ),
    ] = False,
    no_data: Annotated[
        bool,
        typer.Option(
            "--no-data", help="Do not copy the data into the run; the prepared directory must then stay in place."
        ),
    ] = False,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Bit-identical results on CUDA too.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard events to this directory.")] = None,
    profiled: Annotated[
        bool, typer.Option("--profile", help="Also report where the time went, compared with the device's lower bound.")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved recipe and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model and write its run directory.

    Example: hmlet train debian --out runs/end --minutes 10 --evaluate

    Another model and recipe: hmlet train debian --model lightgcn --out runs/lightgcn --set train.epochs=50

    For production: hmlet train debian --out runs/production --refit-all

    On several devices: torchrun --nproc-per-node 4 -m hmlet train … --resume
    """
    import hmlet
    from hmlet.api import SettingsRequest, requested

    trained = _selection(out, extend) if refit_all else out
    chosen = [*(overrides or []), *(["train.deterministic=true"] if deterministic else [])]
    request = SettingsRequest(model, preset if given(context, "preset") else None, config, chosen, seed=seed)
    if print_config:
        _print_recipes(requested(data, request, trained, device=device, resume=resume, extend=extend), as_json)
        return
    if out is None or trained is None:
        raise ConfigError("train needs --out", "name a run directory, for example --out runs/first")
    run = hmlet.fit(
        data,
        request,
        trained,
        device=device,
        minutes=minutes,
        threads=threads,
        resume=resume,
        extend=extend,
        keep_data=not no_data,
        profile=profiled,
        tensorboard=tensorboard,
        progress=progress,
    )
    measured = run.profile if profiled and speaks() else None
    tested = hmlet.evaluate(run, device=device, progress=progress) if evaluated and speaks() else None
    refitted = None
    if refit_all:
        refitted = hmlet.refit(run, out, device=device, threads=threads, resume=resume, progress=progress)
    show = _print_as_json if as_json else _print_results
    show(out, run, tested, measured, refitted)


def _selection(out: Path | None, extend: bool) -> Path | None:
    """Where --refit-all trains before OUT."""
    if out is None:
        return None
    if extend or out.name in ("", ".."):
        raise ConfigError("--refit-all needs a new --out", "drop --extend and name another directory")
    return out.with_name(f"{out.name}-selection")


def _print_recipes(recipes: Sequence[Recipe], as_json: bool) -> None:
    """The first recipe, and a remark if others are compared with it."""
    if as_json:
        print_json(recipes[0].as_json())
    else:
        print_line(recipes[0].to_toml().rstrip())
    if len(recipes) > 1:
        losses = ", ".join(each.objective for each in recipes)
        note(f"training first compares the losses {losses} on validation, each with its own settings")


def _print_as_json(
    out: Path, run: Run, tested: Evaluation | None, measured: MeasuredRun | None, refitted: Run | None
) -> None:
    found = run.record.model_dump(include={"model", "best_epoch", "valid", "timings"})
    scores = {"test": tested.metrics} if tested else {}
    refit = {} if refitted is None else refitted.record.model_dump(include={"refitted_from"})
    print_json({"run": str(out), **found, **scores, **({"profile": measured} if measured else {}), **refit})


def _print_results(
    out: Path, run: Run, tested: Evaluation | None, measured: MeasuredRun | None, refitted: Run | None
) -> None:
    print_line(summary(run))
    if tested:
        print_line(f"test @20: {_worth(tested.metrics)}")
    if refitted:
        print_line(
            f"{out}: {refitted.record.epochs} epochs on all {len(refitted.data):,} interactions; nothing is held out,"
            f" so no test figures exist for it. Those of {run.directory.path} chose its epochs"
        )
    if run.still_improving:
        how = "a larger train.epochs" if run.recipe.model.solved else "--extend, or a larger train.learning_rate"
        note(f"validation was still improving at the end; try {how}")
    if measured:
        _print_profile(measured)


def summary(run: Run) -> str:
    """One line: the best epoch, and its validation metrics."""
    record = run.record
    line = f"{run.directory.path}: best epoch {record.best_epoch} of {record.epochs}"
    if not record.valid:
        return f"{line}; no validation part: the last epoch is kept"
    return f"{line}; validation @20: {_worth(record.valid)}"


def _worth(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {metrics[name]:.4f}" for name in ("ndcg", "recall", "precision"))


def _print_profile(measured: MeasuredRun) -> None:
    """Two tables: the run by phase, and each part of a step with its lower bound."""
    print_line()
    total = measured["seconds"]
    rows = [(name, f"{seconds:.3f}", f"{seconds / total:.1%}") for name, seconds in measured["phases"].items()]
    print_table(["phase", "seconds", "share"], [*rows, ("all", f"{total:.3f}", "100.0%")])
    step = measured.get("step")
    if step is None:
        return

    def milliseconds(seconds: float | None) -> str:
        return "–" if seconds is None else f"{1e3 * seconds:.3f}"

    print_line()
    parts = [
        (row["part"], milliseconds(row["seconds"]), milliseconds(row["floor_seconds"]), row.get("bound", "–"))
        for row in step["parts"]
    ]
    whole = ("a step", milliseconds(step["seconds"]), milliseconds(step["floor_seconds"]), "")
    print_table(["part, with its gradient", "ms", "floor ms", "floor waits for"], [*parts, whole])
    rates = step["rates"]
    share = "no step was measured" if step["seconds"] is None else f"{step['share_of_floor']:.0%} of the floor"
    print_line(
        f"{share}; this device copies {rates['copied'] / 1e9:.0f} GB/s, gathers {rates['gathered'] / 1e9:.0f} GB/s"
        f" from its cache and multiplies {rates['multiplied'] / 1e12:.2f} TFLOP/s"
    )
