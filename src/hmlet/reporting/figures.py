"""The figures: drawn once with the light palette, whose colours the page replaces by its own for light and dark.

Every class has a colour (Okabe and Ito's, which colour-blind people tell apart), a hatch and a marker, every run a
line style besides its colour: the figures can be read in grey.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hmlet.analysis.gates import Box
from hmlet.reporting.material import VARIANT_NAMES, Material
from hmlet.reporting.paper import paper
from hmlet.runs.choices import CLASSES

# The page's variable of each colour. No two are equal, so that each can be found again in the finished SVG.
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


@dataclass(frozen=True)
class Drawn:
    """A finished figure: its title, what to see in it, and the picture in both formats."""

    name: str
    title: str
    see: str
    svg: str
    sheet: Figure

    @property
    def png(self) -> bytes:
        """Drawn when it is asked for: a page does without, and it costs as much as the SVG."""
        png = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            self.sheet.savefig(png, format="png", dpi=160, facecolor="white")
        return png.getvalue()

    def inline(self) -> str:
        """The SVG for the page: its colours are the page's, and its ids no other figure's."""
        svg = self.svg[self.svg.index("<svg") :]
        for colour, variable in COLOURS.items():
            svg = svg.replace(colour, f"var({variable})")
        svg = re.sub(r'\bid="', f'id="{self.name}-', svg)
        svg = re.sub(r'(url\(|href=")#', rf"\1#{self.name}-", svg)
        # Width and height in points would keep the picture from shrinking; the viewBox has its shape.
        svg = re.sub(r'<svg ([^>]*?)\bwidth="[^"]*"', r"<svg \1", svg, count=1)
        svg = re.sub(r'<svg ([^>]*?)\bheight="[^"]*"', r"<svg \1", svg, count=1)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{self.title}: {self.see}" ', 1)


def draw_all(material: Material) -> list[Drawn]:
    """Every figure that the material has numbers for, in the page's order."""
    return [
        drawn for draw in (learning, variants, deciles, boxes, density, gates_over_time) if (drawn := draw(material))
    ]


@contextmanager
def _sheet(rows: int = 1, columns: int = 1, height: float = 3.2) -> Iterator[tuple[Figure, list[Any]]]:
    """A figure and its axes, under our style and nobody else's."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": "agg"}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, list(axes.ravel())


def _finish(figure: Figure, name: str, title: str, see: str) -> Drawn:
    """The figure as SVG, the same bytes every time."""
    svg = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return Drawn(name, title, see, svg.getvalue(), figure)


def _legend(axis: Any, columns: int) -> None:
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, handlelength=2.2, columnspacing=1.2)


def learning(material: Material) -> Drawn | None:
    """Loss and validation NDCG over the epochs, one line per run."""
    runs = [run for run in material.runs if run.metrics]
    if not runs:
        return None
    with _sheet(2, 1, 5.0) as (figure, (loss, ndcg)):
        ndcg.sharex(loss)
        for (colour, line, marker), run in zip(_series(len(runs)), runs, strict=True):
            loss.plot(*_column(run.metrics, "loss"), color=colour, linestyle=line, label=run.label)
            rows = [{"epoch": row["epoch"], **row["valid"]} for row in run.metrics if row.get("valid")]
            epochs, values = _column(rows, "ndcg")
            ndcg.plot(epochs, values, color=colour, linestyle=line, marker=marker, markersize=4)
        loss.set(ylabel="training loss")
        ndcg.set(xlabel="epoch", ylabel="validation NDCG@20")
        for axis in (loss, ndcg):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _legend(loss, 2)
        see = "Validation NDCG should be flat where training stopped: a curve that still rises wants more epochs."
        return _finish(figure, "learning", "Learning curves", see)


def _series(count: int) -> list[Series]:
    return [SERIES[at % len(SERIES)] for at in range(count)]


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    some = [row for row in rows if row.get(name) is not None]
    return [row["epoch"] for row in some], [row[name] for row in some]


def variants(material: Material) -> Drawn | None:
    """Test NDCG@20 of the HMLET variants, beside the paper's bars for the same data."""
    ours = {run.variant: run.scores["ndcg"] for run in material.runs if run.variant and run.scores}
    theirs = paper().variants_ndcg.get(material.runs[0].data, {})
    if not ours or len(ours) + len(theirs) < 2:  # one bar shows nothing
        return None
    with _sheet(height=2.8) as (figure, (axis,)):
        for offset, values, colour, hatch, label in (
            (-0.2, ours, BLUE, "//", "ours"),
            (0.2, theirs, GREY, "", "paper"),
        ):
            shift = offset if theirs else 0.0
            at = [place + shift for place, name in enumerate(VARIANT_NAMES) if name in values]
            heights = [values[name] for name in VARIANT_NAMES if name in values]
            if heights:
                bars = axis.bar(at, heights, 0.36, color=colour, hatch=hatch, edgecolor=INK, linewidth=0.6, label=label)
                axis.bar_label(bars, fmt="%.4f", fontsize=8, padding=2)
        axis.set_xticks(range(len(VARIANT_NAMES)), [name.capitalize() for name in VARIANT_NAMES])
        axis.set(ylabel="test NDCG@20", xlabel="HMLET variant (which layers are gated)", xlim=(-0.6, 3.6))
        axis.grid(axis="x", visible=False)
        _legend(axis, 2)
        see = "The higher bar is the better place for the gates; the paper found End (the last two layers) best."
        return _finish(figure, "variants", "Where to put the gates", see)


