"""New users and new items from a finished run, without retraining.

A newcomer is a node that the graph did not have: a list of neighbours on the other side. It goes once through the
model's own propagation, as a node of that degree, beside the stored embeddings of its neighbours,

    eᴸ_{i+1}(new) = Σ_v eᴳ_i(v) / sqrt(|N_new| d_v)

with the trained gates, without noise. Nobody trained an e⁰ for it: a linear rule, fitted by ridge regression on the
existing nodes of its side, reads one off its neighbours. Neighbours keep the degrees they were trained with.
Models that do not propagate over Â get their factor by a rule alone: the one that the model states (`Model.fold_in`),
else the regression. Decision 0004 has the candidates and their numbers.

Legend: B newcomers, N nodes, D embedding size, F factor size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.errors import ConfigError, DataError, RunError
from hmlet.graph import Graph, propagator, training_graph
from hmlet.graph.kernels import Operator, Product
from hmlet.models import FoldInRule, Model, Pass, Scores, Side
from hmlet.models.base import ranking_pass
from hmlet.models.growth import ridge
from hmlet.runs.choices import Choices
from hmlet.runs.directory import FACTORS, RunDirectory
from hmlet.runs.loading import load_model
from hmlet.runs.tensors import is_finite

SCALED_ON = 500  # trained nodes that give the length of a discriminant
Indices = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Lists:
    """The neighbours of each newcomer, as nodes: nodes[offsets[b]:offsets[b + 1]]."""

    nodes: Tensor
    offsets: Tensor
    side: Side  # that the newcomers are on

    @property
    def counts_B1(self) -> Tensor:
        return self.offsets.diff()[:, None]

    def sum(self, x_ND: Tensor, scale_N: Tensor) -> Tensor:
        """Σ_v scale_v x(v) over each newcomer's neighbours: B × D."""
        return embedding_bag(
            self.nodes, x_ND, self.offsets, mode="sum", per_sample_weights=scale_N[self.nodes], include_last_offset=True
        )


Rule = Callable[[Lists, list[Tensor]], Tensor]
"""A newcomer's e⁰, or its factor where nothing is propagated, from its neighbours and their messages: B × D."""


