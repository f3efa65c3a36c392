"""What a score is, by hand: the similarity, the column for popularity, new items, and the parameter that is learned."""

from __future__ import annotations

import math

import planted
import pytest
import torch
from products import IDENTITY

from hmlet.config import resolve
from hmlet.losses import build_loss
from hmlet.models import BY_PRODUCT, NodeTensor, Pass, Scores, Scoring, build
from hmlet.training.steps import trained_parameters

GRAPH = planted.graph([(0, 0), (1, 0), (2, 0), (0, 1)], 3, 3)  # items with 3, 1 and 0 interactions
COUNTS = torch.tensor([3, 1, 0])
MEAN = (3 * math.log(4) + math.log(2)) / 4  # of ln(1 + d) over the interactions
START = [0.5 * (math.log(1 + count) - MEAN) for count in (3, 1, 0)]
USERS, ITEMS = torch.eye(3, 2), 2 * torch.eye(3, 2)


def test_scores_without_popularity_leave_factors_as_they_are() -> None:
    scores = Scores.start(BY_PRODUCT, GRAPH)
    assert scores.of_users(USERS) is USERS
    assert scores.of_items(ITEMS) is ITEMS
    assert scores.of_new_items(ITEMS, COUNTS, COUNTS) is ITEMS
    assert (scores.state_dict(), scores.node_tensors(5, 6), list(scores.parameters())) == ({}, {}, [])
    assert (BY_PRODUCT.directions(USERS) is USERS, BY_PRODUCT.from_popularity(USERS[0])) == (True, 0.0)


@pytest.mark.parametrize("learned", [False, True])
def test_popularity_is_the_last_column(learned: bool) -> None:
    scoring = Scoring("cosine", 0.5, learned)
    scores = Scores.start(scoring, GRAPH)
    users_UF, items_IF = scores.of_users(USERS), scores.of_items(ITEMS)
    assert users_UF.tolist() == [[1, 0, 1], [0, 1, 1], [0, 0, 1]]
    assert items_IF[:, -1].tolist() == pytest.approx(START)
    assert torch.equal(scoring.directions(items_IF), ITEMS)
    assert scoring.from_popularity(items_IF[1].detach()) == pytest.approx(START[1])
    assert torch.equal(Scores.of_run(scoring, items_IF).of_items(ITEMS), items_IF)
    assert scores.node_tensors(5, 6) == {"popularity": NodeTensor((6,), "items", redrawn=not learned)}
    assert [name for name, _ in scores.named_parameters()] == ["popularity"] * learned


def test_new_items_lie_on_the_line_that_training_has_made_of_the_start() -> None:
    scores = Scores(Scoring("dot", 0.5, True), 2 * torch.tensor(START) + 1)
    found = scores.of_new_items(torch.zeros(2, 2), torch.tensor([3, 7]), COUNTS)[:, -1]
    assert found.tolist() == pytest.approx([2 * START[0] + 1, 2 * 0.5 * (math.log(8) - MEAN) + 1], rel=1e-5)


def test_a_grown_graph_keeps_what_was_learned_and_follows_it() -> None:
    """Of a graph with a new item as popular as the second one."""
    grown = planted.graph([(0, 0), (1, 0), (2, 0), (0, 1), (1, 3)], 3, 4)
    scores = Scores.start(Scoring("dot", 0.5, True), grown)
    assert scores.popularity is not None
    old = 3 * scores.popularity[:3].detach().clone()
    scores.grow({"popularity": old})
    assert scores.popularity[:3].tolist() == old.tolist()
    assert scores.popularity[3].item() == pytest.approx(float(old[1]), rel=1e-5)
    fixed = Scores.start(Scoring("dot", 0.5), grown)
    before = fixed.state_dict()["popularity"].clone()
    fixed.grow({"popularity": old})
    assert torch.equal(fixed.state_dict()["popularity"], before)  # is the grown graph's own


def test_layers_learn_what_a_loss_has_to_know() -> None:
    model = build(resolve("lightgcn").model, GRAPH, torch.Generator())
    layers = model.propagate(IDENTITY, Pass())
    assert (layers.similarity, layers.popularity_I, layers.precision) == ("dot", None, "float32")
    scores = Scores.start(Scoring("cosine", 0.5), GRAPH, "bfloat16")
    known = scores(layers)
    assert (known.similarity, known.popularity_I, known.precision) == ("cosine", scores.popularity, "bfloat16")


@pytest.mark.parametrize(("name", "own"), [("gc-mc", 3), ("pinsage", 2), ("hmlet-end", 1)])
def test_learned_popularity_is_trained_after_the_models_own_parameters_and_before_its_modules(
    name: str, own: int
) -> None:
    """Checkpoints of earlier versions number parameters so."""
    recipe = resolve(
        name, overrides=["train.loss=softmax", "loss.popularity_learned=true", "loss.temperature_learned=true"]
    )
    model, scores = build(recipe.model, GRAPH, torch.Generator()), Scores.start(recipe.scoring, GRAPH)
    loss = build_loss(recipe.train.loss, recipe.loss)
    found = trained_parameters(model, scores, loss)
    assert found[0] is model.embedding
    assert found[own] is scores.popularity
    assert found[-1] is loss.log_temperature
    assert len(found) == len(list(model.parameters())) + 2
