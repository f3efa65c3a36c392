"""One training step: sample, propagate, loss, gradient, update. Two kinds: by gradient, and by least squares."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from hmlet.config import Recipe
from hmlet.data import Csr, Dataset
from hmlet.errors import TrainingError
from hmlet.kernels import Operator
from hmlet.models import Model
from hmlet.models.losses import bpr, penalty
from hmlet.models.schedule import gates_frozen, training_pass
from hmlet.models.wrmf import WRMF
from hmlet.sampling import TripletSampler


class Steps(Protocol):
    """What the loop asks of a way to train."""

    per_epoch: int

    def take(self, step: int, epoch: int) -> None:
        """Move the model by one step."""

    def mean_loss(self, epoch: int) -> float:
        """The mean loss of the epoch that just ended."""

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint has to hold beside the model."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave."""


def make_steps(recipe: Recipe, model: Model, operator: Operator, data: Dataset, device: torch.device) -> Steps:
    """The steps that train a model."""
    if isinstance(model, WRMF):
        return SolverSteps(model, data.csr("train"))
    return GradientSteps(recipe, model, operator, data, device)


class GradientSteps:
    """BPR with Adam. An epoch draws as many triplets as there are training interactions."""

    def __init__(self, recipe: Recipe, model: Model, operator: Operator, data: Dataset, device: torch.device) -> None:
        self.recipe, self.model, self.operator = recipe, model, operator
        self.per_epoch = math.ceil(data.count("train") / recipe.train.batch_size)
        self.sampler = TripletSampler(data.csr("train"), data.n_items, device)
        self.generator = torch.Generator(device).manual_seed(recipe.seed)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, lr=recipe.train.learning_rate, fused=True)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    def take(self, step: int, epoch: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(step, epoch)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise non_finite(value, epoch, step % self.per_epoch)
        loss.backward()  # type: ignore[no-untyped-call]
        if gates_frozen(self.recipe.model, epoch):
            for parameter in self.model.weights():
                parameter.grad = None
        self.optimizer.step()
        self.loss_sum += value

    def loss(self, step: int, epoch: int) -> Tensor:
        """The loss of one freshly drawn batch on one freshly thinned graph."""
        train, model = self.recipe.train, self.model
        batch = self.sampler.sample(train.batch_size, self.generator)
        product = self.operator.drop(train.edge_dropout, dropout_key(self.recipe.seed, step))
        layers = model.propagate(product, training_pass(self.recipe.model, epoch, self.generator))
        rows_3B = torch.cat([batch.user, model.n_users + batch.positive, model.n_users + batch.negative])
        loss = bpr(*model.readout(layers, rows_3B).chunk(3))
        weights = model.weights() if train.l2_weights else []
        return loss + train.l2 * penalty(model.embedding[rows_3B].chunk(3), weights)

    def mean_loss(self, epoch: int) -> float:
        mean = float(self.loss_sum) / self.per_epoch
        self.loss_sum.zero_()
        return mean

    def tensors(self) -> dict[str, Tensor]:
        saved = {"loss_sum": self.loss_sum, "generator": self.generator.get_state()}
        for at, parameter in enumerate(self.parameters):
            for name, tensor in self.optimizer.state.get(parameter, {}).items():
                saved[f"adam.{at}.{name}"] = tensor
        return saved

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.loss_sum.copy_(tensors["loss_sum"])
        self.generator.set_state(tensors["generator"])
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, at, key = name.split(".")
                parameter = self.parameters[int(at)]
                self.optimizer.state[parameter][key] = tensor.to(parameter.device)


class SolverSteps:
    """WRMF: one step solves both sides once, and is an epoch."""

    per_epoch = 1

    def __init__(self, model: WRMF, train: Csr) -> None:
        self.model, self.train = model, train
        self.loss = 0.0

    def take(self, step: int, epoch: int) -> None:
        self.loss = self.model.solve(self.train)
        if not math.isfinite(self.loss):
            raise non_finite(self.loss, epoch, 0)

    def mean_loss(self, epoch: int) -> float:
        return self.loss

    def tensors(self) -> dict[str, Tensor]:
        return {"loss": torch.tensor(self.loss, dtype=torch.float64)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.loss = float(tensors["loss"])


def dropout_key(seed: int, step: int) -> int:
    """The key of a step's edge dropout: the same whenever the step is taken."""
    return (seed << 32) ^ step


def non_finite(loss: float, epoch: int, batch: int) -> TrainingError:
    """The error of a non-finite loss, raised before the optimizer moves."""
    return TrainingError(
        f"the loss became {loss} in epoch {epoch + 1}, batch {batch + 1}",
        "lower train.learning_rate; the last good checkpoint is kept, and --resume starts from it",
    )
