"""What an epoch changes in a step: the step size of the schedule, and whether the gates are trained yet."""

from __future__ import annotations

import math

import pytest
import torch
from planted import checkerboard
from torch import Tensor

from hmlet.config import Recipe, resolve
from hmlet.graph.kernels import draw_key
from hmlet.models import NOISE_FREE
from hmlet.training.learner import Learner
from hmlet.training.steps import GradientSteps, SolverSteps, deterministic, learning_rate, shared_weights

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
    weights = shared_weights(made.model)
    assert len(weights) >= 2 * len(made.model.gates)
    for epoch in range(EPOCHS):
        gates, embedding = copies(weights), copies([made.model.embedding])
        steps.take(epoch, epoch)
        assert moved(gates, weights) == [epoch >= warmup] * len(weights)
        assert moved(embedding, [made.model.embedding]) == [True]


def test_a_trained_gate_follows_the_gradient_of_the_loss() -> None:
    """Adam's first step is -η g / (|g| + ε)."""
    made, steps = learner("hmlet-end", "model.gate_warmup=0", "train.edge_dropout=0")
    weights = shared_weights(made.model)
    before, drawn = copies(weights), steps.generator.get_state()
    steps._enter(0)
    gradients = torch.autograd.grad(steps.batch_loss(), weights)
    steps.generator.set_state(drawn)
    steps.take(0, 0)
    for old, new, gradient in zip(before, weights, gradients, strict=True):
        assert gradient.any()
        torch.testing.assert_close(new - old, -0.02 * gradient / (gradient.abs() + 1e-8), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("weights_too", [False, True])
def test_the_loss_of_a_batch_is_bpr_and_its_penalty(weights_too: bool) -> None:
    settings = ["train.edge_dropout=0", "train.l2=0.3", f"train.l2_weights={str(weights_too).lower()}"]
    made, steps = learner("lr-gccf", *settings)
    drawn = steps.generator.get_state()
    user, positive, negative = steps.sampler.sample(480, steps.generator)
    steps.generator.set_state(drawn)
    users, items = made.model.propagate(made.operator, NOISE_FREE).factors().tensor_split([made.data.n_users])
    margins = (users[user] * (items[positive] - items[negative])).sum(dim=1)
    initial = made.model.embedding
    n_users = made.model.n_users
    rows = [initial[user], initial[n_users + positive], initial[n_users + negative]]
    squares = sum(row.square().sum() for row in rows) / 480
    if weights_too:
        squares = squares + sum(weight.square().sum() for weight in shared_weights(made.model))
    expected = -torch.nn.functional.logsigmoid(margins).mean() + 0.3 * squares / 2
    torch.testing.assert_close(steps.batch_loss(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_batch_sees_the_graph_that_its_key_leaves(rate: float) -> None:
    made, steps = learner("lightgcn", f"train.edge_dropout={rate}", "train.l2=0")
    drawn = steps.generator.get_state()
    user, positive, negative = steps.sampler.sample(480, steps.generator)
    thinned = made.operator.drop(rate, draw_key(steps.generator, torch.device("cpu"))) if rate else made.operator
    steps.generator.set_state(drawn)
    users, items = made.model.propagate(thinned, NOISE_FREE).factors().tensor_split([made.data.n_users])
    expected = -torch.nn.functional.logsigmoid((users[user] * (items[positive] - items[negative])).sum(dim=1)).mean()
    torch.testing.assert_close(steps.batch_loss(), expected, rtol=1e-6, atol=1e-7)


def test_a_models_own_term_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    made, steps = learner("lightgcn")
    drawn = steps.generator.get_state()
    plain = steps.batch_loss()
    monkeypatch.setattr(made.model, "auxiliary", lambda views, how: torch.tensor(2.0))
    steps.generator.set_state(drawn)
    torch.testing.assert_close(steps.batch_loss(), plain + 2.0)


def test_a_mean_loss_is_of_its_own_epoch() -> None:
    made = Learner(checkerboard(), recipe("lightgcn", "train.batch_size=240"), torch.device("cpu"))
    steps = made.steps
    assert isinstance(steps, GradientSteps)
    assert steps.per_epoch == 2
    drawn = steps.generator.get_state()
    losses = []
    for step in range(2):
        before = steps.generator.get_state()
        losses.append(steps.batch_loss().item())
        steps.generator.set_state(before)
        steps.take(step, 0)
    assert not torch.equal(drawn, steps.generator.get_state())
    assert steps.mean_loss() == pytest.approx(sum(losses) / 2, rel=1e-6)
    assert steps.mean_loss() == 0.0


def test_a_step_in_the_middle_of_an_epoch_knows_its_epoch() -> None:
    """As after a resume: the first step that is taken is not the first of its epoch."""
    settings = ["train.batch_size=240", "train.schedule=cosine", "model.gate_warmup=0"]
    made = Learner(checkerboard(), recipe("hmlet-end", *settings), torch.device("cpu"))
    assert isinstance(made.steps, GradientSteps)
    made.steps.take(3, 1)
    assert made.steps.rate.item() == pytest.approx(learning_rate(made.recipe.train, 1))
    assert made.steps.temperature.item() == pytest.approx(0.7 * 0.995)
    assert made.steps.at == (1, 1)


@pytest.mark.parametrize(("epochs", "expected"), [(1, [0.0]), (2, [0.0, 1.0]), (3, [0.0, 0.5, 1.0])])
def test_a_loss_goes_through_its_schedule_from_the_first_epoch_to_the_last(
    epochs: int, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, steps = learner("lightgcn", f"train.epochs={epochs}")
    entered: list[float] = []
    monkeypatch.setattr(steps.loss, "enter", entered.append)
    for epoch in range(epochs):
        steps.take(epoch, epoch)
    assert entered == expected


def test_an_epoch_of_two_steps_is_entered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Learner(checkerboard(), recipe("lightgcn", "train.batch_size=240", "train.epochs=2"), torch.device("cpu"))
    assert isinstance(made.steps, GradientSteps)
    entered: list[float] = []
    monkeypatch.setattr(made.steps.loss, "enter", entered.append)
    for step in range(4):
        made.steps.take(step, step // 2)
    assert entered == [0.0, 1.0]


def test_a_rank_counts_its_share_of_the_gradient() -> None:
    moments = []
    for share in (1.0, 0.5):
        made, steps = learner("lightgcn")
        steps.share.fill_(share)
        steps.take(0, 0)
        moments.append(steps.optimizer.state[made.model.embedding]["exp_avg"])
    torch.testing.assert_close(moments[0], 2 * moments[1])


def test_the_slowdown_compares_the_fastest_steps_and_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, steps = learner("hmlet-end", "model.gate_warmup=2")
    steps.take(0, 0)
    before = copies([*made.model.parameters(), *made.model.buffers(), steps.generator.get_state()])
    clock = iter([0.0, 2.0, 0.0, 7.0, 0.0, 3.0, 0.0, 6.0])  # resting, trained, resting, trained
    monkeypatch.setattr("hmlet.training.steps.time.perf_counter", lambda: next(clock))
    began_with: list[bool] = []
    sound = steps.batch_loss

    def batch_loss() -> Tensor:
        began_with.append(any(parameter.grad is not None for parameter in made.model.parameters()))
        return sound()

    monkeypatch.setattr(steps, "batch_loss", batch_loss)
    assert steps.slowdown() == 3.0
    assert began_with == [False] * 4  # gradients are cleared as in any step
    after = [*made.model.parameters(), *made.model.buffers(), steps.generator.get_state()]
    assert not any(moved(before, after))
    assert all(parameter.grad is None for parameter in made.model.parameters())
    assert not any(weight.requires_grad for weight in shared_weights(made.model))
    clock = iter([0.0, 2.0, 0.0, 1.0, 0.0, 2.0, 0.0, 1.0])
    assert steps.slowdown() == 1.0  # a noisy clock does not make training faster


def test_deterministic_algorithms_are_on_for_a_step_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    switched: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", switched.append)
    with deterministic(False):
        assert switched == []
    with deterministic(True):
        assert switched == [True]
    assert switched == [True, False]
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with deterministic(True):
        pass
    assert switched == [True, False]  # on already, so it stays on


def test_a_solver_without_a_step_has_no_loss() -> None:
    made = Learner(checkerboard(), resolve("popularity"), torch.device("cpu"))
    assert isinstance(made.steps, SolverSteps)
    assert (made.steps.mean_loss(), made.steps.per_epoch) == (0.0, 1)
    made.steps.load({"loss": torch.tensor(2.5)})
    assert made.steps.tensors()["loss"].item() == made.steps.mean_loss() == 2.5
