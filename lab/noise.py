"""How much fresh Gumbel noise in the gates moves a finished model's ranking, and whether another seed chooses alike.

The paper says neither. noisy.json has the authors' way to rank beside the argmax, classes.parquet each node's class.
"""

from __future__ import annotations

from typing import Literal, TypedDict, cast

import numpy as np
import pyarrow as pa
import torch

from hmlet.analysis.stability import Stability
from hmlet.analysis.stability import stability as stability_of
from hmlet.analysis.study import read_choices
from hmlet.data import Dataset
from hmlet.graph import training_graph
from hmlet.models import Gated, Scores
from hmlet.ranking.evaluation import evaluate
from hmlet.reproduction.cells import OURS
from hmlet.reproduction.plan import Planned
from hmlet.reproduction.records import TEST_K, TESTED, Record
from hmlet.reproduction.tables import Tables
from hmlet.runs.choices import Codes
from hmlet.runs.directory import RunDirectory
from hmlet.runs.loading import load_model
from hmlet.runs.locking import locked
from hmlet.system.tables import Column, read_table
from hmlet.training.steps import make_operator

DRAWS = 5
NOISY, CLASSES = "noisy.json", "classes.parquet"


class NoisyRanking(TypedDict):
    """noisy.json: the test metrics of one trained model, ranked with fresh noise in its gates at each draw."""

    gate_ranking: Literal["noisy"]
    draws: int
    mask: str
    k: int
    metrics: dict[str, list[float]]  # metric -> one value per draw


@torch.no_grad()
def noisy_ranking(run: RunDirectory, data: Dataset, device: torch.device, draws: int = DRAWS) -> NoisyRanking:
    """Test metrics of one trained model with gates under `draws` draws of noise, at the best epoch's temperature."""
    recipe = run.recipe()
    graph = training_graph(data)
    model, scores = load_model(run).to(device), Scores.of_run(recipe.scoring, run.factors()[1]).to(device)
    operator = make_operator(recipe, model, graph, device)
    assert isinstance(model, Gated)
    noise = torch.Generator(device).manual_seed(recipe.seed)
    found: dict[str, list[float]] = {name: [] for name in TESTED}
    for _ in range(draws):
        how = model.noisy_pass(run.record.best_epoch - 1, noise)
        factors_NF = scores(model.propagate(operator, how)).factors().float()
        users_UF, items_IF = factors_NF.split([data.n_users, data.n_items])
        factors = scores.of_users(users_UF), scores.of_items(items_IF)
        metrics = evaluate(factors, data, "test", "train", TEST_K).metrics
        for name in TESTED:
            found[name].append(metrics[name])
    return {"gate_ranking": "noisy", "draws": draws, "mask": "train", "k": TEST_K, "metrics": found}


def record_noise(run: RunDirectory, planned: Planned, data: Dataset, device: torch.device) -> None:
    """Write both files of a run with gates that is in one of the paper's tables."""
    if planned.gated:
        classes = read_choices(run, data, data.n_users + data.n_items).classes
        with locked(run.path):
            run.write_table(CLASSES, pa.table({"class": classes}))
            run.write_json(NOISY, noisy_ranking(run, data, device))


def noise(record: Record) -> NoisyRanking | None:
    """What was recorded of a run ranked with noise."""
    run = record.run
    return cast("NoisyRanking", run.content(NOISY).json_object()) if run.has(NOISY) else None


def classes(record: Record) -> Codes | None:
    """Each node's class, as `hmlet analyze` numbers them."""
    if not record.run.has(CLASSES):
        return None
    table = read_table(record.run.content(CLASSES), {"class": Column((pa.int8(),))})
    return np.asarray(table["class"].to_numpy(), dtype=np.int8)


def stability(tables: Tables) -> Stability | None:
    """How many nodes keep their class over the seeds; None for fewer than two."""
    row = tables.main.get(OURS)
    found = {each.recipe.seed: chosen for each in (row.records if row else ()) if (chosen := classes(each)) is not None}
    return stability_of(list(found.values()), seeds=list(found)) if len(found) > 1 else None
