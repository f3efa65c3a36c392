"""Every model's layers, factors and gradients against dense float64 matrices and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracles
import planted
import pytest
import torch
from finished import NAMES
from products import By
from torch import Tensor, nn

from hmlet.graph import Graph
from hmlet.graph.kernels import Operator, build_operator
from hmlet.losses.bpr import bpr, margins
from hmlet.models import MODELS, Layers, Model, ModelConfig, Pass, build
from hmlet.models.hmlet import HmletConfig
from hmlet.training.steps import shared_weights

N_USERS, N_ITEMS = 7, 9
# The last user and item stay alone: a node without edges is part of every check.
PAIRS = planted.random_pairs(5, N_USERS - 1, N_ITEMS - 1, 0.35)
GRAPH = planted.graph(PAIRS, N_USERS, N_ITEMS)
DENSE = oracles.adjacency(PAIRS, N_USERS, N_ITEMS)
SMALL = {"embedding_size": 3, "gate_hidden": (6, 5)}
TYPES = [
    ("gated",),
    ("non-linear",),
    ("linear", "gated"),
    ("gated", "linear", "gated"),
    ("non-linear", "linear", "gated"),
    ("linear", "non-linear", "gated", "linear", "gated"),
    ("linear", "linear", "linear", "linear", "linear"),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact_operator(graph: Graph, self_loops: bool) -> Operator:
    """Â with weights rounded to float64 only."""
    degree = graph.degree + int(self_loops)
    scale = np.where(degree > 0, np.maximum(degree, 1) ** -0.5, 0.0)
    arrays: Any = (graph.indptr, graph.neighbours, graph.edges, scale)
    return build_operator(*arrays, self_loops=self_loops, dtype=torch.float64)


def model_of(config: ModelConfig) -> tuple[Model, Operator]:
    """A model in float64, every parameter and statistic away from its tidy initial value, and its operator."""
    model = build(config, GRAPH, generator(1)).double().eval()
    noise = generator(2)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0, generator=noise)
            elif tensor.is_floating_point() and "importance" not in name and "choice" not in name:
                tensor.normal_(0.0, 0.6, generator=noise)
    return model, exact_operator(GRAPH, model.self_loops)


def parameters(model: Model) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def scores(layers: Layers) -> np.ndarray:
    users_UF, items_IF = layers.factors().split([N_USERS, N_ITEMS])
    return (users_UF @ items_IF.T).detach().numpy()


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def check_hmlet(config: HmletConfig, how: Pass, choose: oracles.Choose, batch_norm: bool = False) -> None:
    """Layers, gate probabilities and scores of one configuration."""
    model, operator = model_of(config)
    model.train(batch_norm)
    values = parameters(model)  # before the pass, which moves the running statistics
    layers = model.propagate(operator, how)
    expected, logits = oracles.hmlet(
        values,
        oracles.normalised(DENSE),
        config.types,
        oracles.activation(config.activation, config.leaky_slope),
        config.nonlinear_input,
        choose,
        batch_norm,
    )
    assert len(layers.embeddings_ND) == len(expected) == config.layers + 1
    for ours, theirs in zip(layers.embeddings_ND, expected, strict=True):
        close(ours.detach(), theirs)
    assert layers.gates.keys() == logits.keys()
    for layer, probability_N in layers.gates.items():
        close(probability_N, oracles.softmax(logits[layer])[:, 1])
    if config.readout == "mean":
        expected_UI = oracles.mean_scores(expected, N_USERS)
    else:
        expected_UI = oracles.layerwise_scores(expected, N_USERS, 1 / (config.layers + 1))
    close(scores(layers), expected_UI)


@pytest.mark.parametrize("readout", ["mean", "layerwise"])
@pytest.mark.parametrize("nonlinear_input", ["bypassed", "gated"])
@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["hmlet-end", "hmlet-middle", "hmlet-front", "hmlet-all"])
def test_hmlet_variants(name: Any, layers: int, nonlinear_input: Any, readout: Any) -> None:
    config = HmletConfig(name=name, layers=layers, nonlinear_input=nonlinear_input, readout=readout, **SMALL)
    check_hmlet(config, Pass(), oracles.argmax)


@pytest.mark.parametrize("activation", ["elu", "leaky-relu", "relu", "tanh"])
@pytest.mark.parametrize("nonlinear_input", ["bypassed", "gated"])
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_hmlet_gate_types_and_activations(types: Any, nonlinear_input: Any, activation: Any) -> None:
    config = HmletConfig(
        layers=len(types),
        gate_types=types,
        nonlinear_input=nonlinear_input,
        activation=activation,
        leaky_slope=0.1,
        **SMALL,
    )
    check_hmlet(config, Pass(temperature=0.3, hard=False), lambda logits: oracles.softmax(logits, 0.3))


@pytest.mark.parametrize("hidden", [(), (4,), (6, 5, 3)])
@pytest.mark.parametrize("hard", [True, False])
def test_hmlet_takes_the_batch_statistics_while_training(hidden: tuple[int, ...], hard: bool) -> None:
    config = HmletConfig(name="hmlet-all", layers=2, embedding_size=3, gate_hidden=hidden)
    choose = oracles.argmax if hard else oracles.softmax
    check_hmlet(config, Pass(hard=hard), choose, batch_norm=True)


def test_noise_moves_the_choice_and_nothing_else() -> None:
    config = HmletConfig(name="hmlet-end", layers=3, **SMALL)
    model, operator = model_of(config)
    noisy = model.propagate(operator, Pass(noise=generator(4)))
    quiet = model.propagate(operator, Pass())
    for layer, kind in enumerate(config.types, 1):
        if kind == "linear":
            close(noisy.embeddings_ND[layer].detach(), quiet.embeddings_ND[layer].detach())
    first = config.types.index("gated") + 1
    close(noisy.gates[first], quiet.gates[first])
    linear_ND = oracles.normalised(DENSE) @ parameters(model)["embedding"]
    branches = [
        np.linalg.matrix_power(oracles.normalised(DENSE), first - 1) @ linear_ND,
        oracles.activation("elu", 0)(linear_ND),
    ]
    chosen_ND = noisy.embeddings_ND[first].detach().numpy()
    distances = [np.abs(chosen_ND - branch).max(axis=1) for branch in branches]
    assert (np.minimum(*distances) < 1e-12).all(), "each node's embedding is one of the two"
    assert not np.allclose(chosen_ND, quiet.embeddings_ND[first].detach().numpy())


def test_random_gates_stay_what_they_were_drawn() -> None:
    config = HmletConfig(name="hmlet-all", layers=3, gate_choice="random", **SMALL)
    model, operator = model_of(config)
    drawn = {int(name.split(".")[1]): tensor.numpy() for name, tensor in model.state_dict().items() if "choice" in name}
    assert all(0 < choice_N2[:, 1].sum() < len(choice_N2) for choice_N2 in drawn.values())
    assert not np.array_equal(drawn[1], drawn[2])
    for how in (Pass(), Pass(noise=generator(8), temperature=0.1, hard=False)):
        ours = model.propagate(operator, how)
        previous_ND = parameters(model)["embedding"]
        for layer in (1, 2, 3):
            linear_ND = oracles.normalised(DENSE) @ previous_ND
            previous_ND = np.where(drawn[layer][:, 1:] == 1, oracles.activation("elu", 0)(linear_ND), linear_ND)
            close(ours.embeddings_ND[layer].detach(), previous_ND)
            close(ours.gates[layer], drawn[layer][:, 1])
    assert shared_weights(model) == []


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_lightgcn(layers: int) -> None:
    model, operator = model_of(MODELS["lightgcn"].Config(embedding_size=3, layers=layers))
    expected = oracles.lightgcn(parameters(model), oracles.normalised(DENSE), layers)
    for ours, theirs in zip(model.propagate(operator, Pass()).embeddings_ND, expected, strict=True):
        close(ours.detach(), theirs)
    close(scores(model.propagate(operator, Pass())), oracles.mean_scores(expected, N_USERS))


@pytest.mark.parametrize("transform", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_lrgccf(layers: int, transform: bool) -> None:
    model, operator = model_of(MODELS["lr-gccf"].Config(embedding_size=3, layers=layers, transform=transform))
    operator_NN = oracles.normalised(DENSE, self_loops=True)
    expected = oracles.lrgccf(parameters(model), operator_NN, layers, transform)
    close(scores(model.propagate(operator, Pass())), oracles.layerwise_scores(expected, N_USERS, 1.0))
    assert len(shared_weights(model)) == (layers if transform else 0)


@pytest.mark.parametrize("layers", [1, 3])
def test_ngcf(layers: int) -> None:
    model, operator = model_of(MODELS["ngcf"].Config(embedding_size=3, layers=layers))
    expected = oracles.ngcf(parameters(model), DENSE, layers, slope=0.2)
    for ours, theirs in zip(model.propagate(operator, Pass()).embeddings_ND, expected, strict=True):
        close(ours.detach(), theirs)
    close(scores(model.propagate(operator, Pass())), oracles.layerwise_scores(expected, N_USERS, 1.0))


def test_gcmc() -> None:
    model, operator = model_of(MODELS["gc-mc"].Config(embedding_size=3))
    factors_NF = oracles.gcmc(parameters(model), oracles.normalised(DENSE))
    close(scores(model.propagate(operator, Pass())), factors_NF[:N_USERS] @ factors_NF[N_USERS:].T)


@pytest.mark.parametrize("layers", [1, 2])
def test_pinsage(layers: int) -> None:
    model, operator = model_of(MODELS["pinsage"].Config(embedding_size=3, layers=layers, neighbours=4))
    factors_NF = oracles.pinsage(parameters(model), layers)
    close(scores(model.propagate(operator, Pass())), factors_NF[:N_USERS] @ factors_NF[N_USERS:].T)


@pytest.mark.parametrize("name", ["bpr", "wrmf"])
def test_matrix_factorisation_does_not_propagate(name: str) -> None:
    model, operator = model_of(MODELS[name].Config(embedding_size=3))
    embedding_ND = parameters(model)["embedding"]
    close(scores(model.propagate(operator, Pass())), embedding_ND[:N_USERS] @ embedding_ND[N_USERS:].T)


@pytest.mark.parametrize("name", NAMES)
def test_the_float32_operator_gives_the_same_up_to_rounding(name: str) -> None:
    config: Any = MODELS[name].Config(name=name, embedding_size=3)
    exact, operator = model_of(config)
    rounded = build(config, GRAPH, generator(1)).eval()
    rounded.load_state_dict({name: tensor.clone() for name, tensor in exact.state_dict().items()})
    loops = exact.self_loops
    single = build_operator(GRAPH.indptr, GRAPH.neighbours, GRAPH.edges, GRAPH.scale(loops), self_loops=loops)
    how = Pass(hard=False)  # a hard gate may flip where its logits are a rounding apart
    ours, theirs = rounded.propagate(single, how).factors(), exact.propagate(operator, how).factors()
    np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_product_in_a_narrower_type_serves_every_model(name: str) -> None:
    """As on CUDA with train.precision = "bfloat16", for which float16 stands: not every CPU multiplies the other."""
    model = build(MODELS[name].Config(name=name), GRAPH, generator(1))  # type: ignore[call-arg]
    operator = build_operator(GRAPH.indptr, GRAPH.neighbours, GRAPH.edges, GRAPH.scale(model.self_loops))
    exact = model.eval().propagate(operator, Pass()).factors()
    found = model.propagate(By(lambda x_ND: operator(x_ND.float()).half()), Pass()).factors()
    assert (found - exact).norm() < 0.02 * exact.norm()
    if name != "wrmf":  # which is solved, and has no gradient
        found.float().square().sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all()
        assert model.embedding.grad is not None


@pytest.mark.parametrize("name", NAMES)
def test_readout_of_some_rows_is_those_rows(name: str) -> None:
    config: Any = MODELS[name].Config(name=name, embedding_size=3)
    model, operator = model_of(config)
    layers = model.propagate(operator, Pass())
    rows_R = torch.tensor([4, 0, 15, 4])
    assert torch.equal(layers.factors(rows_R), layers.factors()[rows_R])


@pytest.mark.parametrize("name", NAMES)
def test_every_initial_number_comes_from_the_generator(name: str) -> None:
    config: Any = MODELS[name].Config(name=name, embedding_size=3)
    torch.manual_seed(1)
    first = build(config, GRAPH, generator(7)).state_dict()
    torch.manual_seed(2)
    second = build(config, GRAPH, generator(7)).state_dict()
    other = build(config, GRAPH, generator(8)).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["embedding"], other["embedding"])
    small = build(config.model_copy(update={"initial_deviation": 0.05}), GRAPH, generator(7)).state_dict()
    torch.testing.assert_close(2.0 * small["embedding"], first["embedding"])


@pytest.mark.parametrize("name", ["hmlet-all", "ngcf", "gc-mc"])
def test_dropout_comes_from_its_generator_alone(name: str) -> None:
    config: Any = MODELS[name].Config(name=name, embedding_size=3)
    model, operator = model_of(config)

    def first_layer(seed: int | None) -> Tensor:
        torch.manual_seed(seed or 0)  # must not matter
        how = Pass(dropout=None if seed is None else generator(seed), hard=False)
        return model.propagate(operator, how).factors().detach()

    assert torch.equal(first_layer(3), first_layer(3))
    assert not torch.equal(first_layer(3), first_layer(4))
    assert torch.equal(first_layer(None), first_layer(None))


class BatchLoss(nn.Module):
    """A model's BPR loss on a fixed batch; the generators start anew at each call."""

    def __init__(self, model: Model, operator: Operator, noisy: bool) -> None:
        super().__init__()
        self.model, self.operator, self.noisy = model, operator, noisy

    def forward(self) -> Tensor:
        rate, noise = (generator(6), generator(9)) if self.noisy else (None, None)
        layers = self.model.propagate(self.operator, Pass(noise=noise, dropout=rate, temperature=0.7, hard=False))
        rows = [torch.tensor(rows) for rows in ([0, 3, 5, 0, 6], [7, 8, 12, 9, 7], [15, 10, 11, 13, 14])]
        return bpr(margins(*(layers.factors(row) for row in rows)))


