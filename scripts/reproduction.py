"""Results in, documents out: `python scripts/reproduction.py take FILE.tar.gz [board] | docs | recipes`.

take      puts records that `hmlet reproduce --pack` wrote on another machine under results/; `board` takes those of
          `hmlet board --pack` to results/board/
docs      writes the blocks of docs/reproduction.md, docs/board.md and README.md that are made from records (tests
          compare them)
recipes   writes what the searches under results/search found best into the package's recipes
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hmlet.models import MODELS
from hmlet.reproduction.board import board_sheet, load_arms, read_board
from hmlet.reproduction.carriers import CARRIERS, leads
from hmlet.reproduction.cells import OURS, OURS_TITLE, RIVAL, RIVAL_TITLE, TABLES, title
from hmlet.reproduction.differences import FEW, NOT_RUN, UNCLEAR
from hmlet.reproduction.markdown import fill, sheet_markdown
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import SEARCH_FOLDER, Records, unpack
from hmlet.reproduction.search_file import SearchFile, best_recipe
from hmlet.reproduction.sheets import MISSING, Sheet, Value, Verdict, changed_sheet, cost_sheet, maybe, number, sheets
from hmlet.reproduction.tables import Tables

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
RECIPES = ROOT / "src" / "hmlet" / "config" / "recipes"
BOARD = RESULTS / "board"
DOCUMENTS = (ROOT / "docs" / "reproduction.md", ROOT / "docs" / "board.md", ROOT / "README.md")
# What a data set's recipes have of their own, for all models alike: validation still rises at the end of the preset's
# schedule; the embedded set has two cores, the demo's patience, and one λ, so that every model has the same loss.
OWN: dict[str, dict[str, object]] = {
    "yelp2018": {"train.epochs": 800},
    "debian": {"train.epochs": 30, "train.batch_size": 4096, "train.l2": 1e-4, "model.gate_warmup": 10},
}
DATASETS = ("gowalla", "yelp2018", "amazon-book", "amazon-book-29k", "debian")


def documents() -> dict[Path, str]:
    """Each document as the records make it."""
    records = Records.read(RESULTS)
    tables = {name: Tables(Choice(name, tuple(TABLES)), records) for name in DATASETS}

    def block(words: Sequence[str], home: Path) -> str:
        what, *rest = words
        if what == "summary":
            return sheet_markdown(summary_sheet(list(tables.values())), home, heading=None)
        if what == "cost":
            return sheet_markdown(
                cost_sheet(list(tables.values()), [title(name) for name in tables]), home, heading=None
            )
        if what == "carriers":
            return sheet_markdown(carriers_sheet([tables[name] for name in rest]), home, heading=None)
        if what == "board":
            return sheet_markdown(board_sheet(read_board(rest[0], load_arms(rest[0]), BOARD)), home, heading=None)
        if what == "changed":
            named = [title(name) for name in rest]
            return sheet_markdown(changed_sheet([tables[name] for name in rest], named), home, heading=None)
        if what == "searches":
            return sheet_markdown(search_sheet(), home, heading=None)
        return sheet_markdown(sheets(tables[rest[0]])[what], home)

    return {
        path: fill(path.read_text(encoding="utf-8"), lambda words, home=path.parent: block(words, home))  # type: ignore[misc]
        for path in DOCUMENTS
    }


def summary_sheet(tables: Sequence[Tables]) -> Sheet:
    """The two models of the title's question on every data set."""
    rows: list[list[Value]] = []
    for each in tables:
        ours, rival = each.main[OURS], each.main[RIVAL]
        quoted = [MISSING if row.quoted("ndcg") is None else f"{row.quoted('ndcg'):.4f}" for row in (ours, rival)]
        gap = each.tests.get("ndcg", {}).get(RIVAL)
        told = MISSING if gap is None or gap.difference_percent is None else f"{gap.difference_percent:+.2f} %"
        rows.append(
            [
                title(each.dataset),
                number(ours.spread()),
                ours.seeds,
                quoted[0],
                Verdict(ours.verdict("ndcg")),
                number(rival.spread()),
                rival.seeds,
                quoted[1],
                told if gap is not None else Verdict(NOT_RUN),
                MISSING if gap is None else maybe(each.seed_tests["ndcg"][RIVAL].paired_p),
            ]
        )
    ours_columns, rival_columns = [OURS_TITLE, "seeds", "paper", "verdict"], [RIVAL_TITLE, "seeds", "paper"]
    columns = ["test NDCG@20", *ours_columns, *rival_columns, "gain, paired", "p over seeds, uncorrected"]
    return Sheet("Summary", "", columns, rows, (3, 7))


def carriers_sheet(tables: Sequence[Tables]) -> Sheet:
    """The lead over LightGCN that each arm of the ablation leaves, in brackets where the seeds do not show one."""
    columns: list[list[str]] = []
    for each in tables:
        found = [(MISSING if lead.percent is None else f"{lead.percent:+.2f} %", lead) for lead in leads(each).values()]
        columns.append([f"({told})" if lead.verdict in (UNCLEAR, FEW) else told for told, lead in found])
    rows = [[told, *told_leads] for told, *told_leads in zip(CARRIERS, *columns, strict=True)]
    return Sheet("", "", [f"lead over {RIVAL_TITLE}", *(title(each.dataset) for each in tables)], rows)


def searches() -> Iterator[tuple[Path, SearchFile]]:
    """Every recorded search."""
    for path in sorted((RESULTS / SEARCH_FOLDER).glob("*/*.json")):
        yield path, SearchFile.read(path)


def search_sheet() -> Sheet:
    """What each search tried, what it cost, and where its trials are."""
    rows: list[list[Value]] = []
    for path, record in searches():
        where = f"[trials](../results/{path.relative_to(RESULTS).as_posix()})"
        best = MISSING if record.best is None else f"{record.best:.4f}"
        about = [title(record.data["name"]), record.model, record.preset]
        rows.append([*about, f"{len(record.trials)}", f"{record.device_minutes:.1f}", best, where])
    columns = ["data set", "model", "preset", "trials", "device minutes", "best validation NDCG@20", "record"]
    return Sheet("Searches", "", columns, rows or [[Verdict(NOT_RUN), *[MISSING] * 6]])


def recipes() -> dict[Path, str]:
    """Each searched recipe's file and its content."""
    found = {}
    for _, record in searches():
        name = record.data["name"]
        text = best_recipe(record, OWN.get(name, {}))
        if text is not None:
            found[RECIPES / record.preset / name / f"{MODELS[record.model].Config.family}.toml"] = text
    return found


def main(arguments: Sequence[str]) -> None:
    match list(arguments):
        case ["take", packed]:
            print(*unpack(Path(packed), RESULTS), sep="\n")
        case ["take", packed, "board"]:
            print(*unpack(Path(packed), BOARD), sep="\n")
        case ["docs"]:
            for path, text in documents().items():
                path.write_text(text, encoding="utf-8")
        case ["recipes"]:
            for path, text in recipes().items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                print(path.relative_to(ROOT))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
