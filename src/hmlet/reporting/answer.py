"""What a report says in words: who wins and how sure that is, and whether a gate has collapsed."""

from __future__ import annotations

from collections.abc import Mapping

from hmlet.models import FLOOR
from hmlet.ranking.statistics import SIGNIFICANT, TITLES, Comparison
from hmlet.reporting.material import Material, RunMaterial

COLLAPSED = 0.99  # of the nodes take the same branch


def answer(material: Material) -> str | None:
    """Who wins, by how much, and how sure that is; None without test scores."""
    about = material.evaluation
    if about is None:
        return None
    title = f"{TITLES['ndcg']}@{about.k}"
    if material.comparison is None:
        run = material.runs[0]
        assert run.scores is not None
        first = f"{run.label} reaches a {about.split} {title} of {run.scores['ndcg']:.4f}."
        return first + _floor(run.scores["ndcg"], material, "It is")
    metric = material.comparison.metrics["ndcg"]
    return _winner(material.comparison, title) + _floor(metric.models[metric.best].mean, material, f"{metric.best} is")


def _winner(comparison: Comparison, title: str) -> str:
    metric = comparison.metrics["ndcg"]
    best, other = metric.best, metric.baseline
    lead, means = metric.against[other], metric.models
    if lead.difference == 0.0:
        return f"{best} and {other} tie at a {comparison.split} {title} of {means[best].mean:.4f}."
    amount, interval = f"{lead.difference:.4f}", "{:+.4f} to {:+.4f}".format(*lead.interval)
    if lead.interval_percent is not None:
        amount, interval = f"{lead.difference_percent:.2f} %", "{:+.2f} % to {:+.2f} %".format(*lead.interval_percent)
    sure = f"95 % interval {interval}, paired t-test p = {lead.t_test_p:.2g}"
    if lead.t_test_p < SIGNIFICANT:
        score = f"{comparison.split} {title} of {means[best].mean:.4f}"
        return f"{best} wins: its {score} is {amount} above {other}'s ({sure})."
    return (
        f"{best} and {other} are statistically indistinguishable: {comparison.split} {title} "
        f"{means[best].mean:.4f} against {means[other].mean:.4f}, a lead of {amount} that may be chance ({sure})."
    )


def _floor(best: float, material: Material, subject: str) -> str:
    floor = _floor_mean(material)
    if floor is None:
        return ""
    if best <= floor:
        return f" No model beats {FLOOR}, the floor ({floor:.4f})."
    by = f"{best / floor:.1f} times" if floor else "above"
    return f" {subject} {by} {FLOOR}, the floor ({floor:.4f})."


def _floor_mean(material: Material) -> float | None:
    """Popularity's NDCG, whether it is a run of the page or was computed for it; None on a page about it alone."""
    if material.floor is not None:
        return material.floor["ndcg"]
    floors = [run.scores["ndcg"] for run in material.runs if run.scores and run.record.model == FLOOR]
    return floors[0] if floors and len(material.runs) > 1 else None


def kept_shares(run: RunMaterial) -> dict[str, float]:
    """Per gated layer, the share of nodes on the non-linear branch in the weights that the run keeps."""
    if run.analysis is not None:
        return run.analysis.gate_share
    rows = [row for row in run.metrics if row["epoch"] == run.record.best_epoch]
    return next((row["gate_share"] for row in rows if row.get("gate_share")), {})


def gates_in_words(shares: Mapping[str, float]) -> str:
    """Which gates have collapsed, layer by layer."""
    return " ".join(_gate_in_words(layer, share) for layer, share in shares.items())


def _gate_in_words(layer: str, share: float) -> str:
    for branch, part in (("non-linear", share), ("linear", 1 - share)):
        if part >= COLLAPSED:
            who = "every node takes" if part == 1.0 else f"{part:.1%} of the nodes take"
            return f"The gate of layer {layer} has collapsed: {who} the {branch} branch."
    return f"The gate of layer {layer} chooses per node: {share:.1%} take the non-linear branch."
