"""The parts of a page: a document of sections, cards in rows of two, figures with hover values, tables.

The report and the leaderboard share these and page.css. The pages hold no script: hover values are radio buttons over
the picture, so the mouse, the arrow keys and a finger all reach them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from hmlet.reporting.drawing import Drawn, Mark

# A page may be opened anywhere: it fetches nothing and runs nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
MANY_COLUMNS = 5  # from this many, a table becomes a list of rows on a phone


class Cell(str):
    """Text that is HTML already."""


@dataclass(frozen=True)
class Card:
    """A box of the page, as `wide` as the page or half of it."""

    html: str
    wide: bool = False
    kind: str = ""  # a CSS class
    tag: str = "div"
    name: str = ""  # its id

    def __str__(self) -> str:
        classes = " ".join(filter(None, ["card", self.kind, "wide" if self.wide else ""]))
        name = f' id="{self.name}"' if self.name else ""
        return f'<{self.tag}{name} class="{classes}">{self.html}</{self.tag}>\n'


def document(title: str, answer: Sequence[Card | None], sections: Sequence[tuple[str, Sequence[Card | None]]]) -> str:
    """A whole page: the answer first, then the sections; one without cards is left out."""
    body = "\n".join(
        f"<section><h2>{escape(name)}</h2>\n{_grid(cards)}</section>" for name, cards in sections if any(cards)
    )
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1></header>\n<main>\n<h2 class="unseen">Answer</h2>\n'
        f"{_grid(answer)}\n{body}\n</main>\n</body>\n</html>\n"
    )


def _grid(cards: Sequence[Card | None]) -> str:
    """Cards in rows of two; a card without a neighbour takes the whole row, so no row has a hole."""
    placed: list[Card] = []
    waiting = False
    for card in filter(None, cards):
        if card.wide and waiting:
            placed[-1], waiting = replace(placed[-1], wide=True), False
        elif not card.wide:
            waiting = not waiting
        placed.append(card)
    if waiting:
        placed[-1] = replace(placed[-1], wide=True)
    return f'<div class="grid">\n{"".join(map(str, placed))}</div>'


def figure(drawn: Drawn) -> Card:
    """A card with a picture and its hover values."""
    values = "".join(_value(drawn.name, mark) for mark in drawn.marks)
    html = (
        f'<div><h3>{escape(drawn.title)}</h3><p class="see">{escape(drawn.see)}</p></div>\n'
        f'<div class="plot">{drawn.inline()}\n'
        f'<div class="values" role="radiogroup" aria-label="Values of {escape(drawn.title)}">{values}</div></div>\n'
    )
    return Card(html, tag="figure", name=drawn.name)


def _value(group: str, mark: Mark) -> str:
    """A spot of a picture and the tip that it shows, on the side where there is more room."""
    left, top = mark.left + mark.width / 2, min(mark.top, 70)
    side = f"left:{left:.1f}%" if left < 50 else f"right:{100 - left:.1f}%"
    head, *rest = map(escape, mark.lines)
    text = "<br>".join([f"<b>{head}</b>", *rest])
    return (
        f'<label><input type="radio" name="{group}" autocomplete="off" '
        f'style="left:{mark.left}%;top:{mark.top}%;width:{mark.width}%;height:{mark.height}%">'
        f'<span class="tip" style="{side};top:{top}%">{text}</span></label>'
    )


def table(
    title: str,
    see: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    quoted: Sequence[int] = (),
    wide: bool = False,
    words: bool = False,
    listed: bool = False,
) -> Card:
    """A card with a table; the columns numbered in `quoted` are the paper's.

    Cells of `words` instead of numbers are left-aligned and wrap. A table with many columns, or one that is `listed`,
    turns into a list of rows where it is narrow.
    """

    def line(tag: str, role: str, cells: Sequence[object]) -> str:
        found = (
            (
                ' class="paper"' if at in quoted else "",
                f' data-label="{escape(columns[at])}"' if tag == "td" else "",
                cell if isinstance(cell, Cell) else escape(str(cell)),
            )
            for at, cell in enumerate(cells)
        )
        # Without a text, it heads nothing.
        return "".join(
            f'<{tag}{style}{label} role="{role}">{text}</{tag}>' if text or tag == "td" else '<td role="cell"></td>'
            for style, label, text in found
        )

    # The roles are those that the elements have anyway; a list of rows would lose them.
    body = "".join(f'<tr role="row">{line("td", "cell", row)}</tr>\n' for row in rows)
    kinds = " ".join(kind for kind, on in (("words", words), ("listed", listed or len(columns) >= MANY_COLUMNS)) if on)
    html = (
        f'<h3>{escape(title)}</h3><p class="see">{escape(see)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
        f'<table class="{kinds}" role="table">'
        f'<thead role="rowgroup"><tr role="row">{line("th", "columnheader", columns)}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}</tbody></table></div>'
    )
    return Card(html, wide=wide)


def number(value: float | None, digits: int = 3) -> str:
    """The value with this many significant digits, trailing zeros included, so that a column lines up."""
    return "–" if value is None else f"{value:#.{digits}g}".rstrip(".")


def p_value(value: float | None) -> str:
    return "< 1e-300" if value is not None and value < 1e-300 else number(value)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def duration(value: float) -> str:
    """Seconds; below 10 s, with two significant digits."""
    return f"{value:,.0f} s" if value >= 10 else f"{value:#.2g} s"
