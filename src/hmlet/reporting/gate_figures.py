"""The figures about the gates: what they chose, for which nodes, and how the choice came about."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hmlet.analysis.gates import Box
from hmlet.reporting.answer import gates_in_words, kept_shares
from hmlet.reporting.drawing import BLUE, INK, LOOKS, Drawn, Spot, finish, legend_above, new_sheet, series
from hmlet.reporting.epochs import column, epoch_spots
from hmlet.reporting.material import Material, RunMaterial
from hmlet.reporting.paper import paper


def deciles(material: Material) -> Drawn | None:
    """Class shares by degree decile, and the paper's for Amazon-Book below."""
    run = material.analysed
    if run is None or run.analysis is None:
        return None
    shares = [row.shares for row in run.analysis.degree_deciles]
    ours = {name: [100 * (each[name] or 0.0) for each in shares] for name in LOOKS}
    panels = [(f"{run.label}, {run.data}", ours), ("paper, Amazon-Book", paper().degree_deciles_percent)]
    spots = []
    with new_sheet(2, 1, 5.2) as (figure, axes):
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
            for at in range(10):
                lines = [f"{looks[2]} {percent[name][at]:.1f} %" for name, looks in LOOKS.items()]
                spots.append(Spot(axis, (at + 0.5, at + 1.5), None, [f"{title}, decile {at + 1}", *lines]))
        axes[1].set_xlabel("degree decile (1: fewest interactions)")
        axes[0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, handlelength=1.6, columnspacing=1.0)
        see = "If FNL grows from left to right, well-connected nodes prefer the non-linear branch."
        return finish(figure, "deciles", "Classes by degree", see, spots)


def boxes(material: Material) -> Drawn | None:
    """Centralities per class as boxes."""
    run = material.analysed
    if run is None or run.analysis is None:
        return None
    found, spots = run.analysis.centrality_boxes, []
    rows = max(1, (len(found) + 1) // 2)
    with new_sheet(rows, 2, 2.6 * rows) as (figure, axes):
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
            title = {"pagerank": "PageRank"}.get(name, name)
            axis.set(ylabel=title)
            axis.ticklabel_format(axis="y", scilimits=(-3, 4), useMathText=True)
            axis.grid(axis="x", visible=False)
            for at, each in enumerate(present, start=1):
                spots.append(Spot(axis, (at - 0.4, at + 0.4), None, _box_lines(title, LOOKS[each][2], classes[each])))
        for axis in axes[len(found) :]:
            axis.remove()
        see = "The paper expects boxes that step down from FNL to FL. Boxes that overlap mean a weak link."
        return finish(figure, "boxes", "Centrality by class", see, spots)


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


def _box_lines(centrality: str, label: str, box: Box) -> list[str]:
    median, low, high = (
        f"{value:.3g}" for value in (box.median, box.lower_quartile, box.upper_quartile) if value is not None
    )
    return [f"{centrality}, {label} ({box.nodes:,} nodes)", f"median {median}", f"quartiles {low} to {high}"]


def density(material: Material) -> Drawn | None:
    """How many nodes of each degree have which non-linear probability, one panel per gated layer."""
    run = material.analysed
    if run is None or run.analysis is None:
        return None
    found = run.analysis.degree_density
    bins, edges, layers = found.probability_bins, found.degree_edges, list(found.counts)
    most = max(cell for grid in found.counts.values() for row in grid for cell in row)
    # One colour that grows more opaque: more ink is more nodes on a light page, on a dark one and in print.
    limits = [limit for limit in (1, 3, 10, 30, 100, 300, 1000, 3000, 10**4, 10**5, 10**6) if limit <= most] + [
        most + 1
    ]
    alphas = np.linspace(0.25, 1.0, len(limits) - 1)
    shades, norm = ListedColormap([to_rgba(BLUE, alpha) for alpha in alphas]), BoundaryNorm(limits, len(limits) - 1)
    rows, spots = (len(layers) + 1) // 2 if len(layers) > 2 else len(layers), []
    with new_sheet(rows, 2 if len(layers) > 2 else 1, 4.6 if rows > 1 else 3.2) as (figure, axes):
        for axis, layer in zip(axes, layers, strict=False):
            counts = np.array(found.counts[layer], dtype=float)
            values = np.ma.masked_equal(counts.T, 0)
            mesh = axis.pcolormesh(edges, np.linspace(0, 1, bins + 1), values, cmap=shades, norm=norm)
            axis.set(xscale="log", ylim=(0, 1))
            axis.set_title(f"layer {layer}", fontsize=10, loc="left")
            axis.axhline(0.5, color=INK, linewidth=0.8, linestyle="--")
            axis.grid(visible=False)
            for low, high, column in zip(edges, edges[1:], counts, strict=False):
                if nodes := column.sum():
                    share = column[bins // 2 :].sum() / nodes
                    degrees = f"degree {low:.0f}" if high - low == 1 else f"degree {low:.0f} to {high - 1:.0f}"
                    lines = [f"layer {layer}, {degrees}", f"{nodes:,.0f} nodes", f"{share:.0%} above 0.5"]
                    spots.append(Spot(axis, (low, high), None, lines))
        for axis in axes[len(layers) :]:
            axis.remove()
        figure.supylabel("probability of the non-linear branch", fontsize=10)
        figure.supxlabel("degree", fontsize=10)
        figure.colorbar(mesh, ax=axes[: len(layers)], label="nodes", aspect=30, ticks=limits[:-1], format="{x:,.0f}")
        see = (
            "Nodes above the dashed line take the non-linear branch. "
            "If the cloud rises to the right, well-connected nodes take it more often."
        )
        return finish(figure, "density", "Gate choice against degree", see, spots)


def gates_over_time(material: Material) -> Drawn | None:
    """Temperature and non-linear share over the epochs of the analysed (or first gated) run."""
    gated = [run for run in material.runs if any(row.get("gate_share") for row in run.metrics)]
    if not gated:
        return None
    run = next((run for run in gated if run.analysis), gated[0])
    rows = [row for row in run.metrics if row.get("gate_share")]
    epochs = [row["epoch"] for row in rows]
    with new_sheet(2, 1, 4.6) as (figure, (share, temperature)):
        layers = list(rows[0]["gate_share"])
        for (colour, line, marker), layer in zip(series(len(layers)), layers, strict=True):
            values = [100 * row["gate_share"][layer] for row in rows]
            style = {"color": colour, "linestyle": line, "marker": marker, "markersize": 4}
            share.plot(epochs, values, label=f"layer {layer}", **style)
        share.set(ylabel="non-linear nodes", ylim=(-3, 103))
        share.yaxis.set_major_formatter(PercentFormatter(decimals=0))
        at, tau = column(rows, "temperature")
        temperature.plot(at, tau, color=INK, marker="o", markersize=3)
        temperature.set(xlabel="epoch", ylabel="temperature τ", ylim=(0, 1.1 * max(tau, default=1.0)))
        kept = f"kept (epoch {run.record.best_epoch})"
        for axis in (share, temperature):
            axis.axvline(run.record.best_epoch, color=INK, linewidth=1, linestyle=":", label=kept)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        legend_above(share, 3)

        def words(run: RunMaterial, epoch: int) -> list[str]:
            row = next((row for row in rows if row["epoch"] == epoch), None)
            shares = {} if row is None else row["gate_share"]
            return [f"layer {layer}: {part:.1%} non-linear" for layer, part in shares.items()]

        see = gates_in_words(kept_shares(run))
        return finish(figure, "gates", "Have the gates collapsed?", see, epoch_spots(share, temperature, [run], words))
