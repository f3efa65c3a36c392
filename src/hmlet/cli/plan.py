"""`hmlet plan`: what a training will need, and what to change where it does not fit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import Json, Model, Overrides, Preset, app, print_json, print_line, print_table
from hmlet.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hmlet.config import Recipe
    from hmlet.training.planning import MemoryPlan, Sizes

_UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
Count = Annotated[
    float | None, typer.Option(help="Instead of DATA: how many there are, such as 1e8.", min=1, max=2**31 - 1)
]  # as many as 32-bit indices tell apart


@app.command()
def plan(
    model: Model,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="A prepared directory or a named set.")] = None,
    users: Count = None,
    items: Count = None,
    edges: Annotated[float | None, typer.Option(help="Training interactions, such as 1e9.", min=1, max=10**15)] = None,
    preset: Preset = "hmlet",
    overrides: Overrides = None,
    devices: Annotated[int, typer.Option(help="Ranks that the embedding columns are split over.", min=1)] = 1,
    device: Annotated[
        str, typer.Option(help="auto, cpu or cuda; with --memory also a cuda that is not here.")
    ] = "auto",
    memory: Annotated[
        str | None, typer.Option(help="What a device has, such as 80GB; by default what is free here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The memory that training takes on each device, before anything starts, and what to change if it does not fit.

    Example: hmlet plan --users 1e8 --items 1e7 --edges 1e9 --model hmlet-end --device cuda --devices 8 --memory 80GB
    """
    from hmlet.config import resolve
    from hmlet.data.catalog import known_name
    from hmlet.system.ranks import Ranks
    from hmlet.training.planning import changes, fits, memory_plan, readable

    known = None if data is None else known_name(data)
    recipe, ranks = resolve(model, preset, None, overrides or [], dataset=known), Ranks(0, devices)
    ranks.require_columns(recipe.model.embedding_size)
    sizes = _sizes(data, users, items, edges)
    kind, free = _place(device, memory)
    found = memory_plan(recipe, sizes, kind, ranks)
    refused = _refusal(sizes)
    enough = refused is None and fits(found.total, kind, devices, free)
    instead = [] if enough or refused else changes(recipe, sizes, kind, devices, free)
    if as_json:
        asked = {"model": model, "device": kind, "devices": devices, "sizes": sizes.__dict__}
        answer = {"fits": enough, "refused": refused, "free": free, "changes": [change.as_json() for change in instead]}
        print_json({**asked, "bytes": found.as_json(), **answer})
        return
    print_line(_title(recipe, sizes, kind, devices))
    print_table(["on each device", "memory", "for"], _rows(found))
    print_line()
    if refused:
        print_line(f"It cannot be trained: {refused}.")
        return
    shared = f", {devices} times over in one memory" if kind == "cpu" and devices > 1 else ""
    verdict = "It fits" if enough else "It does not fit"
    print_line(f"{verdict}: {readable(found.total)}{shared}, and there is {readable(free)}.")
    if instead:
        print_line("Any one of these makes it fit:")
        print_table(["change", "memory"], [[change.what, readable(change.total)] for change in instead])
    elif not enough:
        print_line("No number of devices, type or size of the model makes it fit.")


def _title(recipe: Recipe, sizes: Sizes, kind: str, devices: int) -> str:
    places = kind if devices == 1 else f"{devices} ranks of {kind}"
    return (
        f"{recipe.model.name} on {places}, D = {recipe.model.embedding_size}, "
        f"{sizes.users:,} users, {sizes.items:,} items, {sizes.edges:,} interactions"
    )


def _rows(found: MemoryPlan) -> list[list[str]]:
    from hmlet.training.planning import readable

    keeps = "kept by the captured step" if found.captured else "only while a step runs"
    reasons = {
        "graph": "the operator, and what triplets are drawn from",
        "table": "parameters, their gradient, and the best model so far",
        "optimizer": "Adam's moments",
        "activations": f"what the backward pass needs, {keeps}",
        "ranking": "layers, factors and scores, only while an evaluation runs",
    }
    rows = [[name, readable(getattr(found, name)), reason] for name, reason in reasons.items()]
    return [*rows, ["peak", readable(found.total), "sum" if found.captured else "with the larger of the last two"]]


def _sizes(data: str | None, users: float | None, items: float | None, edges: float | None) -> Sizes:
    from hmlet.training.planning import Sizes

    given = (users, items, edges)
    if data is not None and given == (None, None, None):
        from hmlet.data.catalog import load

        return Sizes.of(load(data))
    if data is not None:
        raise ConfigError(f"plan was given DATA, {data!r}, and sizes as well", "leave out one or the other")
    if users is not None and items is not None and edges is not None:
        sizes = Sizes(int(users), int(items), int(edges))
        if sizes.edges > sizes.users * sizes.items:
            raise ConfigError(
                f"--edges {sizes.edges:,} are more than the {sizes.users * sizes.items:,} pairs of "
                f"{sizes.users:,} users and {sizes.items:,} items",
                "count each pair once",
            )
        return sizes
    raise ConfigError("plan needs DATA, or --users, --items and --edges", "for example hmlet plan debian --model bpr")


def _refusal(sizes: Sizes) -> str | None:
    """Why no device trains a graph of this size, if so."""
    from hmlet.graph import require_edges

    try:
        require_edges(sizes.edges)
    except DataError as error:
        return str(error)
    return None


def _place(device: str, memory: str | None) -> tuple[str, int]:
    """The kind of device, and the bytes that one of them has. With --memory, CUDA need not be here."""
    from hmlet.training.loop import choose_device
    from hmlet.training.planning import free_memory

    if memory is None:
        place = choose_device(device)
        return place.type, free_memory(place)
    kind = "cuda" if device == "cuda" else choose_device(device).type
    return kind, _bytes(memory)


def _bytes(memory: str) -> int:
    """The number of bytes that a size such as 80GB means."""
    found = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([a-z]*)", memory.strip(), re.IGNORECASE)
    number, unit = found.groups() if found else ("", "")
    try:
        return int(float(number) * _UNITS[unit.upper()])
    except (ValueError, KeyError, OverflowError) as error:
        raise ConfigError(f"--memory {memory!r} is not a size", "write 80GB, say") from error
