"""One training step: sample, propagate, loss, gradient, update. Two kinds: by gradient, and by solving."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from hmlet.config import Recipe
from hmlet.config.train import TrainConfig
from hmlet.data import Csr, Dataset
from hmlet.errors import TrainingError
from hmlet.graph import Graph, propagator
from hmlet.graph.kernels import Operator, draw_key, part
from hmlet.losses import Loss, build_loss, penalty
from hmlet.losses.base import Batch
from hmlet.models import Layers, Model, ModelConfig, Scores, Solved, Views
from hmlet.models.base import resting_epochs, temperature, training_pass
from hmlet.system.ranks import ALONE, Ranks
from hmlet.training.optimizer import make_optimizer

WARM_UP = 3  # steps before a capture: libraries allocate and choose their algorithms, and Adam makes its state
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam keeps of each parameter
LOOK_EVERY = 50  # steps between two looks at the flag on CUDA


class Steps(Protocol):
    """What the loop asks of a way to train."""

    per_epoch: int

    def take(self, step: int, epoch: int) -> None:
        """Move the model by one step."""

    def mean_loss(self) -> float:
        """The mean loss of the epoch that just ended."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint stores besides the model."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave; a KeyError, ValueError or RuntimeError says what does not fit."""


def keep_columns(model: Model, ranks: Ranks) -> Model:
    """The model with the rank's own columns of the embeddings. All other parameters stay whole on every rank."""
    if ranks.size > 1:
        model.embedding = nn.Parameter(ranks.own_columns(model.embedding.detach()), model.embedding.requires_grad)
    return model


def starts_spectrally(model: ModelConfig) -> bool:
    """Whether singular vectors replace the random e⁰ before training."""
    return getattr(model, "start", "random") == "spectral"


def trained_parameters(model: Model, scores: Scores, loss: Loss[Batch]) -> list[nn.Parameter]:
    """All that the optimizer moves: the model's own, e⁰ first, what popularity adds, those of the model's modules, and
    the loss's. Checkpoints number them in this order, and moments in 16 bits are rounded in it."""
    own = list(model.parameters(recurse=False))
    inner = [each for each in model.parameters() if all(each is not one for one in own)]
    return [*own, *scores.parameters(), *inner, *loss.parameters()]


def shared_weights(model: Model) -> list[nn.Parameter]:
    """Every trained parameter that does not belong to a node: those that may rest at first."""
    own = model.node_tensors(model.n_users, model.n_items)
    return [parameter for name, parameter in model.named_parameters() if name not in own]


def make_operator(recipe: Recipe, model: Model, graph: Graph, device: torch.device) -> Operator:
    """What a model's layers are propagated by: the graph's Â, stored as the recipe says."""
    return propagator(graph, device, self_loops=model.self_loops, precision=recipe.train.precision)


