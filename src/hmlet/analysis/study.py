"""The whole analysis of finished runs: `hmlet analyze`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from hmlet.analysis import gates
from hmlet.analysis.cached import cached_centralities
from hmlet.analysis.result import (
    ANALYSIS,
    ANALYSIS_VERSION,
    Analysis,
    CentralityMethod,
    DataIdentity,
    Findings,
    RelativeError,
    SampledMethod,
)
from hmlet.analysis.similarity import class_cosine, edge_cosine, neighbour_cosine
from hmlet.analysis.stability import stability
from hmlet.analysis.verdict import explain
from hmlet.data import Dataset
from hmlet.errors import ConfigError, RunError
from hmlet.graph import Graph, training_graph
from hmlet.graph.centrality import DAMPING, Centralities
from hmlet.models import DEFAULT
from hmlet.runs.choices import Choices
from hmlet.runs.directory import RunDirectory
from hmlet.system.progress import Advance, silent
from hmlet.system.spelling import option


def analyse(
    runs: Sequence[RunDirectory],
    data: Dataset,
    centrality: str = "exact",
    *,
    device: torch.device | str = "cpu",
    advance: Advance = silent,
) -> list[Analysis]:
    """What `analysed` finds, written into each run."""
    results = analysed(runs, data, centrality, device=device, advance=advance)
    for run, result in zip(runs, results, strict=True):
        keep(run, result)
    return results


def keep(run: RunDirectory, result: Analysis) -> None:
    """Write an analysis into its run."""
    with run.update():
        run.write_json(ANALYSIS, result.as_json())


def analysed(
    runs: Sequence[RunDirectory],
    data: Dataset,
    centrality: str = "exact",
    *,
    device: torch.device | str = "cpu",
    advance: Advance = silent,
) -> list[Analysis]:
    """One analysis per run; with several runs of one model and data set, their stability as well.

    `centrality` is exact, sampled:N (betweenness and closeness from N sources, with the error stated) or none.
    """
    samples = parse_centrality(centrality)
    graph = training_graph(data)
    choices = [read_choices(run, data, graph.n_nodes) for run in runs]
    if len({each.layers for each in choices}) > 1:
        raise RunError("the runs gate different layers, so their classes are not comparable", "analyse them separately")
    central = (
        None if samples == 0 else cached_centralities(data, graph, samples=samples, device=device, advance=advance)
    )
    results = [study(run, chosen, graph, central) for run, chosen in zip(runs, choices, strict=True)]
    if len(runs) > 1:
        agreed = stability(
            [each.classes for each in choices],
            seeds=[run.record.seed for run in runs],
        )
        results = [replace(result, stability=agreed) for result in results]
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
    raise ConfigError(
        f"{option('centrality')} is {text!r}", "use exact, none or sampled:N with N at least 2, as in sampled:1000"
    )


def read_choices(run: RunDirectory, data: Dataset, n_nodes: int) -> Choices:
    """What a run's gates chose; a run of other data or of a model without gates is refused."""
    if run.require_finished().record.data.fingerprint != data.fingerprint:
        raise RunError(f"{run.path} was not trained on {data.name}", "analyse runs of one data set at a time")
    choices = Choices.read(run, n_nodes)
    if choices is None:
        raise RunError(
            f"{run.path} is a run of {run.record.model}, which has no gates to analyse",
            f"analyse a run of a model with gates, such as {DEFAULT}",
        )
    return choices


def study(run: RunDirectory, choices: Choices, graph: Graph, central: Centralities | None) -> Analysis:
    """The analysis of one run."""
    cosine = neighbour_cosine(graph, edge_cosine(graph, *run.directions(run.factors())))
    measures: dict[str, gates.Values] = {"degree": graph.degree}
    if central is not None:
        measures |= {"pagerank": central.pagerank, "betweenness": central.betweenness, "closeness": central.closeness}

    def of(nodes: slice) -> Findings:
        part, each = choices.of(nodes), {name: values[nodes] for name, values in measures.items()}
        classes, count = part.classes, part.count
        return Findings(
            nodes=len(classes),
            gate_share=gates.gate_share(part),
            gate_probability=gates.gate_probability(part),
            class_size=gates.class_size(classes),
            degree_deciles=gates.degree_deciles(classes, each["degree"]),
            centrality_boxes={name: gates.boxes(classes, values) for name, values in each.items()},
            neighbour_cosine=class_cosine(classes, cosine[0][nodes], cosine[1][nodes]),
            verdict={name: explain(count, classes, values) for name, values in each.items()},
            degree_density=gates.degree_density(part, each["degree"]),
        )

    return Analysis(
        format_version=ANALYSIS_VERSION,
        model=run.record.model,
        seed=run.record.seed,
        data=DataIdentity(run.record.data.name, run.record.data.fingerprint),
        gated_layers=list(choices.layers),
        centrality_method=None if central is None else method(central),
        **vars(of(slice(None))),
        users=of(slice(0, graph.n_users)),
        items=of(slice(graph.n_users, None)),
    )


def method(central: Centralities) -> CentralityMethod:
    """How betweenness and closeness were computed; from a sample, with the typical standard error of a node's value."""
    sources, nodes = central.sources, len(central.degree)
    if central.exact:
        return CentralityMethod(True, sources, nodes, DAMPING)
    return SampledMethod(
        exact=False,
        sources=sources,
        nodes=nodes,
        pagerank_damping=DAMPING,
        betweenness_relative_error=_relative_error(central.betweenness, central.betweenness_error),
        betweenness_unknown_nodes=_unknown(central.betweenness),
        closeness_relative_error=_relative_error(central.closeness, central.closeness_error),
        closeness_unknown_nodes=_unknown(central.closeness),
    )


def _relative_error(value: gates.Values, error: gates.Values) -> RelativeError:
    some = np.isfinite(value) & np.isfinite(error) & (value > 0)
    relative = error[some] / value[some]
    if not len(relative):
        return RelativeError(None, None)
    return RelativeError(float(np.median(relative)), float(np.quantile(relative, 0.9)))


def _unknown(value: gates.Values) -> int:
    """How many nodes have no value."""
    return int((~np.isfinite(value)).sum())
