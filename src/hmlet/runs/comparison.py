"""Finished runs side by side: which of them are one model, and how the models differ."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch

from hmlet.errors import ConfigError, DataError, RunError
from hmlet.graph import training_graph
from hmlet.models import FLOOR, MODELS, Solved, build
from hmlet.ranking.evaluation import evaluate
from hmlet.ranking.statistics import Comparison, compare
from hmlet.runs.finished import FinishedRun
from hmlet.system.progress import Advance, silent

log = logging.getLogger(__name__)


def compare_runs(
    runs: Sequence[FinishedRun],
    split: str = "test",
    mask: str = "train",
    k: int = 20,
    advance: Advance = silent,
) -> Comparison:
    """Finished runs against each other and the floor; those that differ only in their seed count as one model."""
    if not runs:
        raise ConfigError("nothing to compare", "name at least two runs")
    first = runs[0].record.data
    for run in runs[1:]:
        data = run.record.data
        if data.fingerprint != first.fingerprint:
            raise DataError(
                f"{runs[0].directory.path} was trained on {first.name} ({first.fingerprint[:12]}) "
                f"and {run.directory.path} on {data.name} ({data.fingerprint[:12]})",
                "compare runs on one data set and split",
            )
    evaluations = []
    for done, run in enumerate(runs):
        advance(done, len(runs))
        evaluations.append(run.evaluate(split, mask, k))
    advance(len(runs), len(runs))
    recipes = [run.recipe.model_copy(update={"seed": 0}).to_toml() for run in runs]
    described = [
        (run.recipe.model.name, recipe, str(run.directory.path)) for run, recipe in zip(runs, recipes, strict=True)
    ]
    groups = label_runs(described)
    comparison = compare({label: [evaluations[at] for at in group] for label, group in groups.items()})
    return replace(comparison, floor=floor_of(runs, split, mask, k))


def floor_of(
    runs: Sequence[FinishedRun], split: str = "test", mask: str = "train", k: int = 20
) -> dict[str, float] | None:
    """The metrics of the simplest model, computed on the runs' data; None if one of the runs is that model."""
    if any(run.recipe.model.name == FLOOR for run in runs):
        return None
    try:
        data = runs[0].data
    except RunError as error:  # stored evaluations can be compared without the data
        log.warning("%s, the floor, could not be computed: %s", FLOOR, error)
        return None
    model = build(MODELS[FLOOR].Config(name=FLOOR), training_graph(data), torch.Generator())
    assert isinstance(model, Solved)
    with torch.no_grad():
        model.solve(data.csr("train"))
        factors_NF = model.readout([model.embedding]).factors()
    found = evaluate((factors_NF[: data.n_users], factors_NF[data.n_users :]), data, split, mask, k)
    return {name: found.metrics[name] for name in found.per_user}


def label_runs(runs: Sequence[tuple[str, str, str]]) -> dict[str, list[int]]:
    """Which runs belong together, from each run's (model, recipe without its seed, path): label -> positions.

    Runs of one recipe are seeds of one thing. Where two recipes share a model, or all runs share a recipe, the model's
    name would not tell them apart, and the end of the run's path is added.
    """
    recipes: dict[tuple[str, str], list[int]] = {}
    for at, (model, recipe, _) in enumerate(runs):
        recipes.setdefault((model, recipe), []).append(at)
    groups = list(recipes.values()) if len(recipes) > 1 else [[at] for at in range(len(runs))]
    ends = _ends([path for _, _, path in runs])
    names = [runs[group[0]][0] for group in groups]
    labels: dict[str, list[int]] = {}
    for name, group in zip(names, groups, strict=True):
        label = name if names.count(name) == 1 else f"{name} ({ends[group[0]]})"
        again = sum(known == label or known.startswith(f"{label} #") for known in labels)
        labels[f"{label} #{again + 1}" if again else label] = group
    return labels


def _ends(paths: Sequence[str]) -> list[str]:
    """The last parts of each path, as few as tell different paths apart."""
    parts = [Path(path).parts for path in paths]
    enough = next(few for few in count(1) if len({each[-few:] for each in parts}) == len(set(parts)))
    return [str(Path(*each[-enough:])) for each in parts]
