"""The page: every table and figure of the paper beside ours, for each data set, in one file that needs no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from hmlet.analysis.verdict import FAILS, HOLDS, WEAK
from hmlet.reporting import figures as drawing
from hmlet.reporting import gate_figures
from hmlet.reporting.drawing import SERIES
from hmlet.reporting.layout import Card, Cell, document, figure, table
from hmlet.reporting.material import Material
from hmlet.reporting.page import (
    box_table,
    cosine_table,
    environment_table,
    share_table,
    size_table,
    verdict_table,
)
from hmlet.reproduction.cells import OURS_TITLE, TABLES, title
from hmlet.reproduction.differences import FEW, NOT_RUN, UNCLEAR
from hmlet.reproduction.plan import folder
from hmlet.reproduction.sheets import RECORDS_COLUMN, Sheet, Value, Verdict, cost_sheet, sheets
from hmlet.reproduction.tables import AHEAD, BEHIND, BELOW, LEVEL, REACHED, Tables

VERDICT_MARKS = {
    **dict.fromkeys((HOLDS, REACHED, AHEAD), "yes"),
    **dict.fromkeys((FAILS, BELOW, BEHIND), "no"),
    **dict.fromkeys((WEAK, LEVEL, UNCLEAR, FEW), "weak"),
    NOT_RUN: "none",
}
WIDE = 6  # columns from which a table takes the page's width


def render(tables: Sequence[Tables], done: int, wanted: int) -> str:
    """The whole page; `done` of `wanted` runs are behind it."""
    names = [title(each.dataset) for each in tables]
    sections: list[tuple[str, Sequence[Card | None]]] = []
    for name, each in zip(names, tables, strict=True):
        sections += [
            (f"{part} · {name}" if len(tables) > 1 else part, cards)
            for part, cards in dataset_sections(each, prefix=f"{folder(each.dataset)}-")
        ]
    sections.append(
        (
            "How this was made",
            [sheet_card(cost_sheet(tables, names)), *map(_environment, tables), *map(_records, tables)],
        )
    )
    lead = Card(f"<p>{escape(_lead(tables, done, wanted))}</p>")
    return document(f"HMLET, reproduced: {', '.join(names)}", [lead], sections)


def _lead(tables: Sequence[Tables], done: int, wanted: int) -> str:
    text = f"{done} of {wanted} runs are behind this page; what was not run says so, and nothing is filled in. "
    for each in tables:
        gain = each.claims()[1]
        answer = "Not run" if gain.verdict == NOT_RUN else f"{gain.ours}: {gain.verdict}"
        text += f"{title(each.dataset)}: {gain.about}? {answer}. "
    changed = sorted({override for each in tables for override in each.choice.overrides})
    if changed:
        text += f"Every recipe was changed by {', '.join(changed)}, so the paper's numbers are of another size."
    return text.strip()


def dataset_sections(tables: Tables, prefix: str = "") -> list[tuple[str, list[Card | None]]]:
    """The sections of one data set: claims, accuracy, variants, gates."""
    cards = {name: sheet_card(sheet) for name, sheet in sheets(tables).items()}
    drawn = figures(tables, prefix)
    return [
        ("The paper's claims", [cards.get("claims")]),
        ("Accuracy", [*map(cards.get, ("main", "tests")), drawn.get("learning")]),
        ("The variants", [cards.get("variants"), drawn.get("variants")]),
        ("What the gates chose", [*_gate_tables(tables), drawn.get("gates"), drawn.get("density")]),
        ("Who chooses what", [drawn.get("deciles"), drawn.get("boxes")]),
    ]


def sheet_card(sheet: Sheet) -> Card:
    """A sheet as one of the report's cards, without links: the page stands alone and may be read anywhere."""
    shown = [at for at, name in enumerate(sheet.columns) if name != RECORDS_COLUMN]
    rows = [[_cell(row[at]) for at in shown] for row in sheet.rows]
    columns = [sheet.columns[at] for at in shown]
    wide = sheet.wide or sheet.words or len(columns) >= WIDE
    return table(sheet.title, sheet.see, columns, rows, sheet.quoted, wide, sheet.words)


def _cell(value: Value) -> str:
    if not isinstance(value, Verdict):
        assert isinstance(value, str)
        return value
    mark = next((mark for word, mark in VERDICT_MARKS.items() if value.startswith(word)), "")
    told = value.removeprefix(f"{BELOW} (").removesuffix(")") if value.startswith(BELOW) else value
    return Cell(f'<span class="{mark}">{escape(told)}</span>')


def figures(tables: Tables, prefix: str) -> dict[str, Card]:
    """The paper's figures from the records: first seeds' learning curves, and HMLET(End)'s gates."""
    first = [row.records[0].material(row.cell.label) for row in tables.main.values() if row.records]
    variants = [
        row.records[0].material(row.cell.label, {"ndcg": found.mean})
        for row in tables.rows("variants")
        if (found := row.spread()) is not None
    ]
    gated = [record.material(OURS_TITLE) for record in tables.analysed[:1]]
    drawn = [
        drawing.learning(Material(first[: len(SERIES)])) if first else None,
        drawing.variants(Material(variants)) if variants else None,
    ]
    if gated:
        gates = (gate_figures.deciles, gate_figures.boxes, gate_figures.density, gate_figures.gates_over_time)
        drawn += [draw(Material(gated)) for draw in gates]
    # Ids are made of a figure's name, and no two on a page may be alike.
    return {each.name: figure(replace(each, name=prefix + each.name)) for each in drawn if each is not None}


def _gate_tables(tables: Tables) -> list[Card | None]:
    if not tables.analysed:
        return [None]
    run = tables.analysed[0].material(OURS_TITLE)
    assert run.analysis is not None
    found = run.analysis
    return [
        share_table(run, found),
        size_table(run, found),
        verdict_table(found),
        box_table(found),
        cosine_table(found),
    ]


def _environment(tables: Tables) -> Card | None:
    """Where the first seeds were trained."""
    runs = [row.records[0].material(row.cell.label) for row in tables.main.values() if row.records]
    return environment_table(Material(runs)) if runs else None


def _records(tables: Tables) -> Card | None:
    """The directories of every record behind the tables, folded away."""
    rows = [row for name in TABLES for row in tables.rows(name)]
    paths = sorted({record.path for row in rows for record in row.records})
    if not paths:
        return None
    listed = escape("\n".join(f"{path.parent.name}/{path.name}" for path in paths))
    title_text = f"{len(paths)} records of {title(tables.dataset)}"
    return Card(f"<details><summary>{escape(title_text)}</summary><pre>{listed}</pre></details>", wide=True)