def standings(rows: Sequence[tuple[str, float, tuple[float, float]]], label: str, see: str) -> Drawn:
    """Models from best to worst, each a point with its interval: (model, value, interval). The first one leads."""
    with _sheet(height=1.0 + 0.3 * len(rows)) as (figure, (axis,)):
        best = rows[0][1]
        axis.axvline(best, color=BLUE, linewidth=1, linestyle="--")
        for at, (_, value, (low, high)) in enumerate(rows):
            colour, marker = (BLUE, "D") if at == 0 else (INK, "o")
            error = [[max(0.0, value - low)], [max(0.0, high - value)]]
            axis.errorbar(value, at, xerr=error, color=colour, marker=marker, markersize=6, capsize=3, linewidth=1.6)
        axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axis.set(xlabel=label, ylim=(len(rows) - 0.5, -0.5))
        axis.margins(x=0.05)
        axis.grid(axis="y", visible=False)
        return _finish(figure, "standings", "Models side by side", see)


def deciles(material: Material) -> Drawn | None:
    """Class shares by degree decile, and the paper's for Amazon-Book below."""
    run = material.analysed
    if run is None or run.analysis is None:
        return None
    shares = [row.shares for row in run.analysis.degree_deciles]
    ours = {name: [100 * (each[name] or 0.0) for each in shares] for name in LOOKS}
    panels = [(f"{run.label}, {run.data}", ours), ("paper, Amazon-Book", paper().degree_deciles_percent)]
    with _sheet(2, 1, 5.2) as (figure, axes):
        for axis, (title, percent) in zip(axes, panels, strict=True):
            bottom = [0.0] * 10
            for name, (colour, hatch, label) in LOOKS.items():
                style = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.5}
                axis.bar(range(1, 11), percent[name], 0.84, bottom=bottom, label=label, **style)
                bottom = [low + part for low, part in zip(bottom, percent[name], strict=True)]
            axis.set_title(title, fontsize=10, loc="left")
            axis.set(ylabel="share of nodes", ylim=(0, 100), xticks=range(1, 11))
            axis.yaxis.set_major_formatter(PercentFormatter(decimals=0))
            axis.grid(axis="x", visible=False)
        axes[1].set_xlabel("degree decile (1: fewest interactions)")
        axes[0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, handlelength=1.6, columnspacing=1.0)
        see = "If FNL grows from left to right, well-connected nodes are the ones that choose the non-linear branch."
        return _finish(figure, "deciles", "Classes by degree", see)


