"""The report's page: the answer, then sections in the paper's order, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from hmlet.analysis.gates import Box
from hmlet.analysis.result import Analysis, SampledMethod
from hmlet.ranking.statistics import FLOOR_LABEL, TABLE, TITLES
from hmlet.reporting.answer import answer, gates_in_words, kept_shares
from hmlet.reporting.drawing import LOOKS, Drawn
from hmlet.reporting.layout import Card, Cell, document, duration, figure, number, p_value, percent, table
from hmlet.reporting.material import Material, RunMaterial
from hmlet.reporting.paper import paper

METRIC_TITLES = {name: TITLES[name] for name in TABLE}
CENTRALITY_TITLES = {"degree": "degree", "pagerank": "PageRank", "betweenness": "betweenness", "closeness": "closeness"}
MARKS = {"holds": "yes", "does not hold": "no", "too weak to say": "weak"}


def render(material: Material, drawn: Sequence[Drawn]) -> str:
    """The whole page as one HTML text that needs no other file."""
    figures = {each.name: figure(each) for each in drawn}
    first = material.runs[0]
    title = f"{', '.join(run.label for run in material.runs)} on {first.data}"
    sections: list[tuple[str, list[Card | None]]] = [
        ("Results", [comparison_table(material), figures.get("learning"), figures.get("variants")]),
        *_gate_sections(material, figures),
        ("How this was made", [environment_table(material), recipes(material)]),
    ]
    return document(title, [_answer(material), figures.get("winner")], sections)


def _answer(material: Material) -> Card:
    """The card that leads the page: the answer in words, and the scores behind it."""
    first = answer(material) or "These runs have no test scores."
    scores = scores_table(material)
    words = escape(first).replace(" %", "&nbsp;%")  # a number and its sign stay in one line
    html = f'<p class="answer">{words}</p><p class="see">{escape(_about_gates(material))}</p>'
    return Card(html + ("" if scores is None else scores.html), kind="lead")


def _about_gates(material: Material) -> str:
    gated = next((run for run in [material.analysed, *material.runs] if run and kept_shares(run)), None)
    if gated is None:
        return ""
    words = f"{gated.label}: {gates_in_words(kept_shares(gated))}"
    return words if gated.analysis else f"{words} Run `hmlet analyze RUN` to add the gate sections to this page."


def _gate_sections(material: Material, figures: Mapping[str, Card]) -> list[tuple[str, list[Card | None]]]:
    run = material.analysed
    over_time = figures.get("gates")
    if run is None or run.analysis is None:
        return [("The gates during training", [over_time])]
    found = run.analysis
    return [
        ("What the gates chose", [share_table(run, found), size_table(run, found), over_time, figures.get("density")]),
        ("Who chooses what", [figures.get("deciles"), figures.get("boxes")]),
        (
            "Does centrality explain the class?",
            [verdict_table(found), box_table(found), cosine_table(found), stability_table(found)],
        ),
    ]


# -- tables -------------------------------------------------------------------------------------------------------


def scores_table(material: Material) -> Card | None:
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
    see = f"Full ranking on {about.split}, {len(about.users):,} users, {about.mask} items excluded."
    return table("Accuracy", see, columns, rows, quoted)


def comparison_table(material: Material) -> Card | None:
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


def share_table(run: RunMaterial, found: Analysis) -> Card:
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


def size_table(run: RunMaterial, found: Analysis) -> Card:
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


def verdict_table(found: Analysis) -> Card:
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


def box_table(found: Analysis) -> Card:
    theirs = paper().centrality_boxes
    rows: list[list[object]] = []
    for name, classes in found.centrality_boxes.items():
        quoted = [number(theirs[name][each][2]) if name in theirs else "–" for each in LOOKS]
        rows.append([CENTRALITY_TITLES[name], *(_median(classes[each]) for each in LOOKS), *quoted])
    method = found.centrality_method
    see = "Medians, with quartiles below. The paper's are for Amazon-Book: compare their order, not their size."
    if isinstance(method, SampledMethod):
        error = method.betweenness_relative_error.median
        see += f" Estimated from {method.sources:,} of {method.nodes:,} sources: "
        see += f"the median standard error of a node's betweenness is {percent(error)}."
    labels = [label for _, _, label in LOOKS.values()]
    columns = ["", *labels, *(f"paper's {label}" for label in labels)]
    return table("Centrality by class, in numbers", see, columns, rows, range(4, 7), wide=True)


def _median(box: Box) -> Cell:
    if not box.nodes:
        return Cell("–")
    quartiles = f"{number(box.lower_quartile)} – {number(box.upper_quartile)}"
    return Cell(f'{number(box.median)}<br><span class="range">{quartiles}</span>')


def cosine_table(found: Analysis) -> Card:
    theirs, rows = paper().neighbour_cosine, []
    for each, (_, _, label) in LOOKS.items():
        one = found.neighbour_cosine[each]
        means = [number(one.mean, 4), number(theirs.mean[each], 4)]
        rows.append([label, *means, number(one.variance), number(theirs.variance[each])])
    see = "A low mean and a high variance mean neighbours of many kinds; the paper finds that for FNL."
    columns = ["", "mean", "paper (Amazon-Book)", "variance", "paper (Amazon-Book)"]
    return table("Cosine similarity to direct neighbours", see, columns, rows, [2, 4])


def stability_table(found: Analysis) -> Card | None:
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


def environment_table(material: Material) -> Card:
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
    rows = [[name, *values] for name, values in facts]
    return table("Environment", "From each run's run.json.", columns, rows, wide=True, listed=len(columns) > 2)


def recipes(material: Material) -> Card:
    listed = "".join(
        f"<details><summary>Recipe of {escape(run.label)}</summary><pre>{escape(run.config)}</pre></details>"
        for run in material.runs
    )
    return Card(listed, wide=True)