@dataclass(frozen=True, eq=False)
class FoldIn:
    """Factors for nodes that were not trained, and for trained ones whose neighbours have changed."""

    recipe: Recipe
    model: Model  # the trained weights, and no nodes
    scores: Scores
    graph: Graph
    inputs: Sequence[Tensor]  # what each product of a propagation multiplies: N × D
    layers: Sequence[Tensor]  # what the readout joins, e⁰ first: N × D
    factors: tuple[Tensor, Tensor]  # U × F and I × F
    gates: Choices | None  # None where the model has none
    how: Pass

    @classmethod
    def open(cls, directory: RunDirectory, data: Dataset) -> FoldIn:
        """The fold-in of a finished run; `data` is what it was trained on."""
        recipe, graph = directory.require_finished().recipe(), training_graph(data)
        model = load_model(directory, nodes=False)
        own = sorted(set(model.node_tensors(*directory.nodes)) - {"embedding"})
        if model.propagated and own:
            raise ConfigError(
                f"{recipe.model.name} cannot take new users or items: {own[0]} has numbers for trained ones alone",
                "use a run without them, such as one with learned gates",
            )
        layers = _layers(directory, recipe)
        ranked = ranking_pass(model, directory.record.best_epoch - 1, torch.Generator())
        how = replace(ranked, noise=None, dropout=None)
        if model.propagated is None:
            inputs = layers[-1:]
        elif model.propagated == "layers":
            inputs = layers[:-1]
        else:  # what is read out is not what is propagated, which has to be made again
            inputs = _recorded(_twin(model, layers[0]), graph, how)
        factors = directory.factors()
        scores = Scores.of_run(recipe.scoring, factors[1])
        width = scores.of_users(model.readout([layer_ND[:1] for layer_ND in layers]).factors()).shape[1]
        if width != factors[0].shape[1]:
            wide = f"{factors[0].shape[1]} columns, and the layers make factors of {width}"
            raise directory.origin(FACTORS).fault(f": tensor 'users': it has {wide}")
        return cls(recipe, model, scores, graph, inputs, layers, factors, Choices.read(directory, graph.n_nodes), how)

    @cached_property
    def scale_N(self) -> Tensor:
        """1 / sqrt(d_v) of every trained node."""
        return torch.from_numpy(self.graph.scale(self.model.self_loops))

    @cached_property
    def _rules(self) -> dict[Side, Rule]:
        return {}

    def factor(self, node: int) -> Tensor:
        """The stored factor of a node: F."""
        return self.factors[0][node] if node < self.graph.n_users else self.factors[1][node - self.graph.n_users]

    # -- who is folded in -----------------------------------------------------------------------------------------

    def users(self, lists: Sequence[Indices]) -> Tensor:
        """The factors of new users, each given by the items it has: B × F."""
        return self._fold("user", self.lists_of("user", lists))

    def items(self, lists: Sequence[Indices]) -> Tensor:
        """The factors of new items, each given by the users who have it: B × F."""
        return self._fold("item", self.lists_of("item", lists))

    def user_with(self, user: int, extra_items: Indices) -> Tensor:
        """The factor of a trained user who has more items by now: F."""
        return self.edited_user(user, [np.union1d(self.own_items(user), extra_items)])[0]

    def edited_user(self, user: int, lists: Sequence[Indices]) -> Tensor:
        """The factors that a trained user would have with each of these lists instead of its own items: B × F.

        What training knows of the user beyond the rule, e⁰ - rule(own items), is kept. So the user's own items give
        back its stored factor, also where it has none, and an empty list what is left of it without any.
        """
        edited, own = (self.lists_of("user", each, may_be_empty=True) for each in (lists, [self.own_items(user)]))
        known_1D = self.inputs[0][user][None]
        return self._fold("user", edited, known_1D - self.rule("user")(own, self.messages(own)))

    def own_items(self, user: int) -> npt.NDArray[np.int64]:
        """A trained user's training items."""
        return own_items(self.graph, user)

    # -- how ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _fold(self, side: Side, lists: Lists, beyond_BD: Tensor | float = 0.0) -> Tensor:
        """The factors of newcomers whose e⁰ is the rule's and what is known beyond it: B × F."""
        messages = self.messages(lists)
        return self.propagate(lists, self.rule(side)(lists, messages) + beyond_BD, messages)

    @torch.no_grad()
    def propagate(self, lists: Lists, embedding_BD: Tensor, messages: list[Tensor] | None = None) -> Tensor:
        """The factors of newcomers whose e⁰ is given: the model's own propagation, with stored neighbours: B × F."""
        if self.model.propagated:
            twin = _twin(self.model, embedding_BD)
            arriving = _Arrivals(self.messages(lists) if messages is None else messages, lists, twin)
            layers = twin.propagate(arriving, self.how)
        else:
            layers = self.model.readout([embedding_BD])
        own_BF = self.scores(layers).factors()
        if lists.side == "user":
            factors_BF = self.scores.of_users(own_BF)
        else:
            count_I = torch.from_numpy(self.graph.degree[self.graph.n_users :])
            factors_BF = self.scores.of_new_items(own_BF, lists.offsets.diff(), count_I)
        if not is_finite(factors_BF):
            raise RunError(
                "this run's factors are so large that fold-in overflows",
                "train again with a smaller train.learning_rate",
            )
        return factors_BF

    def messages(self, lists: Lists) -> list[Tensor]:
        """Σ_v x_i(v) / sqrt(|N_new| d_v) for each input x_i: what Â would bring a newcomer."""
        degree_B1 = lists.counts_B1 + int(self.model.self_loops)
        own_B1 = degree_B1.clamp_min(1).float().rsqrt()  # without neighbours the sum is 0 anyway
        return [own_B1 * lists.sum(x_ND, self.scale_N) for x_ND in self.inputs]

    def lists_of(self, side: Side, lists: Sequence[Indices], may_be_empty: bool = False) -> Lists:
        """Neighbours as nodes, each once."""
        return neighbour_lists(self.graph, side, lists, may_be_empty)

    def rule(self, side: Side) -> Rule:
        """The rule of a side, fitted when it is first needed."""
        if side not in self._rules:
            own = self.model.fold_in(side, self._others(side))
            self._rules[side] = self._regression(side) if own is None else self._own_rule(side, own)
        return self._rules[side]

    @torch.no_grad()
    def _regression(self, side: Side) -> Rule:
        """Ridge regression from what Â brings a node to its e⁰, over the trained nodes of one side."""
        nodes, lists = self._trained(side)
        features_ND = torch.cat(self.messages(lists), dim=1).double()
        weights_DD = ridge(features_ND, self.inputs[0][nodes].double()).float()
        return lambda lists, messages: torch.cat(messages, dim=1) @ weights_DD

    def _trained(self, side: Side) -> tuple[Tensor, Lists]:
        """The nodes of a side that have neighbours, and these."""
        graph = self.graph
        start, end = (0, graph.n_users) if side == "user" else (graph.n_users, graph.n_nodes)
        nodes = start + np.flatnonzero(graph.degree[start:end])
        bounds = graph.indptr[start : end + 1]
        neighbours = graph.neighbours[bounds[0] : bounds[-1]].astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(graph.degree[nodes])])
        return torch.from_numpy(nodes), Lists(torch.from_numpy(neighbours), torch.from_numpy(offsets), side)

    @torch.no_grad()
    def _own_rule(self, side: Side, own: FoldInRule) -> Rule:
        """The model's own rule, which solves each newcomer alone; scaled to trained lengths if it asks for that."""
        rule = self._one_by_one(own)
        if not own.rescaled:
            return rule
        nodes, lists = self._trained(side)
        some = slice(0, SCALED_ON)
        found_ND = rule(Lists(lists.nodes, lists.offsets[: SCALED_ON + 1], side), [])
        length = self.inputs[0][nodes[some]].norm() / found_ND.norm().clamp_min(1e-12)
        return lambda lists, messages: length * rule(lists, messages)

    def _others(self, side: Side) -> Tensor:
        """The inputs of the side that a newcomer's neighbours are on, in float64."""
        n_users = self.graph.n_users
        return (self.inputs[0][n_users:] if side == "user" else self.inputs[0][:n_users]).double()

    def _one_by_one(self, own: FoldInRule) -> Rule:
        """The rule that solves each newcomer's own system."""

        def rule(lists: Lists, messages: list[Tensor]) -> Tensor:
            found_BD = torch.full((len(lists.offsets) - 1, self.inputs[0].shape[1]), own.nobody)
            for at, (start, end) in enumerate(pairwise(lists.offsets.tolist())):
                if end > start:
                    found_BD[at] = own.solve(self.inputs[0][lists.nodes[start:end]].double()).float()
            return found_BD

        return rule


