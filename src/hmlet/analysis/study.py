"""The whole analysis of a finished run, as one JSON object; `hmlet analyze` writes it into the run as analysis.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hmlet.analysis import gates
from hmlet.analysis.cached import cached_centralities
from hmlet.analysis.similarity import class_cosine, edge_cosine, neighbour_cosine
from hmlet.analysis.stability import stability
from hmlet.analysis.verdict import explain
from hmlet.data import Dataset
from hmlet.errors import ConfigError, RunError
from hmlet.graph import Graph, training_graph
from hmlet.graph.centrality import DAMPING, Centralities
from hmlet.runs.choices import Choices
from hmlet.runs.directory import RunDirectory
from hmlet.system.progress import Advance, silent

FILE = "analysis.json"
FORMAT_VERSION = 1
CENTRALITIES = ("degree", "pagerank", "betweenness", "closeness")


def analyse(
    runs: Sequence[RunDirectory], data: Dataset, centrality: str = "exact", **options: Any
) -> list[dict[str, Any]]:
    """What `analysed` finds, which also has the options, written into each run."""
    results = analysed(runs, data, centrality, **options)
    for run, result in zip(runs, results, strict=True):
        keep(run, result)
    return results


def keep(run: RunDirectory, result: dict[str, Any]) -> None:
    """Write an analysis into its run."""
    with run.update():
        run.write_json(FILE, result)


def analysed(
    runs: Sequence[RunDirectory],
    data: Dataset,
    centrality: str = "exact",
    *,
    device: torch.device | str = "cpu",
    advance: Advance = silent,
) -> list[dict[str, Any]]:
    """One analysis a run; with several runs of one model and data set, their stability as well.

    `centrality` is exact, sampled:N (betweenness and closeness from N sources, with the error stated) or none.
    """
    samples = parse_centrality(centrality)
    graph = training_graph(data)
    choices = [read_choices(run, data, graph.n_nodes) for run in runs]
    if len({each.layers for each in choices}) > 1:
        raise RunError("the runs gate different layers, so their classes mean different things", "analyse them apart")
    central = (
        None if samples == 0 else cached_centralities(data, graph, samples=samples, device=device, advance=advance)
    )
    results = [study(run, chosen, graph, central) for run, chosen in zip(runs, choices, strict=True)]
    if len(runs) > 1:
        agreed = stability([each.classes for each in choices])
        agreed["seeds"] = [run.record.seed for run in runs]
        results = [{**result, "stability": agreed} for result in results]
    return results


def parse_centrality(text: str) -> int | None:
    """How many sources to sample: None for all of them (exact), 0 for no path centralities at all."""
    if text == "exact":
        return None
    if text == "none":
        return 0
    kind, _, number = text.partition(":")
    if kind == "sampled" and number.isdigit() and int(number) >= 2:
        return int(number)
    raise ConfigError(f"--centrality is {text!r}", "use exact, none or sampled:N with N at least 2, as in sampled:1000")


def read_choices(run: RunDirectory, data: Dataset, n_nodes: int) -> Choices:
    """What a run's gates chose; a run of other data or of a model without gates is refused."""
    if run.require_finished().record.data.fingerprint != data.fingerprint:
        raise RunError(
            f"{run.path} was trained on other data than {data.name}", "analyse runs of one data set at a time"
        )
    choices = Choices.read(run, n_nodes)
    if choices is None:
        raise RunError(
            f"{run.path} is a run of {run.record.model}, which has no gates to analyse",
            "analyse a run of hmlet-end, hmlet-middle, hmlet-front or hmlet-all",
        )
    return choices


def study(run: RunDirectory, choices: Choices, graph: Graph, central: Centralities | None) -> dict[str, Any]:
    """The analysis of one run: of all nodes at the top, and the same of `users` and `items` apart."""
    cosine = neighbour_cosine(graph, edge_cosine(graph, *run.factors()))
    measures: dict[str, gates.Values] = {"degree": graph.degree}
    if central is not None:
        measures.update({name: getattr(central, name) for name in CENTRALITIES[1:]})

    def of(nodes: slice) -> dict[str, Any]:
        part, each = choices.of(nodes), {name: values[nodes] for name, values in measures.items()}
        classes, count = part.classes, part.count
        return {
            "nodes": len(classes),
            "gate_share": gates.gate_share(part),
            "gate_probability": gates.gate_probability(part),
            "class_size": gates.class_size(classes),
            "degree_deciles": gates.degree_deciles(classes, each["degree"]),
            "centrality_boxes": {name: gates.boxes(classes, values) for name, values in each.items()},
            "neighbour_cosine": class_cosine(classes, cosine[0][nodes], cosine[1][nodes]),
            "verdict": {name: explain(count, classes, values) for name, values in each.items()},
            "degree_density": gates.degree_density(part, each["degree"]),
        }

    return {
        "format_version": FORMAT_VERSION,
        "model": run.record.model,
        "seed": run.record.seed,
        "data": {"name": run.record.data.name, "fingerprint": run.record.data.fingerprint},
        "gated_layers": list(choices.layers),
        "centrality_method": None if central is None else method(central),
        **of(slice(None)),
        "users": of(slice(0, graph.n_users)),
        "items": of(slice(graph.n_users, None)),
    }


def method(central: Centralities) -> dict[str, Any]:
    """How betweenness and closeness were computed; from a sample, with the typical standard error of a node's value."""
    about: dict[str, Any] = {
        "exact": central.exact,
        "sources": central.sources,
        "nodes": len(central.degree),
        "pagerank_damping": DAMPING,
    }
    if not central.exact:
        for name in ("betweenness", "closeness"):
            value, error = getattr(central, name), getattr(central, f"{name}_error")
            some = np.isfinite(value) & np.isfinite(error) & (value > 0)
            relative = error[some] / value[some]
            about[f"{name}_relative_error"] = {
                "median": float(np.median(relative)) if len(relative) else None,
                "ninetieth_percentile": float(np.quantile(relative, 0.9)) if len(relative) else None,
            }
            about[f"{name}_unknown_nodes"] = int((~np.isfinite(value)).sum())
    return about
