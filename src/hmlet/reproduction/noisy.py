"""How much fresh Gumbel noise in the gates moves a finished model's ranking: the authors' way beside the argmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmlet.config import HmletConfig
from hmlet.data import Dataset
from hmlet.graph import training_graph
from hmlet.models import build
from hmlet.models.schedule import ranking_pass
from hmlet.ranking.evaluation import evaluate
from hmlet.reproduction.records import TESTED, K
from hmlet.runs.directory import RunDirectory
from hmlet.training.steps import make_operator

DRAWS = 5


@torch.no_grad()
def noisy_ranking(run: RunDirectory, data: Dataset, device: torch.device, draws: int = DRAWS) -> dict[str, Any]:
    """Test metrics of one trained HMLET under `draws` draws of noise, at the best epoch's temperature."""
    recipe = run.recipe()
    assert isinstance(recipe.model, HmletConfig)
    graph = training_graph(data)
    model = build(recipe.model, graph, torch.Generator().manual_seed(0)).to(device).eval()
    model.load_state_dict(run.weights())
    operator = make_operator(recipe, model, graph, device)
    config = recipe.model.model_copy(update={"gate_ranking": "noisy"})
    noise = torch.Generator(device).manual_seed(recipe.seed)
    found: dict[str, list[float]] = {name: [] for name in TESTED}
    for _ in range(draws):
        how = ranking_pass(config, run.record["best_epoch"] - 1, noise)
        factors_NF: Tensor = model.readout(model.propagate(operator, how)).float()
        metrics = evaluate((factors_NF[: data.n_users], factors_NF[data.n_users :]), data, "test", "train", K).metrics
        for name in TESTED:
            found[name].append(metrics[name])
    return {"gate_ranking": "noisy", "draws": draws, "mask": "train", "k": K, "metrics": found}
