"""`hmlet recommend`, `similar`, `explain` and `export`: what a finished run recommends, by your own ids."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmlet.cli.console import Json, app, given, note, print_json, print_line, print_table, progress, read_text
from hmlet.cli.evaluate import DataNow, RunPath, TopK
from hmlet.errors import ConfigError

if TYPE_CHECKING:
    from hmlet import Run

KNOWN = "all"  # hmlet.ranking.evaluation's, which imports torch, and --help must not
IDS_BYTES = 1 << 28  # of a file of ids: some ten million of them
SAMPLED_USERS = 3  # that `recommend` shows without --user or --items
MOST_CARRIERS = 10  # rows of `explain`'s table of items; the others are summed
Mask = Annotated[str, typer.Option(help="Which of a user's own items to exclude: all, train+valid or train.")]
Allow = Annotated[Path | None, typer.Option(help="A file of item ids, one per line: recommend only these.")]
Deny = Annotated[Path | None, typer.Option(help="A file of item ids, one per line: never recommend these.")]


@app.command()
def recommend(
    context: typer.Context,
    run: RunPath,
    user: Annotated[list[str] | None, typer.Option("--user", help="A user's id, repeatable.")] = None,
    items: Annotated[
        str | None,
        typer.Option(help="Comma-separated item ids (CSV quoting) of a new user."),
    ] = None,
    k: TopK = 20,
    mask: Mask = KNOWN,
    allow: Allow = None,
    deny: Deny = None,
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Recommend items to users, or to a new user with some items. Without either, show a few sample users.

    Example: hmlet recommend runs/end --user gimp -k 5
    """
    from hmlet import Run

    if user is not None and items is not None:
        raise ConfigError("recommend takes either --user or --items", "for example --user gimp")
    if items is not None and given(context, "mask"):
        raise ConfigError("--mask needs --user", "omit it: a new user's own items are never recommended")
    own = [] if items is None else _listed(items)
    opened, lists = Run.open(run, data), {"allow": _ids(allow), "deny": _ids(deny)}
    if items is not None:
        answers = opened.recommend_new([own], k, **lists)
    else:
        answers = opened.recommend(user or _sample(opened), k, mask, **lists)
    if as_json:
        print_json(answers)
        return
    for answer in answers:
        print_line(str(answer.get("user", f"someone with {items}")))
        _print_items(answer["items"], "item")


@app.command()
def similar(
    run: RunPath,
    item: Annotated[str | None, typer.Option(help="An item's id.")] = None,
    user: Annotated[str | None, typer.Option(help="A user's id.")] = None,
    k: TopK = 20,
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Find the most similar items or users, by the cosine of their factors.

    Example: hmlet similar runs/end --item libgtk-3-0 -k 5
    """
    from hmlet import Run

    opened = Run.open(run, data)
    answer: Any  # of either kind
    if item is not None and user is None:
        kind, (answer,) = "item", opened.similar_items([item], k)
    elif user is not None and item is None:
        kind, (answer,) = "user", opened.similar_users([user], k)
    else:
        raise ConfigError("similar takes either --item or --user", "for example --item libgtk-3-0")
    if as_json:
        print_json(answer)
        return
    print_line(f"{kind}s most like {answer[kind]}")
    _print_items(answer[f"{kind}s"], kind)


@app.command()
def explain(
    run: RunPath,
    user: Annotated[str, typer.Option(help="A user's id.")],
    item: Annotated[str, typer.Option(help="An item's id.")],
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Explain a recommendation: in words, by layer, and by the user's own items.

    Example: hmlet explain runs/end --user gimp --item libgtk-3-0
    """
    from hmlet import Run

    parts = Run.open(run, data).explain(user, item)
    if as_json:
        print_json(parts)
        return
    print_line(parts["sentence"])
    print_line()
    print_table(
        ["layer", "part of the score"],
        [[each["layer"], _digits(each["contribution"], "+")] for each in parts["layers"]],
    )
    print_line()
    shown, others = parts["carried_by"][:MOST_CARRIERS], parts["carried_by"][MOST_CARRIERS:]
    print_table(
        ["item", "score lost without it"],
        [[each["item"], _digits(each["contribution"], "+")] for each in shown],
    )
    added = parts["from_popularity"]
    popular = f"how popular the item is {_digits(added, '+')}, " if added else ""
    print_line(
        f"other items {_digits(sum(each['contribution'] for each in others), '+')}, "
        f"remainder {_digits(parts['remainder'], '+')}, {popular}"
        f"score {_digits(parts['score'])}"
    )
    print_line("(the remainder comes from the user's own embedding and from effects that items have only together)")


@app.command()
def export(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="The file to write: .parquet, .csv or .jsonl.")],
    k: TopK = 20,
    users: Annotated[Path | None, typer.Option(help="A file of user ids, one per line. Default: all users.")] = None,
    mask: Mask = KNOWN,
    allow: Allow = None,
    deny: Deny = None,
    data: DataNow = None,
    as_json: Json = False,
) -> None:
    """Write every user's top-N to one file with the columns user, item, rank and score.

    Example: hmlet export runs/end --out topn.parquet -k 20

    On several processes: torchrun --nproc-per-node 4 -m hmlet export runs/end --out topn.parquet
    """
    import hmlet

    rows = hmlet.export(
        hmlet.Run.open(run, data), out, k, _ids(users), mask, allow=_ids(allow), deny=_ids(deny), progress=progress
    )
    if as_json:
        print_json({"out": str(out), "rows": rows, "k": k, "mask": mask})
        return
    print_line(f"{out}: {rows:,} rows")


def _sample(run: Run) -> list[int | str]:
    """A few evenly spaced users, and a note that they are a sample."""
    users = run.data.users
    chosen = sorted({round(at * (len(users) - 1) / (SAMPLED_USERS - 1)) for at in range(SAMPLED_USERS)})
    note(f"{len(chosen)} of {len(users):,} users, as a sample; choose others with --user")
    return [users.id(at) for at in chosen]


def _listed(items: str) -> list[str]:
    """The ids of one line of CSV, unstripped: `a,b`, or `"a, b",c` if an id has a comma."""
    try:
        (fields,) = csv.reader([items], strict=True)
    except (csv.Error, ValueError) as error:
        raise ConfigError(
            f"--items {items!r} is not a line of CSV ({error})", "quote an id with a comma: --items '\"a, b\",c'"
        ) from error
    return [each for each in fields if each]


def _ids(path: Path | None) -> list[str] | None:
    """The ids of a file, one per line, unstripped. Empty lines are skipped."""
    if path is None:
        return None
    lines = read_text(path, "one id a line", IDS_BYTES).replace("\r\n", "\n").split("\n")  # an id may have other ends
    return [line for line in lines if line]


def _print_items(found: Sequence[Mapping[str, Any]], kind: str) -> None:
    if not found:
        print_line(f"no {kind} left to recommend")
        return
    named = bool(found) and "name" in found[0]
    rows = [[each[kind], _digits(each["score"]), *([each["name"] or ""] if named else [])] for each in found]
    print_table([kind, "score", *(["name"] if named else [])], rows)


def _digits(value: float, sign: str = "-") -> str:
    """Three significant digits: small scores differ as much as large ones."""
    return f"{value:{sign}#.3g}".rstrip(".")
