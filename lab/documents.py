"""Results in, documents out: `python -m lab.documents take OUT|FILE.jsonl… | docs | recipes`.

take      puts records into lab/results/runs, a file for each data set: what `hmlet reproduce` wrote into OUT, or
          FILE.jsonl that it packed on another machine
docs      writes the index of lab/results/runs, and the blocks of docs/reproduction.md, docs/board.md and README.md that
          are made from records (tests compare them)
recipes   writes what the searches under lab/results/search found best into the package's recipes
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hmlet.errors import ConfigError
from hmlet.models import MODELS
from hmlet.ranking.statistics import markdown_table
from hmlet.reproduction.cells import TABLES, title
from hmlet.reproduction.differences import NOT_RUN
from hmlet.reproduction.markdown import sheet_markdown
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import Record, Records, pack, read_pack, write_pack
from hmlet.reproduction.sheets import MISSING, Sheet, Value, Verdict, cost_sheet, sheets
from hmlet.reproduction.tables import Tables
from lab.ablation import Ablation
from lab.board.board import board_sheet, read_board
from lab.board.variants import load_variants
from lab.search_file import SearchFile, best_recipe
from lab.tables import (
    ablation_sheet,
    all_claims_sheet,
    carriers_sheet,
    changed_sheet,
    leads_sheet,
    ranking_sheet,
    summary_sheet,
)

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "lab" / "results"
RECIPES = ROOT / "src" / "hmlet" / "config" / "recipes"
RUNS = RESULTS / "runs"
INDEX = RUNS / "README.md"
DOCUMENTS = (ROOT / "docs" / "reproduction.md", ROOT / "docs" / "board.md", ROOT / "README.md")
# What a data set's recipes have of their own, for all models alike: validation still rises at the end of the preset's
# schedule; the embedded set has two cores, the demo's patience, and one λ, so that every model has the same loss.
OWN: dict[str, dict[str, object]] = {
    "yelp2018": {"train.epochs": 800},
    "debian": {"train.epochs": 30, "train.batch_size": 4096, "train.l2": 1e-4, "model.gate_warmup": 10},
}
_RECORD_BLOCK = re.compile(r"(<!-- made from records: ([\w -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
OWN_HEADING = ("summary", "cost", "carriers", "board", "changed", "searches")  # the document has one for these
COLUMNS = {"train": "NDCG@20", "train+valid": "strict NDCG@20", "valid": "held-out NDCG@20"}
INDEX_HEAD = """# Recorded runs

The runs behind the numbers of the documentation, by data set. Written by `make docs`. Each `.jsonl` file has a line for
each file of a run: settings (`config.toml`), record (`run.json`: versions, hardware, timings), metrics by epoch, test
metrics under both masks and, for some, metrics by user and the analysis of the gates. `<data set>-board` is a
benchmark's public split, and `<data set>-selection` the held-out tenth of its training part.

    jq -r 'select(.run == "gowalla/hmlet-end_4632e8e1_seed1" and .file == "config.toml").content' gowalla.jsonl
