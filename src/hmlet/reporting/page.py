"""The page: sections in the paper's order, each table beside the paper's numbers where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from hmlet.analysis.result import Analysis, SampledMethod
from hmlet.ranking.statistics import FLOOR_LABEL, TABLE, TITLES
from hmlet.reporting.figures import LOOKS, Drawn
from hmlet.reporting.material import Material, RunMaterial
from hmlet.reporting.paper import paper

METRIC_TITLES = {name: TITLES[name] for name in TABLE}
CENTRALITY_TITLES = {"degree": "degree", "pagerank": "PageRank", "betweenness": "betweenness", "closeness": "closeness"}
# A report may be opened anywhere: nothing is to be fetched, and nothing in it is a program.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MARKS = {"holds": "yes", "does not hold": "no", "too weak to say": "weak"}


class Cell(str):
    """Text that is HTML already."""


def render(material: Material, drawn: Sequence[Drawn]) -> str:
    """The whole page as one HTML text that needs no other file."""
    figures = {each.name: figure(each) for each in drawn}
    first = material.runs[0]
    title = f"{', '.join(run.label for run in material.runs)} on {first.data}"
    sections: list[tuple[str, list[str | None]]] = [
        (
            "Results",
            [figures.get("learning"), figures.get("variants"), scores_table(material), comparison_table(material)],
        ),
        *_gate_sections(material, figures),
        ("How this was made", [environment_table(material), *map(config, material.runs)]),
    ]
    return document(title, _lead(material), sections)


def document(title: str, lead: str, sections: Sequence[tuple[str, Sequence[str | None]]]) -> str:
    """A whole page of sections, each a grid of cards; a section without any is left out."""
    body = "\n".join(
        f'<section><h2>{escape(name)}</h2>\n<div class="grid">\n{"".join(filter(None, parts))}</div></section>'
        for name, parts in sections
        if any(parts)
    )
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<header><h1>{escape(title)}</h1>\n"
        f'<p class="lead">{escape(lead)}</p></header>\n{body}\n</body>\n</html>\n'
    )


def _lead(material: Material) -> str:
    run = material.analysed
    if run is None or run.analysis is None:
        if not any(each.variant for each in material.runs):
            return "What was trained, how it went, and what it is worth."
        return (
            "The runs' gates have not been analysed, so the page has no gate sections: `hmlet analyze RUN` adds them."
        )
    sizes = run.analysis.class_size
    shares = ", ".join(f"{name.upper()} {sizes[name].share:.1%}" for name in LOOKS)
    return (
        f"Of {run.analysis.nodes:,} users and items, by what the gates of {run.label} chose: {shares}. "
        "FNL nodes pass every gated layer by the non-linear branch, FL nodes none, PNL nodes some."
    )


def _gate_sections(material: Material, figures: dict[str, str]) -> list[tuple[str, list[str | None]]]:
    run = material.analysed
    over_time = [figures.get("gates")]
    if run is None or run.analysis is None:
        return [("The gates during training", over_time)]
    found = run.analysis
    return [
        ("What the gates chose", [share_table(run, found), size_table(run, found), *over_time, figures.get("density")]),
        ("Who chooses what", [figures.get("deciles"), figures.get("boxes")]),
        (
            "Does centrality explain the class?",
            [verdict_table(found), box_table(found), cosine_table(found), stability_table(found)],
        ),
    ]


# -- building blocks ----------------------------------------------------------------------------------------------


def figure(drawn: Drawn) -> str:
    return (
        f'<figure id="{drawn.name}"><h3>{escape(drawn.title)}</h3><p class="see">{escape(drawn.see)}</p>\n'
        f"{drawn.inline()}\n</figure>\n"
    )


def table(
    title: str,
    see: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    quoted: Sequence[int] = (),
    wide: bool = False,
    words: bool = False,
) -> str:
    """A card with a table, `wide` as the page or half of it; the columns numbered in `quoted` are the paper's.

    Where the cells are `words` instead of numbers, they stand to the left and break where they have to.
    """

    def line(tag: str, cells: Sequence[object]) -> str:
        found = (
            (' class="paper"' if at in quoted else "", cell if isinstance(cell, Cell) else escape(str(cell)))
            for at, cell in enumerate(cells)
        )
        return "".join(f"<{tag}{style}>{text}</{tag}>" for style, text in found)

    body = "".join(f"<tr>{line('td', row)}</tr>\n" for row in rows)
    return (
        f'<div class="card{" wide" if wide else ""}"><h3>{escape(title)}</h3><p class="see">{escape(see)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
        f"<table{' class=words' if words else ''}>"
        f"<thead><tr>{line('th', columns)}</tr></thead>\n<tbody>\n{body}</tbody></table></div></div>\n"
    )


def number(value: float | None, digits: int = 3) -> str:
    """So many significant digits, zeros at the end too: a column's numbers are of one length."""
    return "–" if value is None else f"{value:#.{digits}g}".rstrip(".")


