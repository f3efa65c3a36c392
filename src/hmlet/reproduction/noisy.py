"""How much fresh Gumbel noise in the gates moves a finished model's ranking: the authors' way beside the argmax."""

from __future__ import annotations

import torch

from hmlet.data import Dataset
from hmlet.graph import training_graph
from hmlet.models import Gated, Scores
from hmlet.ranking.evaluation import evaluate
from hmlet.reproduction.records import TEST_K, TESTED, NoisyRanking
from hmlet.runs.directory import RunDirectory
from hmlet.runs.loading import load_model
from hmlet.training.steps import make_operator

DRAWS = 5


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
