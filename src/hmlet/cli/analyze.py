"""`hmlet analyze`: what a run's gates chose, and what explains it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import Json, app, print_json, print_line, print_table, progress
from hmlet.cli.evaluate import DataNow

if TYPE_CHECKING:
    from hmlet import Analysis


@app.command()
def analyze(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories that differ only in their seed.")
    ],
    centrality: Annotated[
        str, typer.Option(help="Betweenness and closeness: exact, sampled:N (from N sources) or none.")
    ] = "exact",
    device: Annotated[str, typer.Option(help="Device for the centralities: auto, cpu or cuda.")] = "auto",
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Analyse the gates of a finished run and store the result in it as analysis.json.

    With several seeds of one model, it also reports how many nodes keep their class.

    Example: hmlet analyze runs/end --json

    Example: hmlet analyze runs/end-seed-*
    """
    import hmlet

    found = hmlet.analyze(
        *(hmlet.Run.open(run, data) for run in runs), centrality=centrality, device=device, progress=progress
    )
    if as_json:
        first = found[0].as_json()
        print_json(first if len(found) == 1 else {**first, "runs": [each.as_json() for each in found]})
        return
    for path, result in zip(runs, found, strict=True):
        print_line(f"{path}: {result.model} on {result.data.name}, {result.nodes:,} nodes\n")
        _tell(result)
    if agreed := found[0].stability:
        print_line(
            f"{agreed.keep:.1%} of the nodes keep their class in all {agreed.runs} runs "
            f"({agreed.keep_by_chance:.1%} by chance; kappa {agreed.kappa:.2f})"
        )


def _tell(result: Analysis) -> None:
    """Three tables: choices per layer, classes, verdicts."""
    sides = [("all", result), ("users", result.users), ("items", result.items)]
    layers, classes = [str(layer) for layer in result.gated_layers], list(result.class_size)
    print_table(
        ["non-linear", *(f"layer {layer}" for layer in layers)],
        [[name, *(f"{side.gate_share[layer]:.1%}" for layer in layers)] for name, side in sides],
    )
    print_line()
    print_table(
        ["class", *(name.upper() for name in classes)],
        [
            *([name, *(f"{side.class_size[each].share:.1%}" for each in classes)] for name, side in sides),
            ["neighbour cosine", *(_number(result.neighbour_cosine[each].mean) for each in classes)],
        ],
    )
    print_line()
    print_table(
        ["does it explain the class?", "verdict", "Spearman's rho", "epsilon²"],
        [
            [name, one.verdict, _number(one.spearman.rho), _number(one.kruskal_wallis.epsilon_squared)]
            for name, one in result.verdict.items()
        ],
    )
    print_line()


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
