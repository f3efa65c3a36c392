"""The figures of a report about the results, and the list of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

from hmlet.models import FLOOR
from hmlet.ranking.statistics import FLOOR_LABEL, TITLES, Paired
from hmlet.reporting.drawing import BLUE, GREY, INK, Drawn, Spot, finish, legend_above, new_sheet, series
from hmlet.reporting.epochs import column, epoch_spots, validated
from hmlet.reporting.gate_figures import boxes, deciles, density, gates_over_time
from hmlet.reporting.material import VARIANT_NAMES, Material, RunMaterial
from hmlet.reporting.paper import paper

CLOSED_FORM_EPOCHS = 1


def draw_all(material: Material) -> list[Drawn]:
    """Every figure that the material has numbers for, in the page's order."""
    every = (winner, learning, variants, deciles, boxes, density, gates_over_time)
    return [drawn for draw in every if (drawn := draw(material))]


def winner(material: Material) -> Drawn | None:
    """Test NDCG of every model and of the floor, and below it the winner's lead with its paired interval."""
    about = material.evaluation
    if about is None:
        return None
    means, leads = _standings(material), _leads(material)
    title, best = f"{TITLES['ndcg']}@{about.k}", next(iter(means))
    heights = [0.35 * len(means) + 0.9] + ([0.35 * len(leads) + 1.0] if leads else [])
    with new_sheet(len(heights), 1, sum(heights), gridspec_kw={"height_ratios": heights}) as (figure, axes):
        spots = _bars(axes[0], means, f"{about.split} {title}", leads)
        see = f"Mean {title} over {len(about.users):,} users."
        if leads:
            spots += _intervals(axes[1], leads)
            axes[1].set_xlabel(f"lead of {best} in {title}, %")
            see += " Below: the winner's lead, paired user by user, with its 95 % interval. "
            see += "An interval that excludes 0 is a significant difference."
        return finish(figure, "winner", "Who wins, by how much, and how sure", see, spots)


def _standings(material: Material) -> dict[str, float]:
    """Test NDCG of each model, best first, and of the floor."""
    if material.comparison is not None:
        means = {label: spread.mean for label, spread in material.comparison.metrics["ndcg"].models.items()}
    else:
        means = {run.label: run.scores["ndcg"] for run in material.runs if run.scores}
    if material.floor is not None:
        means[FLOOR_LABEL] = material.floor["ndcg"]
    return dict(sorted(means.items(), key=lambda each: -each[1]))


def _leads(material: Material) -> dict[str, Paired]:
    """The best model against each other one; against the floor only if there is no other."""
    if material.comparison is None:
        return {}
    against = material.comparison.metrics["ndcg"].against
    found = {label: paired for label, paired in against.items() if paired.interval_percent is not None}
    return {label: paired for label, paired in found.items() if label != FLOOR} or found


def _bars(axis: Any, means: Mapping[str, float], label: str, leads: Mapping[str, Paired]) -> list[Spot]:
    looks = [(BLUE, "//") if at == 0 else (GREY, "") for at in range(len(means))]
    for at, (value, (colour, hatch)) in enumerate(zip(means.values(), looks, strict=True)):
        bar = axis.barh(at, value, 0.62, color=colour, hatch=hatch, edgecolor=INK, linewidth=0.6)
        axis.bar_label(bar, fmt="%.4f", fontsize=9, padding=3)
    axis.set_yticks(range(len(means)), list(means))
    axis.set(xlabel=label, xlim=(0, 1.15 * max(*means.values(), 1e-9)), ylim=(len(means) - 0.5, -0.5))
    axis.grid(axis="y", visible=False)
    best = next(iter(means))
    return [
        Spot(
            axis, axis.get_xlim(), (at - 0.5, at + 0.5), [name, f"{label} {value:.4f}", *_behind(best, leads.get(name))]
        )
        for at, (name, value) in enumerate(means.items())
    ]


def _behind(best: str, lead: Paired | None) -> list[str]:
    return [] if lead is None else [f"{best} leads by {lead.difference:.4f}", f"paired t-test p = {lead.t_test_p:.2g}"]


def _intervals(axis: Any, leads: Mapping[str, Paired]) -> list[Spot]:
    spots = []
    axis.axvline(0, color=INK, linewidth=1, linestyle="--")
    for at, (name, lead) in enumerate(leads.items()):
        assert lead.difference_percent is not None
        assert lead.interval_percent is not None
        value, (low, high) = lead.difference_percent, lead.interval_percent
        axis.errorbar(
            value,
            at,
            xerr=[[value - low], [high - value]],
            color=BLUE,
            marker="D",
            markersize=6,
            capsize=4,
            linewidth=1.8,
        )
        text = [f"over {name}: {value:+.2f} %", f"95 % interval {low:+.2f} to {high:+.2f} %"]
        spots.append((at, [*text, f"paired t-test p = {lead.t_test_p:.2g}"]))
    axis.set_yticks(range(len(leads)), [f"over {name}" for name in leads])
    axis.set(ylim=(len(leads) - 0.5, -0.5))
    axis.margins(x=0.12)
    axis.grid(axis="y", visible=False)
    return [Spot(axis, axis.get_xlim(), (at - 0.5, at + 0.5), lines) for at, lines in spots]


