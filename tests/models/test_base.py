"""What every model has before it says more: its passes, its nodes, and how its numbers are drawn."""

from __future__ import annotations

from typing import Any

import planted
import pytest
import torch
from products import IDENTITY

from hmlet.graph.work import Part
from hmlet.models import MODELS, Model, Pass, Views, build
from hmlet.models.base import GraphModelConfig, ItemWeights, ModelConfig, Newcomer, NodeTensor, dropout, glorot
from hmlet.runs.loading import set_nodes
from hmlet.system.ranks import ALONE, Ranks
from hmlet.training.steps import keep_columns, shared_weights

N_USERS, N_ITEMS, SIZE = 3, 4, 6


def model_of(name: str = "lightgcn", **settings: Any) -> Model:
    config: Any = MODELS[name].Config(name=name, embedding_size=SIZE, **settings)
    return build(config, planted.graph([(0, 1), (2, 3)], N_USERS, N_ITEMS), torch.Generator().manual_seed(1))


def test_a_config_that_says_nothing_more() -> None:
    plain = ModelConfig()
    assert (plain.columns, plain.widest, plain.depth, plain.warmup) == (1, 1, 0, 0)
    told = (plain.starts_spectrally, plain.gated, plain.solved, plain.splits)
    assert told == (False, False, False, True)
    assert plain.over(0.5) is plain
    assert plain.continued(3) is plain
    assert (plain.lighter(), plain.work(10, 4, resting=False), plain.weights(resting=False)) == ([], [], 0)
    assert plain.solving(10, 20, 30) == [Part("interactions", moved=4 * 30)]
    plain.require_newcomers()


def test_a_graph_model_is_as_deep_as_its_layers() -> None:
    config = GraphModelConfig(layers=3, embedding_size=5, start="spectral")
    assert (config.depth, config.columns, config.widest, config.starts_spectrally) == (3, 5, 5, True)
    assert config.lighter() == [["model.layers=2", "model.layers=1"]]


def test_embeddings_are_normal_and_are_the_factors_where_nothing_is_propagated() -> None:
    config: Any = MODELS["bpr"].Config(embedding_size=1000, initial_deviation=0.3)
    model = build(config, planted.graph([(0, 1)], 20, 30), torch.Generator().manual_seed(1))
    values = model.embedding.detach()
    assert values.mean().item() == pytest.approx(0.0, abs=0.01)
    assert values.std().item() == pytest.approx(0.3, abs=0.01)
    assert torch.equal(model.propagate(IDENTITY, Pass()).factors(), values)


def test_a_model_that_says_nothing_more() -> None:
    model, generator = model_of(), torch.Generator()
    assert (model.item_weights(), model.temperature(9), model.solving_bytes(100)) == (None, 1.0, 0)
    assert model.training_pass(0.5, generator) == Pass(dropout=generator)
    assert model.ranking_pass(3, generator) == Pass()
    assert model.noisy_pass(3, generator) == Pass(noise=generator, temperature=1.0)
    layers = model.propagate(IDENTITY, Pass())
    assert model.auxiliary(Views(layers, lambda: layers, lambda: torch.arange(2)), Pass()) is None
    assert model.newcomer("user", torch.zeros(2, SIZE)) is None
    assert model.node_tensors(5, 6) == {"embedding": NodeTensor((11, SIZE), "nodes", redrawn=False)}
    assert (layers.gates, layers.joined, layers.similarity) == ({}, ("mean", 1.0), "dot")
    with pytest.raises(NotImplementedError, match="LightGCN is trained by gradient steps"):
        model.solve(planted.csr([(0, 1)], N_USERS))


def test_a_pass_and_a_newcomer_that_say_nothing_more() -> None:
    assert Pass() == Pass(noise=None, dropout=None, temperature=1.0, hard=True, ranks=ALONE)
    assert Newcomer(torch.sum)[1:] == (False, 0.0)
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
