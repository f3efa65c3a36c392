"""Milliseconds of a training step with the softmax over all items, beside BPR's and beside plain PyTorch's softmax.

All three are steps of `hmlet train` on the same model, graph and batch size: sampling, propagation, loss, gradient and
update. The plain one computes the whole batch × items matrix and leaves the rest to autograd. Error: the loss and its
gradients by the blocks' type, beside float64's.

    python lab/benchmarks/bench_softmax.py --dataset gowalla --dim 512 --batch 8192 --device cuda --json
    python lab/benchmarks/bench_softmax.py --dataset debian --dim 16 --batch 256 --repeats 3 --json     (seconds)
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch
from harness import hardware, median_seconds, parsed, publish, relative_error
from torch import Tensor
from torch.nn import functional as F

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.graph import Graph, Sizes, training_graph
from hmlet.graph.kernels import log_sums
from hmlet.graph.layers import Layers
from hmlet.losses import Terms, register
from hmlet.losses.base import row_norms
from hmlet.losses.sampling import Pairs
from hmlet.losses.softmax import Softmax
from hmlet.models import Scores, build
from hmlet.models.base import training_pass
from hmlet.system.ranks import ALONE
from hmlet.training.planning import memory_plan
from hmlet.training.steps import GradientSteps, make_operator

TARGET = 2.5  # times a BPR step


@register
class PlainSoftmax(Softmax):
    """The softmax as one writes it first."""

    name = "plain-softmax"

    def forward(self, layers: Layers, batch: Pairs) -> Terms:
        factors_NF, n_users = layers.factors(), layers.n_users
        dtype = layers.embeddings_ND[-1].dtype
        users_BF = factors_NF[batch.user] / self.log_temperature.exp()
        scores_BI = users_BF.to(dtype) @ factors_NF[n_users:].to(dtype).T
        positive_B = batch.positive[:, 0]
        rows = [layers.initial_ND[batch.user], layers.initial_ND[n_users + positive_B]]
        return Terms(F.cross_entropy(scores_BI.float(), positive_B), row_norms(rows))


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    data = load(options.dataset)
    graph = training_graph(data)
    result: dict[str, Any] = {"dataset": data.name, "users": data.n_users, "items": data.n_items}
    result |= {name: getattr(options, name) for name in ("model", "dim", "layers", "batch", "precision")}
    result |= {"temperature": options.temperature, "edge_dropout": options.edge_dropout, "hardware": hardware(device)}
    sides = {}
    for loss in ("bpr", "softmax", "plain-softmax"):
        recipe = _recipe(options, loss)
        sides[loss] = _step(recipe, data, graph, device, options.repeats)
        sides[loss]["planned_bytes"] = memory_plan(recipe, Sizes.of(data), device.type).tensors
    result["steps"] = sides
    result["times_a_bpr_step"] = sides["softmax"]["ms"] / sides["bpr"]["ms"]
    result["target_times_a_bpr_step"] = TARGET
    result["speedup_over_plain"] = sides["plain-softmax"]["ms"] / sides["softmax"]["ms"]
    result |= _error(_recipe(options, "softmax"), data, graph, device)
    publish("softmax", result, options.json, options.record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--model", default="lightgcn")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--precision", default="bfloat16", help="as train.precision")
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--edge-dropout", type=float, default=0.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=50)
    return parsed(parser)


def _recipe(options: argparse.Namespace, loss: str) -> Recipe:
    values = {
        "model.embedding_size": options.dim, "model.layers": options.layers, "train.batch_size": options.batch,
        "train.precision": options.precision, "train.edge_dropout": options.edge_dropout, "train.loss": loss,
        "train.learning_rate": 1e-3, "train.schedule": "constant",
    }  # fmt: skip
    values |= {} if loss == "bpr" else {"loss.temperature": options.temperature}
    return resolve(options.model, "gpu", overrides=[f"{key}={value}" for key, value in values.items()])


def _step(recipe: Recipe, data: Dataset, graph: Graph, device: torch.device, repeats: int) -> dict[str, Any]:
    """A step's milliseconds, captured as a graph on CUDA, and the mean loss of those that were timed."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    steps = _steps(recipe, data, graph, device)
    count, at = 0, itertools.count()

    def take() -> None:
        nonlocal count
        count = next(at) + 1
        steps.take(count - 1, 0)

    seconds = median_seconds(take, device, repeats, warm_up=5)
    found: dict[str, Any] = {"ms": 1e3 * seconds, "mean_loss": float(steps.loss_sum) / count}
    found["captured"] = steps.graph is not None
    found["peak_bytes"] = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return found


def _steps(recipe: Recipe, data: Dataset, graph: Graph, device: torch.device) -> GradientSteps:
    initial = torch.Generator().manual_seed(recipe.seed)
    model = build(recipe.model, graph, initial).to(device).train()
    scores = Scores.start(recipe.scoring, graph, recipe.train.precision).to(device)
    return GradientSteps(recipe, model, scores, make_operator(recipe, model, graph, device), data, device, ALONE)


def _error(recipe: Recipe, data: Dataset, graph: Graph, device: torch.device) -> dict[str, float]:
    """How far the log-sums of a small batch and their gradients are from float64's, in the blocks' type."""
    steps = _steps(recipe, data, graph, device)
    users = steps.sampler.sample(min(512, recipe.train.batch_size), steps.generator).user
    with torch.no_grad():
        layers = steps.scores(steps.model.propagate(steps.operator, training_pass(steps.model, 1.0, steps.generator)))
        factors_NF = layers.factors()
    users_BF, items_IF = factors_NF[users] / steps.loss.log_temperature.exp(), factors_NF[data.n_users :]
    weights_B = torch.full((len(users),), 1.0 / len(users), device=device)
    dtype = layers.embeddings_ND[-1].dtype

    def gradients(exact: bool) -> tuple[Tensor, Tensor]:
        kind = torch.float64 if exact else torch.float32
        inputs = [each.to(kind, copy=True).requires_grad_() for each in (users_BF, items_IF)]
        if exact:
            total = torch.dot(weights_B.double(), torch.logsumexp(inputs[0] @ inputs[1].T, dim=1))
        else:
            total = log_sums(*inputs, weights_B, dtype=dtype, bounded=True)
        found = torch.autograd.grad(total, inputs)
        return total.detach(), torch.cat([each.double().flatten() for each in found])

    (exact, exact_gradient), (ours, gradient) = gradients(True), gradients(False)
    return {
        "loss_relative_error": abs(float(ours) / float(exact) - 1.0),
        "gradient_relative_error": relative_error(gradient, exact_gradient),
    }


if __name__ == "__main__":
    main()