def p_value(value: float | None) -> str:
    return "< 1e-300" if value is not None and value < 1e-300 else number(value)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


# -- tables -------------------------------------------------------------------------------------------------------


def scores_table(material: Material) -> str | None:
    """Each run's metrics on held-out data, beside the paper's main table, and the floor."""
    about = material.evaluation
    if about is None:
        return None
    runs = [(run, run.scores) for run in material.runs if run.scores]
    titles = [f"{name}@{about.k}" for name in METRIC_TITLES.values()]
    rows: list[list[object]] = [[run.label, *(f"{scores[name]:.4f}" for name in METRIC_TITLES)] for run, scores in runs]
    columns, quoted = ["model", *titles], range(0)
    if theirs := paper().main_table.get(material.runs[0].data):
        columns, quoted = [*columns, *(f"paper's {title}" for title in titles)], range(4, 7)
        for row, (run, _) in zip(rows, runs, strict=True):
            row += [f"{value:.4f}" for value in theirs[run.record.model]] if run.record.model in theirs else ["–"] * 3
    if material.floor is not None:
        own = [FLOOR_LABEL, *(f"{material.floor[name]:.4f}" for name in METRIC_TITLES)]
        rows.append([*own, *["–"] * (len(columns) - len(own))])
    see = f"Full ranking on {about.split}, {len(about.users):,} users, items of {about.mask} left out."
    return table("Accuracy", see, columns, rows, quoted, wide=bool(quoted))


def comparison_table(material: Material) -> str | None:
    """The best run against each other one: difference, p-values, effect size and interval."""
    found = material.comparison
    if found is None:
        return None
    rows = []
    for name, title in METRIC_TITLES.items():
        metric = found.metrics[name]
        for other, paired in metric.against.items():
            low, high = paired.interval
            rows.append(
                [
                    f"{title}: {metric.best} over {other}",
                    "–" if paired.difference_percent is None else f"{paired.difference_percent:+.2f} %",
                    p_value(paired.t_test_p),
                    p_value(paired.wilcoxon_p),
                    number(paired.effect_size),
                    f"{low:+.5f} … {high:+.5f}",
                ]
            )
    columns = ["best model", "difference", "p (t-test)", "p (Wilcoxon)", "effect size", "95 % interval"]
    return table("Is the best model better?", found.conclusion(), columns, rows, wide=True)


def share_table(run: RunMaterial, found: Analysis) -> str:
    layers = [str(layer) for layer in found.gated_layers]
    theirs = paper().gate_share_percent.get(run.variant or "")
    rows = []
    for layer in layers:
        quoted = theirs[int(layer) - 1] if theirs and int(layer) <= len(theirs) else None
        shares = [percent(side.gate_share[layer]) for side in (found, found.users, found.items)]
        mean = number(found.gate_probability[layer].mean)
        rows.append([f"layer {layer}", *shares, mean, "–" if quoted is None else f"{quoted:.1f}%"])
    see = "The share of nodes that choose the non-linear branch, and the mean probability behind the choices."
    columns = ["", "all", "users", "items", "probability", "paper (Amazon-Book)"]
    return table("Non-linear choices per layer", see, columns, rows, [5])


def size_table(run: RunMaterial, found: Analysis) -> str:
    theirs, data = paper().class_size_percent.get(run.data), run.data
    if theirs is None:
        theirs, data = paper().class_size_percent["amazon-book"], "Amazon-Book"
    rows = [
        [
            label,
            f"{found.class_size[name].nodes:,}",
            *(percent(side.class_size[name].share) for side in (found, found.users, found.items)),
            f"{theirs[name]:.1f}%",
        ]
        for name, (_, _, label) in LOOKS.items()
    ]
    see = "FNL: every gated layer non-linear. PNL: some. FL: none."
    return table("Class sizes", see, ["", "nodes", "all", "users", "items", f"paper ({data})"], rows, [5])