"""
DATASETS = ("gowalla", "yelp2018", "amazon-book", "amazon-book-29k", "debian")


def documents() -> dict[Path, str]:
    """Each document as the records make it."""
    records = Records.read(RUNS)
    tables = {name: Tables(Choice(name, TABLES), records) for name in DATASETS}
    ablations = {name: Ablation(each) for name, each in tables.items()}

    def sheet(words: Sequence[str]) -> Sheet:
        match list(words):
            case ["summary"]:
                return summary_sheet(list(tables.values()))
            case ["cost"]:
                return cost_sheet(
                    list(tables.values()), list(map(title, tables)), [each.rows for each in ablations.values()]
                )
            case ["searches"]:
                return search_sheet()
            case ["board", name]:
                return board_sheet(read_board(name, load_variants(name), RUNS))
            case ["carriers", *names]:
                return carriers_sheet([ablations[name] for name in names])
            case ["changed", *names]:
                return changed_sheet([ablations[name] for name in names])
            case ["claims", name]:
                return all_claims_sheet(tables[name])
            case ["ranking", name]:
                return ranking_sheet(tables[name])
            case ["ablation", name]:
                return ablation_sheet(ablations[name])
            case ["leads", name]:
                return leads_sheet(ablations[name])
            case [what, name]:
                return sheets(tables[name])[what]
        raise ValueError(f"there is no table {' '.join(words)}")

    def block(words: Sequence[str], home: Path) -> str:
        index, own = Path(os.path.relpath(INDEX, home)).as_posix(), words[0] in OWN_HEADING
        return sheet_markdown(
            sheet(words), home, heading=None if own else "###", address=lambda record: f"{index}#{anchor(record)}"
        )

    return {INDEX: run_index(records)} | {
        path: fill(path.read_text(encoding="utf-8"), lambda words, home=path.parent: block(words, home))  # type: ignore[misc]
        for path in DOCUMENTS
    }


def fill(text: str, make: Callable[[Sequence[str]], str]) -> str:
    """A document whose blocks `<!-- made from records: WORDS -->` … `<!-- end -->` hold what `make(WORDS)` returns."""
    if text.count("<!-- made from records:") != len(_RECORD_BLOCK.findall(text)):
        raise ConfigError("a block made from records has no end", "close it with <!-- end -->")
    return _RECORD_BLOCK.sub(lambda found: f"{found[1]}\n{make(found[2].split())}\n{found[4]}", text)


def anchor(record: Record) -> str:
    """The record's place in the index."""
    return f"{record.path.parent.stem}-{record.name}"


def run_index(records: Records) -> str:
    """lab/results/runs/README.md: a table for each data set, a row for each run."""
    parts = [INDEX_HEAD]
    for place in sorted({record.path.parent for record in records.all}):
        here = sorted((each for each in records.all if each.path.parent == place), key=lambda each: each.name)
        held_out = all("valid" in each.scores for each in here)
        masks = ("valid",) if held_out else ("train", "train+valid")
        rows = [["run", "device", "epochs", *(f"{COLUMNS[mask]}" for mask in masks), "Recall@20", "seconds"]]
        for each in here:
            scores = [f"{each.scores[mask]['ndcg']:.4f}" if mask in each.scores else MISSING for mask in masks]
            name = f'<a id="{anchor(each)}"></a>{each.name}'
            about = [each.device, f"{each.run.record.epochs}", *scores, f"{each.scores[masks[0]]['recall']:.4f}"]
            rows.append([name, *about, f"{each.seconds:.1f}"])
        parts.append(f"## {place.stem}\n\n{len(here)} runs, all in `{place.name}`.\n\n{markdown_table(rows)}\n")
    return "\n".join(parts)


def searches() -> Iterator[tuple[Path, SearchFile]]:
    """Every recorded search."""
    for path in sorted((RESULTS / "search").glob("*/*.json")):
        yield path, SearchFile.read(path)


def search_sheet() -> Sheet:
    """What each search tried, what it cost, and where its trials are."""
    rows: list[list[Value]] = []
    for path, record in searches():
        where = f"[trials](../lab/results/{path.relative_to(RESULTS).as_posix()})"
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


def take(source: Path) -> None:
    """Put the records of a pack, or of a directory of runs, into the files of their data sets."""
    with tempfile.TemporaryDirectory() as scratch:
        packed = source
        if source.is_dir():
            packed = Path(scratch, "all.jsonl")
            pack([record.path for record in Records.read(source).all if record.path.is_dir()], packed)
        found = read_pack(packed)
    for dataset in sorted({run.partition("/")[0] for run in found}):
        place = RUNS / f"{dataset}.jsonl"
        before = read_pack(place) if place.exists() else {}
        write_pack(place, before | {run: files for run, files in found.items() if run.partition("/")[0] == dataset})
        print(place)


def main(arguments: Sequence[str]) -> None:
    match list(arguments):
        case ["take", *sources] if sources:
            for source in sources:
                take(Path(source))
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
