"""`hmlet plan`: memory and time of a training run, and what to change if it does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import (
    Json,
    MaybeData,
    MaybeModel,
    Overrides,
    Preset,
    app,
    duration,
    print_json,
    print_line,
    print_table,
    readable,
)

if TYPE_CHECKING:
    from hmlet import Plan

Count = Annotated[
    float | None, typer.Option(help="How many there are, if there is no DATA, such as 1e8.", min=1, max=2**31 - 1)
]  # the limit of 32-bit indices


@app.command()
def plan(
    data: MaybeData = None,
    model: MaybeModel = None,
    users: Count = None,
    items: Count = None,
    edges: Annotated[float | None, typer.Option(help="Training interactions, such as 1e9.", min=1, max=10**15)] = None,
    preset: Preset = "hmlet",
    overrides: Overrides = None,
    devices: Annotated[int, typer.Option(help="Number of ranks to split the embedding columns over.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; with --memory, cuda need not be present.")] = "auto",
    memory: Annotated[
        str | None, typer.Option(help="Memory per device, such as 80GB. Default: what is free on this machine.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the memory and time of training, and what to change if it does not fit.

    Example: hmlet plan debian --model lightgcn

    Without the data: hmlet plan --users 1e8 --items 1e7 --edges 1e9 --device cuda --devices 8 --memory 80GB
    """
    import hmlet
    from hmlet.api import DEFAULT

    found = hmlet.plan(
        data,
        model or DEFAULT,
        users=users,
        items=items,
        edges=edges,
        preset=preset,
        overrides=overrides or [],
        device=device,
        devices=devices,
        memory=memory,
    )
    if as_json:
        print_json(found.as_json())
    else:
        _tell(found)


def _tell(found: Plan) -> None:
    """Memory by purpose, the verdict, and what to change."""
    recipe, sizes = found.recipe, found.sizes
    places = found.device if found.devices == 1 else f"{found.devices} ranks of {found.device}"
    print_line(
        f"{recipe.model.name} on {places}, D = {recipe.model.columns}, "
        f"{sizes.users:,} users, {sizes.items:,} items, {sizes.edges:,} interactions"
    )
    print_table(["on each device", "memory", "for"], _rows(found))
    print_line()
    if found.refused:
        print_line(f"It cannot be trained: {found.refused}.")
        return
    shared = f", {found.devices} times over in one memory" if found.device == "cpu" and found.devices > 1 else ""
    verdict = "It fits" if found.fits else "It does not fit"
    print_line(f"{verdict}: {readable(found.memory.total)}{shared}, and there is {readable(found.free)}.")
    if found.changes:
        print_line("Any one of these makes it fit:")
        print_table(["change", "memory"], [[change.what, readable(change.total)] for change in found.changes])
    elif found.fits:
        sooner = "; early stopping may end it sooner" if recipe.train.patience else ""
        print_line(
            "The time is unknown: it can only be measured on one device of this machine."
            if found.seconds is None
            else f"It takes about {duration(found.seconds)} on this machine{sooner}."
        )
    else:
        print_line("No number of devices, type or size of the model makes it fit.")


def _rows(found: Plan) -> list[list[str]]:
    memory = found.memory
    keeps = "kept by the captured step" if memory.captured else "only while a step runs"
    reasons = {
        "graph": "the operator, and what triplets are drawn from",
        "table": "parameters, their gradient, and the best model so far",
        "optimizer": "Adam's moments",
        "activations": f"what the backward pass needs, {keeps}",
        "ranking": "layers, factors and scores, only while an evaluation runs",
        "start": "blocks of singular vectors, only before the first step",
    }
    rows = [[name, readable(getattr(memory, name)), reason] for name, reason in reasons.items()]
    return [
        *rows,
        ["peak", readable(memory.total), "sum" if memory.captured else "with the larger of activations and ranking"],
    ]
