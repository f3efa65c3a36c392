"""A model with all that trains it: graph, operator and steps. The loop moves it; a forecast times it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.graph import Graph, Sizes, propagator, training_graph
from hmlet.graph.kernels import Operator
from hmlet.graph.spectral import spectral_embedding
from hmlet.models import ItemWeighted, Layers, Model, Scores, build
from hmlet.models.base import ranking_pass
from hmlet.models.growth import grow
from hmlet.ranking.evaluation import Evaluation, evaluate
from hmlet.ranking.scoring import scored_by_weights
from hmlet.runs.directory import RunDirectory
from hmlet.system.allocation import keep_freed_memory
from hmlet.system.ranks import ALONE, Ranks
from hmlet.training.planning import leaves_much_free
from hmlet.training.profiling import UNWATCHED, Profile, Unwatched
from hmlet.training.steps import Steps, keep_columns, make_operator, make_steps, starts_spectrally

SELECTION_K = 20


class Learner:
    """A model before its first step, and what a step and a validation need."""

    def __init__(
        self,
        data: Dataset,
        recipe: Recipe,
        device: torch.device,
        watch: Profile | Unwatched = UNWATCHED,
        ranks: Ranks = ALONE,
    ) -> None:
        self.data, self.recipe, self.device, self.watch, self.ranks = data, recipe, device, watch, ranks
        if device.type == "cpu" and leaves_much_free(recipe, Sizes.of(data), device, ranks):
            keep_freed_memory()
        self.graph: Graph = training_graph(data)
        initial = torch.Generator().manual_seed(recipe.seed)
        self.model: Model = keep_columns(build(recipe.model, self.graph, initial), ranks).to(device)
        self.scores: Scores = Scores.start(recipe.scoring, self.graph, recipe.train.precision).to(device)
        self.operator = make_operator(recipe, self.model, self.graph, device)
        steps = make_steps(recipe, self.model, self.scores, self.operator, data, device, ranks)
        self.steps: Steps = watch.steps(steps)
        self.ranking_noise = torch.Generator(device).manual_seed(recipe.seed + 1)
        self.without_items = torch.from_numpy(np.flatnonzero(data.csr("train").counts == 0)).to(device)

    @torch.no_grad()
    def start(self) -> None:
        """Replace the random e⁰ by singular vectors, if the recipe asks for them."""
        if not starts_spectrally(self.recipe.model):
            return
        generator = torch.Generator().manual_seed(self.recipe.seed)
        embedding_NC = self.model.embedding
        embedding_NC.copy_(
            spectral_embedding(self.plain_operator().product, self.graph.n_users, embedding_NC, generator, self.ranks)
        )

    def start_from(self, before: RunDirectory) -> None:
        """Take over what a finished run learned of its users and items, which are the first of this graph's."""
        learned, of_scores = before.weights(), self.scores.state_dict()
        of_model = {name: tensor for name, tensor in learned.items() if name not in of_scores}
        grow(self.model, self.plain_operator().product, of_model, *before.nodes)
        self.scores.grow(learned)

    def plain_operator(self) -> Operator:
        """Â with float32 products and without self-loops."""
        if not self.model.self_loops and self.operator.storage is None:
            return self.operator
        return propagator(self.graph, self.device)

    @torch.no_grad()
    def evaluate(self, epoch: int) -> tuple[Evaluation, Layers]:
        """The model as it is, on the validation part; training goes on as if nothing had happened."""
        self.model.eval()
        layers = self.finished(epoch)
        if isinstance(self.model, ItemWeighted):
            scored = scored_by_weights(self.model.item_weights(), self.data.csr("train"))
            evaluation = evaluate(scored, self.data, "valid", "train", SELECTION_K)
        else:
            own_NF = layers.factors().float()
            items_IF = self.ranks.whole(own_NF[self.model.n_users :], self.width)
            factors = (own_NF[: self.model.n_users], self.scores.of_items(items_IF))
            evaluation = evaluate(factors, self.data, "valid", "train", SELECTION_K, self.ranks, self.width)
        self.model.train()
        return evaluation, layers

    @torch.no_grad()
    def finished(self, epoch: int) -> Layers:
        """The layers of the model as it is, the rank's own columns of them.

        Nothing trains a user without training items. So they get the mean e⁰ of the other users first, and are then
        recommended what suits these in the mean, and not what their random or empty e⁰ happens to prefer.
        """
        if len(self.without_items):
            users_UD = self.model.embedding[: self.model.n_users]
            users_UD[self.without_items] = 0.0
            users_UD[self.without_items] = users_UD.sum(dim=0) / max(1, len(users_UD) - len(self.without_items))
        how = replace(ranking_pass(self.model, epoch - 1, self.ranking_noise), ranks=self.ranks)
        layers: Layers = self.scores(self.model.propagate(self.operator, how))
        return layers

    def state_tensors(self) -> dict[str, Tensor]:
        """The tensors of the model and of its scores, by the names that files have for them."""
        return self.model.state_dict() | self.scores.state_dict()

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `state_tensors` gave."""
        of_scores = self.scores.state_dict().keys()
        self.model.load_state_dict({name: each for name, each in tensors.items() if name not in of_scores})
        self.scores.load_state_dict({name: tensors[name] for name in of_scores})

    @property
    def width(self) -> int:
        """How many columns of the embeddings this process has."""
        return self.model.embedding.shape[1]

    @property
    def validates(self) -> bool:
        """Whether there is a validation part."""
        return self.data.count("valid") > 0

    def synchronize(self) -> None:
        """Wait until the device has done all that it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