def make_steps(
    recipe: Recipe,
    model: Model,
    scores: Scores,
    operator: Operator,
    data: Dataset,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> Steps:
    """The steps that train a model."""
    if isinstance(model, Solved):
        return SolverSteps(model, data.csr("train"))
    return GradientSteps(recipe, model, scores, operator, data, device, ranks)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """PyTorch's deterministic algorithms while a step is taken or planned, where the recipe asks for them."""
    if not wanted or torch.are_deterministic_algorithms_enabled():  # the setter takes seconds: it loads a compiler
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def learning_rate(train: TrainConfig, epoch: int) -> float:
    """The step size in an epoch, counted from 0."""
    if train.schedule == "constant":
        return train.learning_rate
    return train.learning_rate * (1.0 + math.cos(math.pi * epoch / train.epochs)) / 2.0


def steps_per_epoch(loss: Loss[Batch], train: Csr, batch_size: int) -> int:
    """How many batches it takes to draw as many interactions, or users, as there are."""
    entries = int((train.counts > 0).sum()) if loss.entries == "users" else len(train.items)
    return math.ceil(entries / batch_size)


def batch_loss(
    recipe: Recipe,
    model: Model,
    scores: Scores,
    loss: Loss[Batch],
    operator: Operator,
    batch: Batch,
    tau: Tensor,
    generator: torch.Generator,
    ranks: Ranks,
) -> Tensor:
    """The loss of a batch, with the penalty and the model's own further terms, on a freshly thinned graph."""
    train = recipe.train
    how = replace(training_pass(model, tau, generator), ranks=ranks)

    def view(rate: float = train.edge_dropout) -> Layers:
        product = operator.drop(rate, draw_key(generator, tau.device)) if rate else operator
        layers: Layers = scores(model.propagate(product, how))
        return layers

    layers = view()
    with part("readout and loss"):
        value, norms = loss(layers, batch)
        total: Tensor = value + train.l2 * penalty(norms, shared_weights(model) if train.l2_weights else [])
    further = model.auxiliary(Views(layers, view, partial(batch.nodes, model.n_users)), how)
    if further is not None:
        total = total + further
    return total


class GradientSteps:
    """A loss made smaller by Adam.

    A step never asks the device for a number. A loss that is not finite raises a flag on the device, and the
    optimizer does nothing from then on; the host looks at the flag at every step on CPU, now and then on CUDA.
    On CUDA the step is captured once as a graph and replayed; on several ranks it is not, because a collective that
    waits inside a replay for a rank that is gone cannot be given up.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Model,
        scores: Scores,
        operator: Operator,
        data: Dataset,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        self.recipe, self.model, self.scores, self.operator = recipe, model, scores, operator
        self.device, self.ranks = device, ranks
        self.loss = build_loss(recipe.train.loss, recipe.loss).to(device)
        self.per_epoch = steps_per_epoch(self.loss, data.csr("train"), recipe.train.batch_size)
        self.sampler = self.loss.sampler(data.csr("train"), data.n_items, device, recipe.train.draw)
        self.generator = torch.Generator(device).manual_seed(recipe.seed)
        self.parameters = trained_parameters(model, scores, self.loss)
        self.on_cuda = device.type == "cuda"
        self.rate = torch.tensor(recipe.train.learning_rate, device=device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.broken = torch.zeros((), device=device)
        self.optimizer = make_optimizer(recipe.train, self.parameters, self.rate, self.broken, self.generator)
        self.temperature = torch.ones((), device=device)
        self.share = torch.tensor(1.0 / ranks.size, device=device)  # of the loss that this rank counts as its own
        self.captures = self.on_cuda and ranks.size == 1
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = False  # whether steps are taken one operation at a time although they could be captured
        self.eager_steps = 0
        self.at = (0, 0)  # the epoch and batch of the last step

    def take(self, step: int, epoch: int) -> None:
        self.at = (epoch, step % self.per_epoch)
        if step % self.per_epoch == 0 or self.eager_steps == 0:
            self._enter(epoch)
        if self.graph is not None:
            self.graph.replay()
        else:
            self._step()
            self.eager_steps += 1
            if self.captures and not self.eager and self.eager_steps == WARM_UP:
                self._capture()
        if not self.on_cuda or step % LOOK_EVERY == 0:
            self._look()

    def _enter(self, epoch: int) -> None:
        """What an epoch changes: temperature, step size, and whether the gates are trained yet (for another graph)."""
        self.temperature.fill_(temperature(self.model, epoch))
        self.rate.fill_(learning_rate(self.recipe.train, epoch))
        self.loss.enter(epoch / max(1, self.recipe.train.epochs - 1))
        trained = epoch >= resting_epochs(self.recipe.model)
        if any(weight.requires_grad != trained for weight in shared_weights(self.model)):
            for weight in shared_weights(self.model):
                weight.requires_grad_(trained)
            self.graph, self.eager_steps = None, 0

    def _step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.batch_loss()
        self.broken.copy_(torch.maximum(self.broken, (~loss.detach().isfinite()).float()))
        # A gradient given to `backward` instead would have PyTorch load its symbolic algebra, for half a second.
        (loss * self.share).backward()  # type: ignore[no-untyped-call]
        self.ranks.add_up(each.grad for each in self.parameters if each is not self.model.embedding)
        with part("optimizer"):
            self.optimizer.step()
        self.loss_sum += loss.detach()

    def _capture(self) -> None:
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        self.optimizer.zero_grad()
        with torch.cuda.graph(graph):
            self._step()
        self.graph = graph

    def step_eagerly(self, eager: bool) -> None:
        """Take the next steps one operation at a time, as a profiler needs them; or capture the step again."""
        self.eager = eager
        if self.captures:
            self.graph, self.eager_steps = None, 0

    def slowdown(self) -> float:
        """How many times as long as now a step takes once the resting weights are trained; nothing moves."""
        weights, drawn = shared_weights(self.model), self.generator.get_state()
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        times: dict[bool, list[float]] = {False: [], True: []}
        for trained in (False, True, False, True):
            for weight in weights:
                weight.requires_grad_(trained)
            began = time.perf_counter()
            self.optimizer.zero_grad()
            (self.batch_loss() * self.share).backward()  # type: ignore[no-untyped-call]
            times[trained].append(time.perf_counter() - began)
        for weight in weights:
            weight.requires_grad_(False)
        self.optimizer.zero_grad()
        self.generator.set_state(drawn)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        return max(1.0, min(times[True]) / min(times[False]))

    def _look(self) -> None:
        if self.broken:
            raise TrainingError(
                f"the loss became non-finite in epoch {self.at[0] + 1}, at batch {self.at[1] + 1} or shortly before",
                "lower train.learning_rate",
            )

    def batch_loss(self) -> Tensor:
        """The loss of one freshly drawn batch on one freshly thinned graph."""
        batch = self.sampler.sample(self.recipe.train.batch_size, self.generator)
        return batch_loss(
            self.recipe,
            self.model,
            self.scores,
            self.loss,
            self.operator,
            batch,
            self.temperature,
            self.generator,
            self.ranks,
        )

    def mean_loss(self) -> float:
        self._look()
        mean = float(self.loss_sum) / self.per_epoch
        self.loss_sum.zero_()
        return mean

    def tensors(self) -> dict[str, Tensor]:
        self._look()  # a broken model is never saved
        saved = {"loss_sum": self.loss_sum, "generator": self.generator.get_state()}
        for at, parameter in enumerate(self.parameters):
            for name, tensor in self.optimizer.state.get(parameter, {}).items():
                saved[f"adam.{at}.{name}"] = tensor
        return saved | {f"loss.{name}": tensor for name, tensor in self.loss.state_dict().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.loss_sum.copy_(tensors["loss_sum"])
        self.generator.set_state(tensors["generator"])
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, at, key = name.split(".")
                parameter = self.parameters[int(at)]
                shape, dtype = ((), torch.float32) if key == "step" else (parameter.shape, self.optimizer.moments)
                if key not in MOMENTS or tensor.shape != shape or tensor.dtype != dtype:
                    raise ValueError(
                        f"steps.{name} is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {tuple(shape)}"
                    )
                self.optimizer.state[parameter][key] = tensor.to(parameter.device)
        if any(len(state) != len(MOMENTS) for state in self.optimizer.state.values()):
            raise ValueError(f"steps.adam lacks one of {', '.join(MOMENTS)}")
        self.loss.load_state_dict(
            {name.removeprefix("loss."): tensor for name, tensor in tensors.items() if name.startswith("loss.")}
        )


class SolverSteps:
    """A solved model: one step is one solution, and an epoch."""

    per_epoch = 1

    def __init__(self, model: Solved, train: Csr) -> None:
        self.model, self.train = model, train
        self.loss = 0.0

    def take(self, step: int, epoch: int) -> None:
        self.loss = self.model.solve(self.train)
        if not math.isfinite(self.loss):
            raise TrainingError(f"the loss became {self.loss} in epoch {epoch + 1}", "raise model.regularization")

    def mean_loss(self) -> float:
        return self.loss

    def tensors(self) -> dict[str, Tensor]:
        return {"loss": torch.tensor(self.loss, dtype=torch.float64)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.loss = float(tensors["loss"])
