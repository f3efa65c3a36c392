"""What an epoch changes in a step: the step size of the schedule, and whether the gates are trained yet."""

from __future__ import annotations

import math

import pytest
import torch
from planted import checkerboard
from torch import Tensor

from hmlet.config import Recipe, resolve
from hmlet.training.learner import Learner
from hmlet.training.steps import GradientSteps, learning_rate

EPOCHS = 4
ONE_STEP = [f"train.epochs={EPOCHS}", "train.batch_size=480", "train.learning_rate=0.02", "model.embedding_size=8"]


def learner(model: str, *overrides: str) -> tuple[Learner, GradientSteps]:
    """A model on the checkerboard whose epochs have one step each."""
    made = Learner(checkerboard(), recipe(model, *overrides), torch.device("cpu"))
    assert isinstance(made.steps, GradientSteps)
    assert made.steps.per_epoch == 1
    made.model.train()
    return made, made.steps


def recipe(model: str, *overrides: str) -> Recipe:
    gates = ["model.gate_hidden=[8]"] if model.startswith("hmlet") else []
    return resolve(model, overrides=[*ONE_STEP, *gates, *overrides])


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in tensors]


def moved(before: list[Tensor], after: list[Tensor]) -> list[bool]:
    return [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]


def test_a_cosine_falls_from_the_step_size_to_nearly_nothing() -> None:
    train = recipe("lightgcn", "train.schedule=cosine").train
    half = math.sqrt(0.5) / 2
    shares = [learning_rate(train, epoch) / 0.02 for epoch in range(EPOCHS)]
    assert shares == pytest.approx([1.0, 0.5 + half, 0.5, 0.5 - half])
    constant = recipe("lightgcn", "train.schedule=constant").train
    assert [learning_rate(constant, epoch) for epoch in range(EPOCHS)] == [0.02] * EPOCHS


def test_each_epoch_steps_by_what_the_cosine_says() -> None:
    """The same steps, with the step size of each epoch written into a constant schedule by hand, give the same bits."""
    scheduled, steps = learner("lightgcn", "train.schedule=cosine")
    by_hand, plain = learner("lightgcn", "train.schedule=constant")
    half = math.sqrt(0.5) / 2
    for epoch, share in enumerate([1.0, 0.5 + half, 0.5, 0.5 - half]):
        plain.recipe = recipe("lightgcn", "train.schedule=constant", f"train.learning_rate={0.02 * share!r}")
        steps.take(epoch, epoch)
        plain.take(epoch, epoch)
        torch.testing.assert_close(scheduled.model.embedding, by_hand.model.embedding, rtol=0, atol=1e-7)


@pytest.mark.parametrize("variant", ["hmlet-end", "hmlet-all"])
@pytest.mark.parametrize("warmup", [0, 2, EPOCHS])
def test_gates_rest_for_the_warmup_and_are_trained_from_then_on(variant: str, warmup: int) -> None:
    made, steps = learner(variant, f"model.gate_warmup={warmup}")
    weights = made.model.weights()
    assert len(weights) >= 2 * len(made.model.gates)
    for epoch in range(EPOCHS):
        gates, embedding = copies(weights), copies([made.model.embedding])
        steps.take(epoch, epoch)
        assert moved(gates, weights) == [epoch >= warmup] * len(weights)
        assert moved(embedding, [made.model.embedding]) == [True]


def test_a_trained_gate_follows_the_gradient_of_the_loss() -> None:
    """Adam's first step is -η g / (|g| + ε)."""
    made, steps = learner("hmlet-end", "model.gate_warmup=0", "train.edge_dropout=0")
    weights = made.model.weights()
    before, drawn = copies(weights), steps.generator.get_state()
    steps._enter(0)
    gradients = torch.autograd.grad(steps.batch_loss(), weights)
    steps.generator.set_state(drawn)
    steps.take(0, 0)
    for old, new, gradient in zip(before, weights, gradients, strict=True):
        assert gradient.any()
        torch.testing.assert_close(new - old, -0.02 * gradient / (gradient.abs() + 1e-8), rtol=1e-3, atol=1e-5)