def neighbour_lists(graph: Graph, side: Side, lists: Sequence[Indices], may_be_empty: bool = False) -> Lists:
    """The neighbours of newcomers of a side as nodes, each once."""
    first, count = (graph.n_users, graph.n_items) if side == "user" else (0, graph.n_users)
    other = "item" if side == "user" else "user"
    unique = [np.unique(np.asarray(each, dtype=np.int64)) for each in lists]
    for at, each in enumerate(unique):
        assert not len(each) or (each[0] >= 0 and each[-1] < count), f"an {other} index is out of range"
        if not may_be_empty and not graph.degree[each + first].any():
            known = "no" if not len(each) else "no trained"
            raise DataError(
                f"new {side} {at + 1} has {known} {other}s", f"give at least one {other} from the training part"
            )
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in unique])]).astype(np.int64)
    nodes = np.concatenate([*unique, np.empty(0, np.int64)]) + first
    return Lists(torch.from_numpy(nodes), torch.from_numpy(offsets), side)


def own_items(graph: Graph, user: int) -> npt.NDArray[np.int64]:
    """A trained user's training items."""
    bounds = graph.indptr[user : user + 2]
    return graph.neighbours[bounds[0] : bounds[1]].astype(np.int64) - graph.n_users


class _Arrivals(Product):
    """The product of a propagation in which only newcomers move: call i brings what the neighbours' layer i sends."""

    def __init__(self, messages: list[Tensor], lists: Lists, model: Model) -> None:
        self._left = iter(messages)
        self._loop_B1 = 1.0 / (lists.counts_B1 + 1).float() if model.self_loops else None

    def __call__(self, x_BD: Tensor) -> Tensor:
        message_BD = next(self._left)
        return message_BD if self._loop_B1 is None else message_BD + self._loop_B1 * x_BD


def _twin(model: Model, embedding_BD: Tensor) -> Model:
    """The model with other nodes' e⁰ and the same weights; the model itself is left alone, for other threads."""
    twin = copy.copy(model)
    twin._parameters = {**model._parameters, "embedding": nn.Parameter(embedding_BD, requires_grad=False)}
    return twin


def _layers(directory: RunDirectory, recipe: Recipe) -> list[Tensor]:
    """Every stored layer; the factors are the only layer of a model that has no more."""
    if recipe.model.depth == 0:
        return [torch.cat(directory.directions(directory.factors()))]
    stored = directory.layers()
    if stored is None:
        raise ConfigError(f"{directory.path} has no layers.safetensors", "train it with train.save_layers = true")
    return stored


@torch.no_grad()
def _recorded(model: Model, graph: Graph, how: Pass) -> list[Tensor]:
    """What each product of a whole propagation multiplies."""
    recorder = _Recorder(propagator(graph, torch.device("cpu"), self_loops=model.self_loops))
    model.propagate(recorder, how)
    return recorder.inputs


class _Recorder(Product):
    """A product that keeps what it multiplies."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.inputs: list[Tensor] = []

    def __call__(self, x_ND: Tensor) -> Tensor:
        self.inputs.append(x_ND.detach())
        return self.operator.product(x_ND)
