"""`hmlet leaderboard`: every model on one data set, within a budget of time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import Data, Json, app, note, print_json, print_line, print_table, progress

if TYPE_CHECKING:
    from hmlet import Leaderboard


@app.command()
def leaderboard(
    data: Data,
    out: Annotated[Path, typer.Option(help="Directory for the runs and the page; run the command again to continue.")],
    minutes: Annotated[float, typer.Option(help="Time budget for all models together.")] = 15.0,
    model: Annotated[
        list[str] | None, typer.Option(help="Run only this model; repeatable. Default: every model.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Json = False,
) -> None:
    """Find the best model for a data set: train each as `hmlet train` does, in a time budget, and compare them.

    Closed forms run first, then the models of `hmlet try`, then all others. Each gets a share of the time that is left,
    and a schedule that fits. Run it again to continue: it keeps finished runs and resumes an unfinished one.

    The table shows the loss that a model was trained by: for some, `hmlet train` compares losses first.

    Validation NDCG@20 chooses the best model. p is from a paired t-test of users' test NDCG@20 against the best.

    Example: hmlet leaderboard debian --out board --minutes 10

    Example: hmlet leaderboard debian --out board --model lightgcn --model bpr
    """
    import hmlet

    board = hmlet.leaderboard(data, out, minutes=minutes, models=model or [], device=device, progress=progress)
    if as_json:
        print_json(board.as_json())
    else:
        print_board(board)


def print_board(board: Leaderboard) -> None:
    """The table, its conclusion, and the next command."""
    if board.ranked:
        print_table(board.columns, [row.cells() for row in board.ranked])
    for row in board.rows:
        if row.note:
            note(f"{row.model}: {row.note}")
    print_line()
    print_line(board.conclusion())
    if board.page is not None:
        print_line(f"{board.page} has every metric with its interval")
    if board.serve is not None:
        print_line(f"Serve the best model: {board.serve}")
