"""Every result in the text of README.md and docs/reproduction.md is in a generated table, or in a linked record.

A number counts as a result if it has a decimal point or a unit (%, s, ms). It has to agree, at the precision that it is
printed with, with one of these:

- a cell of a generated table about a data set that the paragraph names (or is under the heading of);
- a number in a file of lab/results/ that the paragraph links to, or of a run that it links to in the
  index of lab/results/runs, or the mean over that run's seeds, or a difference of two such means in percent;
- a number of the paper, or of a recipe, a search space or the campaign's plan.

Code, links' targets, versions and quotations are not looked at.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from hmlet.analysis.result import ANALYSIS
from hmlet.reproduction.records import SCORE_FILES, Record, Records

ROOT = Path(__file__).resolve().parents[2]
PAGE, README, RESULTS = ROOT / "docs" / "reproduction.md", ROOT / "README.md", ROOT / "lab" / "results"
INDEX = RESULTS / "runs" / "README.md"
BLOCK = re.compile(r"<!-- made from records: ([\w -]+) -->\n(.*?)<!-- end -->", re.DOTALL)
TITLES = {
    "Gowalla": "gowalla",
    "Yelp2018": "yelp2018",
    "Amazon-Book-29k": "amazon-book-29k",
    "debian": "debian",
}
NUMBER = re.compile(r"(?<![\w.,-])[+-]?(\d[\d,]*\.\d+(?:e-?\d+)?|\d[\d,]*(?= (?:%|s|ms)(?!\w)))(?![\d.]*\d)")
FIRST_RUNS = "The first runs"  # copied from a terminal, as that section says; test_records.py has the rest


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, list item or table row of a document, and the title of the section that it is in."""

    document: Path
    section: str
    text: str

    @property
    def datasets(self) -> set[str]:
        """The data sets that it is about: named in it, or by its section's title; all if none is."""
        text = f"{self.section}\n{self.text}"
        named = {name for title, name in TITLES.items() if re.search(rf"\b{re.escape(title)}\b", text)}
        return named or set(TITLES.values())

    @property
    def links(self) -> list[Path]:
        targets = re.findall(r"\]\(([^)#\s]+)\)", self.text)
        return [(self.document.parent / each).resolve() for each in targets if "://" not in each]

    @property
    def runs(self) -> list[tuple[str, Record]]:
        """The runs that it links to, each with the words of the link."""
        found = re.findall(r"\[([^]]*)\]\(([^)#\s]+)#([\w.-]+)\)", self.text)
        return [
            (words, recorded()[run])
            for words, path, run in found
            if (self.document.parent / path).resolve() == INDEX and run in recorded()
        ]

    @property
    def results(self) -> list[str]:
        bare = re.sub(r"`[^`]*`|\]\([^)]*\)|(Python|PyTorch|CUDA) [\d.]+", " ", self.text)
        return [found[0].lstrip("+-") for found in NUMBER.finditer(bare)]


def paragraphs(document: Path, text: str) -> Iterator[Paragraph]:
    text = BLOCK.sub("", text)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    section = ""
    for part in re.split(r"\n\s*\n|\n(?=- |#|\|)", text):
        if heading := re.match(r"##? (.+)", part.strip()):
            section = heading[1]
        elif not part.lstrip().startswith(">"):
            yield Paragraph(document, section, part)


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)]


def values(content: Any) -> Iterator[float]:
    """Every number in what a JSON or TOML file holds, in strings too: some are overrides such as "train.l2=1e-4"."""
    if isinstance(content, bool):
        return
    if isinstance(content, int | float):
        yield float(content)
    elif isinstance(content, str):
        yield from numbers(content)
    elif isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            yield from values(each)


@cache
def tables() -> dict[str, frozenset[float]]:
    """The numbers in the generated tables of the page by data set; those about several count for each."""
    found: dict[str, set[float]] = {name: set() for name in TITLES.values()}
    for words, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        cells = set(numbers(re.sub(r"\]\([^)]*\)", " ", block)))
        about = set(words.split()) & set(found) or set(found)
        for name in about:
            found[name] |= cells
    return {name: frozenset(each) for name, each in found.items()}


