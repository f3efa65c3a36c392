"""`hmlet tune`: search a model's space on the validation part."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hmlet.cli.console import Data, Json, MaybeModel, Overrides, Preset, app, print_json, print_line, progress

if TYPE_CHECKING:
    from hmlet.api import Pruning, Sampler


@app.command()
def tune(
    data: Data,
    out: Annotated[Path, typer.Option(help="Directory for the search: trials, study, best recipe.")],
    model: MaybeModel = None,
    space: Annotated[
        Path | None, typer.Option(help="A TOML file with a [space] table. Default: the model's own space.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials. Default: the whole grid, or 20.", min=1)] = None,
    sampler: Annotated[str, typer.Option(help="grid (as in the paper), tpe or random.")] = "grid",
    pruning: Annotated[
        str | None, typer.Option(help="none, median or halving. Default: median, or none for a grid.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="A database URL for Optuna. Default: OUT/study.db.", envvar="HMLET_STORAGE"),
    ] = None,
    preset: Preset = "hmlet",
    config: Annotated[Path | None, typer.Option(help="A TOML recipe applied on top of the preset.")] = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the weights of every trial, not only the best.")] = False,
    as_json: Json = False,
) -> None:
    """Search for a model's best recipe by validation NDCG@20; the test part is never read.

    Run it again with the same --out to continue, or several times in parallel to share the work.

    Example: hmlet tune debian --model lightgcn --out tuned --sampler tpe --trials 30

    Example: hmlet train debian --model lightgcn --config tuned/best.toml --out runs/lightgcn
    """
    import hmlet
    from hmlet.api import DEFAULT

    recipe = hmlet.resolve(
        model or DEFAULT, data, preset=preset, config=config, overrides=overrides or [], seed=seed, device=device
    )
    result = hmlet.tune(
        data,
        recipe,
        out,
        space=space,
        trials=trials,
        sampler=cast("Sampler", sampler),  # tune refuses a name that it does not know
        pruning=cast("Pruning | None", pruning),
        storage=storage,
        preset=preset,
        device=device,
        keep=keep,
        progress=progress,
    )
    if as_json:
        print_json(result.as_json())
        return
    point = ", ".join(f"{key} = {value}" for key, value in result.best.params.items())
    print_line(f"best of {len(result.trials)} trials: validation NDCG@20 {result.best.value:.4f} with {point}")
    best, model = out / "best.toml", result.recipe.model.name
    command = shlex.join(["hmlet", "train", data, "--model", model, "--config", str(best), "--out", "RUN"])
    print_line(f"{best} has its recipe: {command}")
