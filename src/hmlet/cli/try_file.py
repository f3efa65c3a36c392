"""`hmlet try`: from any interaction file to recommendations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import Json, app, print_json, print_line, print_table, progress
from hmlet.cli.leaderboard import print_board

if TYPE_CHECKING:
    from hmlet import FirstTry


@app.command("try")
def try_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An interaction file: .csv, .tsv, .parquet or .jsonl.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The directory to write. Default: named after the file, in the current directory."),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time budget for all models together.")] = 3.0,
    user: Annotated[str | None, typer.Option(help="The column of user ids, if the guess is wrong.")] = None,
    item: Annotated[str | None, typer.Option(help="The column of item ids, if the guess is wrong.")] = None,
    rating: Annotated[str | None, typer.Option(help="The column of ratings, if the guess is wrong.")] = None,
    timestamp: Annotated[str | None, typer.Option(help="The column of times, if the guess is wrong.")] = None,
    min_rating: Annotated[float | None, typer.Option(help="Drop rows with a lower rating.")] = None,
    format: Annotated[
        str | None,
        typer.Option(help="csv, tsv, parquet, jsonl, movielens, recbole or adjacency. Default: from the suffix."),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Field delimiter of csv or tsv.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Comma-separated column names of a file without a header.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Json = False,
) -> None:
    """Try your own file: guess its columns, prepare it, train the quick models, and recommend to three users.

    Call it again to continue. Nothing of yours is overwritten.

    Example: hmlet try ratings.csv

    Example: hmlet try plays.parquet --user listener --item track --minutes 10
    """
    import hmlet

    tried = hmlet.try_file(
        file,
        out,
        minutes=minutes,
        user=user,
        item=item,
        rating=rating,
        timestamp=timestamp,
        min_rating=min_rating,
        format=format,
        delimiter=delimiter,
        columns=columns or (),
        device=device,
        progress=progress,
    )
    if as_json:
        print_json(tried.as_json())
    else:
        _tell(tried)


def _tell(tried: FirstTry) -> None:
    numbers, chosen = tried.data.statistics(), tried.guess.chosen()
    print_line(
        f"{tried.file}: {numbers.users:,} users, {numbers.items:,} items, {numbers.interactions:,} interactions\n"
    )
    if chosen:
        rows = [[role.replace("_", " "), name, tried.guess.reasons[role]] for role, name in chosen.items()]
        print_table(["role", "column", "chosen"], rows)
        print_line("If a column is wrong, name the right one: --user COLUMN --item COLUMN\n")
    if "rating" in chosen and tried.data.provenance.min_rating is None:
        print_line(
            "Every row counts as interest, whatever its rating. To keep high ratings alone, add --min-rating 4\n"
        )
    print_board(tried.board)
    for example in tried.examples:
        recommended = [str(each.get("name") or each["item"]) for each in example.recommended["items"]]
        print_line(f"\n{example.user} has {', '.join(example.has)}, …")
        print_line(f"  and may like {', '.join(recommended)}")
    print_line("\nNext:")
    data = tried.out / "data"
    print_line(f"  every model:   hmlet leaderboard {data} --out {tried.out}")
    if tried.board.best is not None:
        print_line(f"  all users:     hmlet export {tried.board.rows[0].run} --out topn.parquet")
    print_line(f"  your options:  hmlet data prepare {tried.file} --out DATA --core 5 --split temporal:0.8,0.1,0.1")