@cache
def given() -> frozenset[float]:
    """What no run found: the paper's numbers, and settings."""
    package = ROOT / "src" / "hmlet"
    plans = [*(package / "config" / "recipes").rglob("*.toml"), package / "reproduction" / "campaign.toml"]
    found = [value for path in plans for value in values(tomllib.loads(path.read_text(encoding="utf-8")))]
    papers = list((package / "reporting").glob("*.json"))
    assert papers, "the paper's numbers are somewhere else now"
    found += [value for path in papers for value in values(json.loads(path.read_text(encoding="utf-8")))]
    return frozenset([*found, 0.05])  # the level of significance


@cache
def recorded() -> dict[str, Record]:
    """Every recorded run by its anchor in the index."""
    return {f"{each.path.parent.stem}-{each.name}": each for each in Records.read(INDEX.parent).all}


def linked(paths: Iterable[Path], runs: Iterable[tuple[str, Record]]) -> list[float]:
    """The numbers in linked JSON files and of linked runs, and the means over all seeds of these runs' recipes."""
    read: list[float] = []
    tables: list[float] = []
    means: list[dict[str, float]] = []
    for path in paths:
        if path.suffix == ".json" and path.is_file():
            read += values(json.loads(path.read_text(encoding="utf-8")))
        if path.suffix == ".md" and RESULTS in path.parents:
            tables += numbers(path.read_text(encoding="utf-8"))
    for words, run in runs:
        names = ["run.json", *SCORE_FILES.values(), *[ANALYSIS] * (words == ANALYSIS)]
        read += [value for name in names if run.run.has(name) for value in values(run.run.unchecked(name).json())]
        kind = run.name.partition("_seed")[0]
        seeds = [each for each in recorded().values() if each.path.parent == run.path.parent]
        seeds = [each for each in seeds if each.name.partition("_seed")[0] == kind and "train" in each.scores]
        for scores in ([each.scores["train"] for each in seeds], [each.run.record.valid or {} for each in seeds]):
            shared = set.intersection(*(set(score) for score in scores))
            means.append({name: sum(score[name] for score in scores) / len(scores) for name in shared})
    found = [*read, *(100 * value for value in read if abs(value) <= 1), *tables]  # shares, in percent
    found += [value for each in means for value in each.values()]
    for one, other in permutations(means, 2):
        found += [100 * abs(one[name] / other[name] - 1) for name in set(one) & set(other) if other[name]]
    return found


def agrees(printed: str, value: float) -> bool:
    """Whether a number is the value, at the precision it is printed with; its sign may be left to the words."""
    plain = printed.replace(",", "")
    if "e" in plain:
        return f"{value:.{len(plain.partition('e')[0]) - 2}e}" == f"{float(plain):.{len(plain.partition('e')[0]) - 2}e}"
    digits = len(plain.partition(".")[2])
    return abs(abs(value) - float(plain)) <= 0.5 * 10**-digits + 1e-12


def missing(paragraph: Paragraph) -> list[str]:
    pool = [
        *given(),
        *linked(paragraph.links, paragraph.runs),
        *(value for name in paragraph.datasets for value in tables()[name]),
    ]
    return [printed for printed in paragraph.results if not any(agrees(printed, value) for value in pool)]


@pytest.mark.parametrize("document", [PAGE, README], ids=["reproduction", "readme"])
def test_every_result_in_the_text_is_recorded(document: Path) -> None:
    found = {
        paragraph.text.strip()[:80]: unknown
        for paragraph in paragraphs(document, document.read_text(encoding="utf-8"))
        if not paragraph.section.startswith(FIRST_RUNS) and (unknown := missing(paragraph))
    }
    assert found == {}, "link the record, or take the number from a table"


def test_a_number_that_no_run_made_is_noticed() -> None:
    real = "On Gowalla HMLET(End) reaches 0.1252, 1.1 % above LightGCN."
    assert [missing(each) for each in paragraphs(PAGE, real)] == [[]]
    for invented in ("On Gowalla HMLET(End) reaches 0.1259.", "On Gowalla it is 17.3 % above.", "Yelp2018: 0.5643."):
        (unknown,) = [missing(each) for each in paragraphs(PAGE, invented)]
        assert len(unknown) == 1, invented


def test_the_text_has_results_to_check() -> None:
    counted = {
        document: sum(len(each.results) for each in paragraphs(document, document.read_text(encoding="utf-8")))
        for document in (PAGE, README)
    }
    assert counted[PAGE] > 60
    assert counted[README] >= 4