def standings(rows: Sequence[tuple[str, float, tuple[float, float]]], label: str, see: str) -> Drawn:
    """Models from best to worst, each a point with its interval: (model, value, interval). The first one leads."""
    with new_sheet(height=1.0 + 0.3 * len(rows)) as (figure, (axis,)):
        axis.axvline(rows[0][1], color=BLUE, linewidth=1, linestyle="--")
        for at, (_, value, (low, high)) in enumerate(rows):
            colour, marker = (BLUE, "D") if at == 0 else (INK, "o")
            error = [[max(0.0, value - low)], [max(0.0, high - value)]]
            axis.errorbar(value, at, xerr=error, color=colour, marker=marker, markersize=6, capsize=3, linewidth=1.6)
        axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axis.set(xlabel=label, ylim=(len(rows) - 0.5, -0.5))
        axis.margins(x=0.05)
        axis.grid(axis="y", visible=False)
        spots = [
            Spot(
                axis,
                axis.get_xlim(),
                (at - 0.5, at + 0.5),
                [name, f"{label} {value:.4f}", f"95 % interval {low:.4f} to {high:.4f}"],
            )
            for at, (name, value, (low, high)) in enumerate(rows)
        ]
        return finish(figure, "standings", "Models side by side", see, spots)


def learning(material: Material) -> Drawn | None:
    """Loss and validation NDCG over the epochs, one line per run; a closed form is a level."""
    runs = [run for run in material.runs if run.metrics]
    if not runs:
        return None
    several = max(run.record.epochs for run in runs) > CLOSED_FORM_EPOCHS
    looks = list(zip(series(len(runs)), runs, strict=True))
    with new_sheet(2, 1, 5.0) as (figure, (loss, ndcg)):
        ndcg.sharex(loss)
        for (colour, line, marker), run in looks:
            epochs, values = column(validated(run), "ndcg")
            if several and run.record.epochs == CLOSED_FORM_EPOCHS:
                loss.plot([], [], color=colour, linestyle=line, label=f"{run.label} (no training)")
                for value in values:
                    ndcg.axhline(value, color=colour, linestyle=line)
                continue
            loss.plot(*column(run.metrics, "loss"), color=colour, linestyle=line, label=run.label)
            ndcg.plot(epochs, values, color=colour, linestyle=line, marker=marker, markersize=3.5)
            kept = [each for each in zip(epochs, values, strict=True) if each[0] == run.record.best_epoch]
            for at, value in kept:
                ndcg.plot(at, value, color=colour, marker="o", markersize=10, markerfacecolor="none", linestyle="none")
        loss.set(ylabel="training loss")
        ndcg.set(xlabel="epoch", ylabel="validation NDCG@20")
        for axis in (loss, ndcg):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        legend_above(loss, 2)
        see = (
            "A ring marks the epoch whose weights the run keeps; all other numbers on this page belong to it. "
            "If the curve still rises at the end, train for more epochs."
        )
        return finish(figure, "learning", "Learning curves", see, epoch_spots(loss, ndcg, runs, _learned))


def _learned(run: RunMaterial, epoch: int) -> list[str]:
    row = next((row for row in validated(run) if row["epoch"] == epoch), None)
    return [] if row is None else [f"{run.label}: NDCG {row['ndcg']:.4f}, loss {row['loss']:.3g}"]


def variants(material: Material) -> Drawn | None:
    """Test NDCG@20 of the HMLET variants, beside the paper's bars for the same data."""
    ours = {run.variant: run.scores["ndcg"] for run in material.runs if run.variant and run.scores}
    theirs = paper().variants_ndcg.get(material.runs[0].data, {})
    if not ours or len(ours) + len(theirs) < 2:  # one bar shows nothing
        return None
    spots = []
    with new_sheet(height=5.0) as (figure, (axis,)):
        for offset, values, colour, hatch, label in (
            (-0.2, ours, BLUE, "//", "ours"),
            (0.2, theirs, GREY, "", "paper"),
        ):
            shift = offset if theirs else 0.0
            at = {name: place + shift for place, name in enumerate(VARIANT_NAMES) if name in values}
            heights = [values[name] for name in at]
            if heights:
                style = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.6}
                bars = axis.bar(list(at.values()), heights, 0.36, label=label, **style)
                axis.bar_label(bars, fmt="%.4f", fontsize=8, padding=2)
            for name, x in at.items():
                lines = [f"{name.capitalize()}, {label}", f"test NDCG@20 {values[name]:.4f}"]
                spots.append(Spot(axis, (x - 0.18, x + 0.18), None, lines))
        axis.set_xticks(range(len(VARIANT_NAMES)), [name.capitalize() for name in VARIANT_NAMES])
        axis.set(ylabel="test NDCG@20", xlabel="HMLET variant (which layers are gated)", xlim=(-0.6, 3.6))
        axis.grid(axis="x", visible=False)
        legend_above(axis, 2)
        see = "The highest bar shows the best place for the gates. The paper found End (the last two layers) best."
        return finish(figure, "variants", "Where to put the gates", see, spots)
