"""The numbers in the documents are those of the recorded runs, and the recipes those that the searches found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hmlet.config import resolve
from hmlet.reproduction.plan import identity
from hmlet.reproduction.records import Records
from lab.documents import INDEX, RUNS, anchor, documents, recipes

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reproduction.md"
# What people wrote: the blocks that are made from records are compared as a whole.
WRITTEN = re.sub(r"<!-- made from records.*?<!-- end -->", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
RUN = re.compile(r"\[test\]\(\.\./lab/results/runs/README\.md#([\w.-]+)\)")
ROWS = [line for line in WRITTEN.splitlines() if line.startswith("|") and RUN.search(line)]


def test_the_tables_are_what_the_records_make() -> None:
    for path, text in documents().items():
        assert path == INDEX or text.count("<!-- made from records:") >= 1
        assert path.read_text(encoding="utf-8") == text, "run `make docs` and commit"


def test_there_are_rows() -> None:
    assert len(ROWS) >= 4


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_what_its_record_says(row: str) -> None:
    link = RUN.search(row)
    assert link is not None
    (record,) = [each for each in Records.read(RUNS).all if anchor(each) == link[1]]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:5] == [f"{record.scores[cells[1]][name]:.4f}" for name in ("ndcg", "recall", "precision")]


def test_a_searched_recipe_is_what_the_search_found() -> None:
    found = recipes()
    for path, text in found.items():
        assert path.read_text(encoding="utf-8") == text, "run `python -m lab.documents recipes` and commit"
    for path in sorted((ROOT / "src" / "hmlet" / "config" / "recipes").glob("*/*/*.toml")):
        if path.parent.parent.name != "spaces" and path not in found:
            text = path.read_text(encoding="utf-8")
            named = re.findall(r"lab/results/[\w./-]+\.jsonl", text)
            assert "Not searched." in text or (named and all((ROOT / record).is_file() for record in named))


def test_readme_shows_the_recorded_demo() -> None:
    """Each passage that README.md shows of `make demo` is in the output of a whole demo, kept beside its records."""
    output = (ROOT / "lab" / "results" / "demo" / "output.txt").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    demo = readme.partition("## What the demo shows")[2].partition("\n## ")[0]
    shown = re.findall(r"^```text\n(.*?)^```$", demo, flags=re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    for passage in "\n".join(shown).split("\n\n"):
        assert passage.strip() in output


def test_debians_recipes_are_those_of_the_recorded_runs() -> None:
    records = Records.read(RUNS)
    for model in ("hmlet-end", "lightgcn"):
        recipe = resolve(model, seed=1, dataset="debian")
        record = records.find("debian", recipe)
        assert record is not None
        assert identity(record.recipe) == identity(recipe)