TINY = {"embedding_size": 2, "gate_hidden": (3, 2)}  # a finite difference is two passes for each parameter
GRADIENT_CASES: dict[str, Callable[[], ModelConfig]] = {
    "hmlet-end": lambda: HmletConfig(layers=3, **TINY),
    "hmlet-all-layerwise": lambda: HmletConfig(name="hmlet-all", layers=2, readout="layerwise", **TINY),
    "hmlet-formula": lambda: HmletConfig(name="hmlet-front", layers=2, nonlinear_input="gated", **TINY),
    "hmlet-non-linear": lambda: HmletConfig(layers=2, gate_types=("non-linear", "linear"), activation="tanh", **TINY),
    "lightgcn": lambda: MODELS["lightgcn"].Config(embedding_size=2, layers=3),
    "lr-gccf": lambda: MODELS["lr-gccf"].Config(embedding_size=2, layers=2),
    "ngcf": lambda: MODELS["ngcf"].Config(embedding_size=2, layers=2),
    "gc-mc": lambda: MODELS["gc-mc"].Config(embedding_size=2),
    "pinsage": lambda: MODELS["pinsage"].Config(embedding_size=2, neighbours=3),
    "bpr": lambda: MODELS["bpr"].Config(embedding_size=2),
}


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("case", GRADIENT_CASES)
def test_gradients_equal_finite_differences(case: str, noisy: bool) -> None:
    """Through loss, readout, gates and product; with noise, BatchNorm's batch statistics and dropout too."""
    model, operator = model_of(GRADIENT_CASES[case]())
    loss = BatchLoss(model, operator, noisy).train(noisy)
    names = [name for name, _ in loss.named_parameters()]

    def value(*tensors: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(loss, dict(zip(names, tensors, strict=True)))
        return result

    inputs = tuple(tensor.detach().clone().requires_grad_() for tensor in loss.parameters())
    assert torch.autograd.gradcheck(value, inputs, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_the_product_is_computed_once_a_layer() -> None:
    for name in ("hmlet-end", "hmlet-all"):
        model, operator = model_of(HmletConfig(name=name, layers=4, **SMALL))  # type: ignore[arg-type]
        calls = []

        def counted(x_ND: Tensor, operator: Operator = operator, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            return operator(x_ND)

        model.propagate(By(counted), Pass())
        assert len(calls) == 4
