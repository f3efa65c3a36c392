"""How a figure is drawn: the palette, one style, and the finished figure with its hover values.

Figures use the light palette; the page replaces its colours by its own for light and dark. Every class has a colour
(Okabe and Ito's, which colour-blind readers can tell apart) and a hatch, and every run a line style and a marker, so
the figures can be read in grey.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hmlet.runs.choices import CLASSES

# Each colour's variable on the page. No two are equal, so that each can be found in the finished SVG.
COLOURS = {
    "#1f2328": "--ink",
    "#d5d9df": "--line",
    "#0072b2": "--first",
    "#e69f00": "--second",
    "#b3b8bf": "--third",
    "#009e73": "--fourth",
    "#cc79a7": "--fifth",
}
INK, GRID, BLUE, ORANGE, GREY, GREEN, PINK = COLOURS
LOOKS = {  # of each class: colour, hatch, label
    name: (colour, hatch, name.upper())
    for name, colour, hatch in zip(CLASSES, (BLUE, ORANGE, GREY), ("//", "..", ""), strict=True)
}
Series = tuple[str, str | tuple[int, tuple[int, int]], str]  # a run's colour, line style and marker
SERIES: list[Series] = [
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    (GREEN, "-.", "^"),
    (PINK, ":", "D"),
    (INK, (0, (1, 1)), "v"),
]
WIDTH = 5.4  # inches: at a phone's width the text is still readable
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


Range = tuple[float, float]


@dataclass(frozen=True)
class Spot:
    """A part of an axis that shows values on hover: ranges in data coordinates, the whole height without `y`."""

    axis: Any
    x: Range
    y: Range | None
    lines: Sequence[str]  # a heading, then the values
    last: Any = None  # the lowest axis of those that the spot covers, if it is not `axis`


@dataclass(frozen=True)
class Mark:
    """A spot of a finished figure: its box in percent of the picture, from the top left."""

    left: float
    top: float
    width: float
    height: float
    lines: Sequence[str]


@dataclass(frozen=True)
class Drawn:
    """A finished figure: its title, what to see in it, the picture and its hover values."""

    name: str
    title: str
    see: str
    svg: str
    sheet: Figure
    marks: Sequence[Mark] = ()

    @property
    def png(self) -> bytes:
        """The figure as PNG, drawn on demand: the page does not need it, and it takes as long as the SVG."""
        png = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            self.sheet.savefig(png, format="png", dpi=160, facecolor="white")
        return png.getvalue()

    def inline(self) -> str:
        """The SVG for the page, with the page's colours and ids that no other figure has."""
        svg = self.svg[self.svg.index("<svg") :]
        for colour, variable in COLOURS.items():
            svg = svg.replace(colour, f"var({variable})")
        svg = re.sub(r'\bid="', f'id="{self.name}-', svg)
        svg = re.sub(r'(url\(|href=")#', rf"\1#{self.name}-", svg)
        # Width and height in points would keep the picture from shrinking; the viewBox has its shape.
        svg = re.sub(r'<svg ([^>]*?)\bwidth="[^"]*"', r"<svg \1", svg, count=1)
        svg = re.sub(r'<svg ([^>]*?)\bheight="[^"]*"', r"<svg \1", svg, count=1)
        label = escape(f"{self.title}: {self.see}")
        return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


@contextmanager
def new_sheet(
    rows: int = 1, columns: int = 1, height: float = 3.2, **layout: Any
) -> Iterator[tuple[Figure, list[Any]]]:
    """A figure and its axes, in our style and independent of the user's settings."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": "agg"}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, **layout)
        yield figure, list(axes.ravel())


def finish(figure: Figure, name: str, title: str, see: str, spots: Sequence[Spot] = ()) -> Drawn:
    """The figure as SVG, the same bytes every time."""
    svg = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    # Saving has laid the axes out, so positions are final from here on.
    return Drawn(name, title, see, svg.getvalue(), figure, [_mark(figure, spot) for spot in spots])


def _mark(figure: Figure, spot: Spot) -> Mark:
    box, lowest = spot.axis.get_window_extent(), (spot.last or spot.axis).get_window_extent()
    corners = spot.axis.transData.transform(list(zip(spot.x, spot.y or (1, 1), strict=True)))
    left, right = max(corners[0][0], box.x0), min(corners[1][0], box.x1)
    # A downward axis has its larger value at the bottom.
    bottom, top = (lowest.y0, box.y1) if spot.y is None else sorted(corner[1] for corner in corners)
    width, height = figure.bbox.width, figure.bbox.height
    left, top, across, down = (
        round(100 * part, 2)
        for part in (left / width, 1 - top / height, (right - left) / width, (top - bottom) / height)
    )
    return Mark(left, top, across, down, spot.lines)


def strips(places: Sequence[float], low: float, high: float) -> list[Range]:
    """A range around each of some growing places, up to the middle between neighbours."""
    middles = [(one + other) / 2 for one, other in pairwise(places)]
    return list(zip([low, *middles], [*middles, high], strict=True))


def legend_above(axis: Any, columns: int) -> None:
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, handlelength=2.2, columnspacing=1.2)


def series(count: int) -> list[Series]:
    return [SERIES[at % len(SERIES)] for at in range(count)]
