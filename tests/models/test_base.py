"""What every model has before it says more: its passes, its nodes, and how its numbers are drawn."""

from __future__ import annotations

from typing import Any

import planted
import pytest
import torch
from products import IDENTITY

from hmlet.models import MODELS, Model, Pass, Views, build
from hmlet.models.base import (
    FoldInRule,
    Gated,
    GraphModelConfig,
    ItemWeighted,
    ItemWeights,
    ModelConfig,
    NodeTensor,
    Solved,
    dropout,
    glorot,
    ranking_pass,
    resting_epochs,
    temperature,
    training_pass,
)
from hmlet.runs.loading import set_nodes
from hmlet.system.ranks import ALONE, Ranks
from hmlet.training.steps import keep_columns, shared_weights, starts_spectrally

N_USERS, N_ITEMS, SIZE = 3, 4, 6


def model_of(name: str = "lightgcn", **settings: Any) -> Model:
    config: Any = MODELS[name].Config(name=name, embedding_size=SIZE, **settings)
    return build(config, planted.graph([(0, 1), (2, 3)], N_USERS, N_ITEMS), torch.Generator().manual_seed(1))


def test_a_config_that_says_nothing_more() -> None:
    plain = ModelConfig()
    assert (plain.columns, plain.depth, plain.solved, plain.defaults) == (1, 0, False, (0.25, ()))
    assert (resting_epochs(plain), starts_spectrally(plain)) == (0, False)


def test_a_graph_model_is_as_deep_as_its_layers() -> None:
    config = GraphModelConfig(layers=3, embedding_size=5, start="spectral")
    assert (config.depth, config.columns, starts_spectrally(config)) == (3, 5, True)


def test_embeddings_are_normal_and_are_the_factors_where_nothing_is_propagated() -> None:
    config: Any = MODELS["bpr"].Config(embedding_size=1000, initial_deviation=0.3)
    model = build(config, planted.graph([(0, 1)], 20, 30), torch.Generator().manual_seed(1))
    values = model.embedding.detach()
    assert values.mean().item() == pytest.approx(0.0, abs=0.01)
    assert values.std().item() == pytest.approx(0.3, abs=0.01)
    assert torch.equal(model.propagate(IDENTITY, Pass()).factors(), values)


def test_a_model_that_says_nothing_more() -> None:
    model, generator = model_of(), torch.Generator()
    assert not isinstance(model, Gated | Solved | ItemWeighted)
    assert temperature(model, 9) == 1.0
    assert training_pass(model, 0.5, generator) == Pass(dropout=generator)
    assert ranking_pass(model, 3, generator) == Pass()
    layers = model.propagate(IDENTITY, Pass())
    assert model.auxiliary(Views(layers, lambda: layers, lambda: torch.arange(2)), Pass()) is None
    assert model.fold_in("user", torch.zeros(2, SIZE)) is None
    assert model.node_tensors(5, 6) == {"embedding": NodeTensor((11, SIZE), "nodes", redrawn=False)}
    assert (layers.gates, layers.joined, layers.similarity) == ({}, ("mean", 1.0), "dot")


def test_a_pass_and_a_rule_that_say_nothing_more() -> None:
    assert Pass() == Pass(noise=None, dropout=None, temperature=1.0, hard=True, ranks=ALONE)
    assert FoldInRule(torch.sum)[1:] == (False, 0.0)
    whole, none = torch.zeros(2, 2), torch.zeros(0, dtype=torch.int64)
    assert not ItemWeights(whole, none, none).sparse
    assert ItemWeights(torch.zeros(1), torch.zeros(1), torch.tensor([0, 1])).sparse


def test_other_nodes_have_rows_of_their_own() -> None:
    """PinSage has a parameter and two buffers with a row for each node; gradients go on as before."""
    model = model_of("pinsage", neighbours=2)
    assert model.node_tensors(5, 6) == {
        "embedding": NodeTensor((11, SIZE)),
        "neighbours_NT": NodeTensor((11, 2), redrawn=True),
        "importance_NT": NodeTensor((11, 2), redrawn=True),
    }
    given = {name: torch.ones(each.shape) for name, each in model.node_tensors(5, 6).items()}
    model.embedding.requires_grad_(False)
    set_nodes(model, given)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in given.items())
    assert "embedding" in [name for name, _ in model.named_parameters()]
    assert not model.embedding.requires_grad
    assert "embedding" not in [name for name, _ in model.named_buffers()]


def test_random_gates_are_nodes_tensors_in_submodules() -> None:
    model = model_of("hmlet-end", gate_choice="random", layers=2)
    assert set(model.node_tensors(5, 6)) == {"embedding", "gates.1.choice_N2", "gates.2.choice_N2"}
    given = {name: torch.zeros(each.shape) for name, each in model.node_tensors(5, 6).items()}
    set_nodes(model, given)
    assert model.state_dict()["gates.2.choice_N2"].shape == (11, 2)


@pytest.mark.parametrize("trained", [True, False])
def test_a_rank_keeps_its_columns(trained: bool) -> None:
    model, ranks = model_of(), Ranks(rank=2, size=3)
    whole = model.embedding.requires_grad_(trained).detach().clone()
    assert keep_columns(model, ranks) is model
    assert torch.equal(model.embedding, whole[:, 4:6])
    assert model.embedding.requires_grad is trained
    assert model.readout([model.embedding], Pass(ranks=ranks)).ranks is ranks


def test_weights_are_every_parameter_but_the_embeddings() -> None:
    model = model_of("lr-gccf", layers=2)
    assert len(list(model.parameters())) == 3
    assert [weight.shape for weight in shared_weights(model)] == [(SIZE, SIZE)] * 2
    assert all(weight is not model.embedding for weight in shared_weights(model))


def test_dropped_entries_do_not_depend_on_the_number_of_ranks() -> None:
    x_ND = torch.ones(7, 5)

    def dropped(ranks: Ranks) -> torch.Tensor:
        how = Pass(dropout=torch.Generator().manual_seed(4), ranks=ranks)
        return dropout(x_ND[ranks.own_rows(7)], 0.5, how, 7)

    whole = dropped(ALONE)
    assert set(whole.flatten().tolist()) == {0.0, 2.0}
    assert torch.equal(torch.cat([dropped(Ranks(rank, 2)) for rank in range(2)]), whole)


def test_glorots_weights_fill_their_bounds() -> None:
    weight = glorot(20, 30, torch.Generator().manual_seed(1)).detach()
    bound = (6 / 50) ** 0.5
    assert weight.shape == (20, 30)
    assert 0.98 * bound < weight.max().item() <= bound
    assert -bound <= weight.min().item() < -0.98 * bound
