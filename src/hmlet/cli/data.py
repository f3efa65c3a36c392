"""`hmlet data …`: fetch, prepare and describe data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmlet.cli.console import Data, Json, print_json, print_line, print_table, progress

if TYPE_CHECKING:
    from hmlet.data import Dataset

app = typer.Typer(help="Fetch, prepare and describe data sets.", no_args_is_help=True, rich_markup_mode=None)

DEFAULT_SPLIT = "ratio:0.8,0.1,0.1"  # hmlet.data.splits', which imports NumPy, and --help must not
Mirror = Annotated[
    str | None,
    typer.Option("--mirror", help="A directory or URL that has NAME/train.txt and so on.", envvar="HMLET_DATA_MIRROR"),
]


@app.callback()
def _group() -> None:
    pass


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """List the named data sets and whether each one is available locally.

    Example: hmlet data list
    """
    from hmlet.data import catalog

    sets = [(named, catalog.interactions(named), catalog.is_at_hand(named.name)) for named in catalog.CATALOG.values()]
    if as_json:
        listed = [
            {
                "name": named.name,
                "about": named.about,
                "users": named.users,
                "items": named.items,
                "interactions": interactions,
                "at_hand": at_hand,
            }
            for named, interactions, at_hand in sets
        ]
        print_json({"sets": listed})
        return
    print_table(
        ("name", "about", "users", "items", "interactions", "at hand"),
        [
            (
                named.name,
                named.about,
                f"{named.users:,}",
                f"{named.items:,}",
                f"{interactions:,}",
                "yes" if at_hand else "no",
            )
            for named, interactions, at_hand in sets
        ],
    )


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="A name that `hmlet data list` shows.")],
    mirror: Mirror = None,
    as_json: Json = False,
) -> None:
    """Download a named data set into the cache and verify it.

    Example: hmlet data fetch gowalla
    """
    from hmlet.data import catalog

    with progress(f"fetching {name}") as advance:
        dataset = catalog.fetch(name, mirror=mirror, advance=advance)
    if as_json:
        print_json({**dataset.statistics().to_json(), "path": None if dataset.path is None else str(dataset.path)})
        return
    where = f"in {dataset.path}" if dataset.path else "embedded in hmlet"
    print_line(
        f"{name}: {dataset.n_users:,} users, {dataset.n_items:,} items, {len(dataset):,} interactions, checked, {where}"
    )


@app.command("prepare")
def prepare(
    files: Annotated[
        list[Path], typer.Argument(help="Interaction files, concatenated; with --split files, one file per part.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The prepared directory to write.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format", help="csv, tsv, parquet, jsonl, movielens, recbole or adjacency. Default: from the suffix."
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option("--delimiter", help="Field delimiter of csv or tsv. Detected: , ; tab | and ::"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="Column names of a file without a header, such as user,item,rating,timestamp"),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="The column of user ids. Default: guessed from the column names.")
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", help="The column of item ids. Default: guessed from the column names.")
    ] = None,
    rating: Annotated[str | None, typer.Option("--rating", help="The column of ratings.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", help="The column of times: numbers or ISO 8601 dates.")
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option("--weight", help="The column of weights, such as play counts; duplicate rows are summed."),
    ] = None,
    decimal: Annotated[
        str, typer.Option("--decimal", help="Decimal separator of ratings and weights: . or a comma.")
    ] = ".",
    day_first: Annotated[
        bool, typer.Option("--day-first", help="Dates are written as 31/12/2024 or 31.12.2024.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip invalid rows and list them in OUT/skipped.csv.")
    ] = False,
    min_rating: Annotated[float | None, typer.Option("--min-rating", help="Drop rows with a lower rating.")] = None,
    core: Annotated[
        int,
        typer.Option(
            "--core", help="Keep users and items with at least this many interactions (k-core); the paper uses 10."
        ),
    ] = 0,
    split: Annotated[
        str,
        typer.Option(
            "--split",
            help="ratio:0.8,0.1,0.1 per user, temporal:0.8,0.1,0.1 over all, leave-one-out, column:NAME (with train,"
            " valid or test in each row), or files.",
        ),
    ] = DEFAULT_SPLIT,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random split.")] = 0,
    user_name: Annotated[str | None, typer.Option("--user-name", help="The column of user names.")] = None,
    item_name: Annotated[str | None, typer.Option("--item-name", help="The column of item names.")] = None,
    user_names: Annotated[
        Path | None, typer.Option("--user-names", help="A file of users' names: a column of ids and one of names.")
    ] = None,
    item_names: Annotated[
        Path | None, typer.Option("--item-names", help="A file of items' names: a column of ids and one of names.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the data set. Default: the file's name.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing prepared directory at --out.")] = False,
    as_json: Json = False,
) -> None:
    """Turn interaction files into a prepared directory: read, merge, filter, split.

    Example: hmlet data prepare ratings.csv --min-rating 4 --core 10 --skip-bad --out ml

    Example: hmlet data prepare train.txt val.txt test.txt --split files --out mine
    """
    from hmlet.data import Columns, Dialect
    from hmlet.data.dataset import check_target
    from hmlet.data.preparation import prepare

    check_target(out, overwrite=force)
    roles = Columns(user, item, rating, timestamp, user_name, item_name, weight)
    dialect = Dialect(format, delimiter, columns or (), decimal, day_first)
    with progress("preparing") as advance:
        dataset = prepare(
            files,
            columns=roles,
            dialect=dialect,
            skip_bad=skip_bad,
            min_rating=min_rating,
            core=core,
            split=split,
            seed=seed,
            name=name,
            user_names=user_names,
            item_names=item_names,
            advance=advance,
        )
        dataset.save(out, overwrite=force)
    if as_json:
        print_json({**dataset.statistics().to_json(), "path": str(out), "provenance": dataset.provenance.to_json()})
    else:
        _tell(dataset, out)


def _tell(dataset: Dataset, out: Path) -> None:
    """How many rows were kept and dropped, then the data set."""
    done = dataset.provenance
    steps = [
        ("rows read", done.rows + done.skipped),
        ("skipped", -done.skipped),
        ("below the rating", -done.below_min_rating),
        ("merged as duplicates", -done.duplicates),
        (f"outside the {done.core}-core", -done.outside_core),
        ("interactions", len(dataset)),
    ]
    for label, count in steps:
        if count:
            print_line(f"{label:<22}{count:>14,}")
    print_line()
    _describe(dataset)
    if done.users_without_training:
        print_line(f"{done.users_without_training:,} users have no training interaction")
    for part, use in (("valid", "choose the best epoch by"), ("test", "measure the model on")):
        if not dataset.count(part):
            print_line(f"the {part} part is empty: there is nothing to {use}")
    print_line(f"\nwritten to {out}" + (f"; {out / 'skipped.csv'} lists what was skipped" if done.skipped else ""))


@app.command("stats")
def stats(
    data: Data,
    mirror: Mirror = None,
    as_json: Json = False,
) -> None:
    """Describe a data set: the counts of the paper's table, the parts, the fingerprint.

    Example: hmlet data stats debian
    """
    from hmlet.data import catalog

    with progress(f"loading {data}") as advance:
        dataset = catalog.load(data, mirror=mirror, advance=advance)
    if as_json:
        print_json(dataset.statistics().to_json())
    else:
        _describe(dataset)


def _describe(dataset: Dataset) -> None:
    numbers = dataset.statistics()
    counts = (numbers.users, numbers.items, numbers.interactions)
    parts = (numbers.train, numbers.valid, numbers.test)
    print_table(
        ("data set", "users", "items", "interactions", "sparsity", "train", "valid", "test"),
        [
            (
                dataset.name,
                *(f"{count:,}" for count in counts),
                f"{numbers.sparsity_percent:.3f} %",
                *(f"{count:,}" for count in parts),
            )
        ],
    )
    print_line(f"fingerprint {numbers.fingerprint}")