def boxes(material: Material) -> Drawn | None:
    """Centralities per class as boxes."""
    run = material.analysed
    if run is None or run.analysis is None:
        return None
    found = run.analysis.centrality_boxes
    with _sheet(max(1, (len(found) + 1) // 2), 2, 2.4 * ((len(found) + 1) // 2)) as (figure, axes):
        for axis, (name, classes) in zip(axes, found.items(), strict=False):
            present = [each for each in LOOKS if classes[each].nodes]
            drawn = axis.bxp(
                [_box(classes[each], LOOKS[each][2]) for each in present],
                showfliers=False,
                patch_artist=True,
                widths=0.6,
                medianprops={"color": INK, "linewidth": 1.6},
                whiskerprops={"color": INK},
                capprops={"color": INK},
            )
            for patch, each in zip(drawn["boxes"], present, strict=True):
                colour, hatch, _ = LOOKS[each]
                patch.set(facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.6)
            axis.set(ylabel={"pagerank": "PageRank"}.get(name, name))
            axis.ticklabel_format(axis="y", scilimits=(-3, 4), useMathText=True)
            axis.grid(axis="x", visible=False)
        for axis in axes[len(found) :]:
            axis.remove()
        see = "Boxes that step down from FNL to FL agree with the paper; boxes that overlap mean a weak link."
        return _finish(figure, "boxes", "Centrality by class", see)


def _box(box: Box, label: str) -> dict[str, str | float | None]:
    """A box under matplotlib's names."""
    return {
        "label": f"{label}\n{box.nodes:,}",
        "whislo": box.lower_whisker,
        "q1": box.lower_quartile,
        "med": box.median,
        "q3": box.upper_quartile,
        "whishi": box.upper_whisker,
    }


def density(material: Material) -> Drawn | None:
    """How many nodes of a degree have which non-linear probability, one panel per gated layer."""
    run = material.analysed
    if run is None or run.analysis is None:
        return None
    found = run.analysis.degree_density
    steps = [at / found.probability_bins for at in range(found.probability_bins + 1)]
    layers = list(found.counts)
    most = max(2, *(cell for grid in found.counts.values() for row in grid for cell in row))
    rows = (len(layers) + 1) // 2
    with _sheet(rows, min(2, len(layers)), 2.6 * rows) as (figure, axes):
        for axis, layer in zip(axes, layers, strict=False):
            turned = [[cell or None for cell in column] for column in zip(*found.counts[layer], strict=True)]
            values = [[float("nan") if cell is None else cell for cell in row] for row in turned]
            # Dark is many in a light page and in print; a colour scale of growing lightness can be read in grey.
            mesh = axis.pcolormesh(found.degree_edges, steps, values, cmap="cividis_r", norm=LogNorm(1, most))
            axis.set(xscale="log", xlabel="degree", ylim=(0, 1))
            axis.set_title(f"layer {layer}", fontsize=10)
            axis.axhline(0.5, color=INK, linewidth=0.8, linestyle="--")
            axis.grid(visible=False)
        for axis in axes[:: min(2, len(layers))]:
            axis.set_ylabel("probability of non-linear")
        for axis in axes[len(layers) :]:
            axis.remove()
        figure.colorbar(mesh, ax=axes[: len(layers)], label="nodes", aspect=30)
        see = "Nodes above the dashed line go non-linear; a cloud that climbs to the right does so with the degree."
        return _finish(figure, "density", "Gate choice against degree", see)


def gates_over_time(material: Material) -> Drawn | None:
    """Temperature and non-linear share over the epochs of the analysed (or first gated) run."""
    gated = [run for run in material.runs if any(row.get("gate_share") for row in run.metrics)]
    if not gated:
        return None
    run = next((run for run in gated if run.analysis), gated[0])
    rows = [row for row in run.metrics if row.get("gate_share")]
    epochs = [row["epoch"] for row in rows]
    with _sheet(2, 1, 4.6) as (figure, (share, temperature)):
        for (colour, line, marker), layer in zip(
            _series(len(rows[0]["gate_share"])), rows[0]["gate_share"], strict=True
        ):
            values = [100 * row["gate_share"][layer] for row in rows]
            share.plot(
                epochs, values, color=colour, linestyle=line, marker=marker, markersize=4, label=f"layer {layer}"
            )
        share.set(ylabel="non-linear nodes", ylim=(-3, 103))
        share.yaxis.set_major_formatter(PercentFormatter(decimals=0))
        _legend(share, 4)
        at, tau = _column(rows, "temperature")
        temperature.plot(at, tau, color=INK, marker="o", markersize=3)
        temperature.set(xlabel="epoch", ylabel="temperature τ", ylim=(0, 1.1 * max(tau, default=1.0)))
        for axis in (share, temperature):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        see = "A line that sticks to 0 % or 100 % is a collapsed gate: that layer makes the same choice for every node."
        return _finish(figure, "gates", "Do the gates collapse?", see)