def verdict_table(found: Analysis) -> str:
    rows = []
    for side, label in ((found, ""), (found.users, "users: "), (found.items, "items: ")):
        for name, one in side.verdict.items():
            rows.append(
                [
                    label + CENTRALITY_TITLES[name],
                    Cell(f'<span class="{MARKS[one.verdict]}">{escape(one.verdict)}</span>'),
                    number(one.spearman.rho),
                    p_value(one.kruskal_wallis.p),
                    number(one.kruskal_wallis.epsilon_squared),
                    *(number(one.cliffs_delta[step]) for step in ("fnl_over_pnl", "pnl_over_fl")),
                ]
            )
    see = (
        "The paper's claim: FNL nodes are central, PNL nodes moderately, FL nodes hardly. "
        "It holds where p < 0.001, ρ ≥ 0.1 and each class lies above the next, δ ≥ 0.147."
    )
    return table(
        "Verdicts",
        see,
        ["", "verdict", "Spearman's ρ", "p (Kruskal–Wallis)", "ε²", "Cliff's δ, FNL over PNL", "δ, PNL over FL"],
        rows,
        wide=True,
    )


def box_table(found: Analysis) -> str:
    theirs, rows = paper().centrality_boxes, []
    for name, classes in found.centrality_boxes.items():
        for each, (_, _, label) in LOOKS.items():
            one = classes[each]
            quoted = number(theirs[name][each][2]) if name in theirs else "–"
            quartiles = "–" if not one.nodes else f"{number(one.lower_quartile)} … {number(one.upper_quartile)}"
            rows.append([f"{CENTRALITY_TITLES[name]}, {label}", number(one.median), quartiles, quoted])
    method = found.centrality_method
    see = "Medians of the boxes; the paper's are of Amazon-Book, so compare their order, not their size."
    if isinstance(method, SampledMethod):
        error = method.betweenness_relative_error.median
        see += f" From {method.sources:,} of {method.nodes:,} sources: "
        see += f"the typical standard error of a node's betweenness is {percent(error)}."
    return table("Centrality by class, in numbers", see, ["", "median", "quartiles", "paper's median"], rows, [3])


def cosine_table(found: Analysis) -> str:
    theirs, rows = paper().neighbour_cosine, []
    for each, (_, _, label) in LOOKS.items():
        one = found.neighbour_cosine[each]
        means = [number(one.mean, 4), number(theirs.mean[each], 4)]
        rows.append([label, *means, number(one.variance), number(theirs.variance[each])])
    see = "A low mean and a high variance mean neighbours of many kinds; the paper finds that for FNL."
    columns = ["", "mean", "paper (Amazon-Book)", "variance", "paper (Amazon-Book)"]
    return table("Cosine similarity to direct neighbours", see, columns, rows, [2, 4])


def stability_table(found: Analysis) -> str | None:
    one = found.stability
    if one is None:
        return None
    rows = [
        ["nodes that keep their class in all runs", percent(one.keep), percent(one.keep_by_chance)],
        ["agreement of two runs", percent(one.agreement), f"kappa {one.kappa:.2f}"],
        *(
            [f"{label} in one run, {label} in another", percent(one.stays[each]), ""]
            for each, (_, _, label) in LOOKS.items()
        ),
    ]
    see = f"{one.runs} runs that differ in the seed. Near the chance level, a class says little about a node."
    return table("Stability over seeds", see, ["", "share", "by chance"], rows)


def environment_table(material: Material) -> str:
    columns = ["", *(run.label for run in material.runs)]
    facts: list[tuple[str, list[object]]] = [
        ("data", [run.data for run in material.runs]),
        ("data fingerprint", [run.record.data.fingerprint[:12] for run in material.runs]),
        ("seed", [run.record.seed for run in material.runs]),
        ("best epoch", [f"{run.record.best_epoch} of {run.record.epochs}" for run in material.runs]),
        ("training time", [duration(run.record.timings.training_seconds) for run in material.runs]),
        *((name, [getattr(run.record.hardware, name) for run in material.runs]) for name in ("device", "threads")),
        *(
            (name, [getattr(run.record.versions, name) for run in material.runs])
            for name in ("hmlet", "torch", "python")
        ),
    ]
    return table("Environment", "From each run's run.json.", columns, [[name, *values] for name, values in facts])


def duration(value: float) -> str:
    """Seconds, with two digits where there are few."""
    return f"{value:,.0f} s" if value >= 10 else f"{value:#.2g} s"


def config(run: RunMaterial) -> str:
    return (
        f'<div class="card"><details><summary>Recipe of {escape(run.label)}</summary>'
        f"<pre>{escape(run.config)}</pre></details></div>\n"
    )
