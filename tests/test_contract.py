"""One contract for each model: what any of them does, whatever its formula is."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from finished import CLOSED, NAMES
from planted import checkerboard, dataset
from torch import Tensor

from hmlet.api import Run, fit
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.errors import DataError, UnknownId
from hmlet.graph import training_graph
from hmlet.graph.kernels import Operator
from hmlet.models import MODELS, NOISE_FREE, GatedConfig, Model, build
from hmlet.runs.loading import load_model
from hmlet.training.steps import make_operator

LEARNS = ["train.epochs=60", "train.batch_size=256", "train.learning_rate=0.02", "train.patience=0"]
SHORT = ["train.epochs=3", "train.batch_size=64", "train.learning_rate=0.02", "train.validate_every=1"]
NEWCOMER = 48  # the board's first user without a training item


def recipe(model: str, *overrides: str, seed: int = 1) -> Recipe:
    """A recipe that is small enough for a test and still learns the board."""
    small = {
        "hmlet": ["model.embedding_size=16", "model.gate_hidden=[8]", "model.gate_warmup=1"],  # trained when selected
        "wrmf": ["model.embedding_size=2"],  # the rank of the board; with more it learns the holes too
    }.get(MODELS[model].Config.family, ["model.embedding_size=16"] if model in NAMES else [])
    return resolve(model, overrides=["train.edge_dropout=0", *small, *overrides], seed=seed)


def board() -> Dataset:
    """The checkerboard, and two users whose only items are withheld: one has a valid item, one a test item."""
    plain = checkerboard()
    pairs = {part: _pairs(plain, part) for part in ("train", "valid", "test")}
    pairs["valid"].append((NEWCOMER, 0))
    pairs["test"].append((NEWCOMER + 1, 1))
    return dataset(NEWCOMER + 2, plain.n_items, "board", **pairs)


def _pairs(data: Dataset, part: str) -> list[tuple[int, int]]:
    where = data.slice(part)
    return list(zip(data.user[where].tolist(), data.item[where].tolist(), strict=True))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def learned(model: str, directory: Path) -> Run:
    """A model that has had time to learn the board."""
    return fit(board(), recipe(model, *LEARNS), directory / model, device="cpu")


def short(model: str, data: Dataset, out: Path, *, seed: int = 1, device: str = "cpu") -> Run:
    """Three epochs: enough where the question is not what was learned."""
    return fit(data, recipe(model, *SHORT, seed=seed), out, device=device)


def numbers(run: Run) -> list[Tensor]:
    """All that a run ranks by: its factors, or its item-item weights."""
    return list(run.directory.item_weights() or run.factors)


def same_numbers(one: Run, other: Run) -> bool:
    return all(torch.equal(a, b) for a, b in zip(numbers(one), numbers(other), strict=True))


def test_solves_the_checkerboard_exactly(learned: Run) -> None:
    if learned.record.model == "popularity":
        pytest.skip("every item of the board is equally popular")
    evaluation = learned.evaluate("test", "train+valid", 1)
    on_the_board = evaluation.users < NEWCOMER
    assert on_the_board.sum() == NEWCOMER
    assert evaluation.per_user["recall"][on_the_board].tolist() == [1.0] * NEWCOMER


def test_gates_are_learned_and_decide(learned: Run) -> None:
    """The board is solved without them, so gates are looked at themselves: training moved every one of their weights,
    and the other choice at a gated layer gives other factors."""
    if not isinstance(learned.recipe.model, GatedConfig):
        pytest.skip("it has no gates")
    graph = training_graph(learned.data)
    initial = build(learned.recipe.model, graph, torch.Generator().manual_seed(learned.recipe.seed))
    model = load_model(learned.directory)
    gates = {name: weight for name, weight in model.named_parameters() if name.startswith("gates.")}
    assert gates
    for name, weight in gates.items():
        assert not torch.equal(weight, initial.get_parameter(name)), name
    operator = make_operator(learned.recipe, model, graph, torch.device("cpu"))
    for layer in model.gates:
        linear, nonlinear = (forced(model, layer, bias, operator) for bias in ([1e4, -1e4], [-1e4, 1e4]))
        assert (linear - nonlinear).abs().max() > 0.01 * linear.abs().max()


def forced(model: Model, layer: str, bias: list[float], operator: Operator) -> Tensor:
    """The factors with one gate's choice forced by its last bias."""
    model = deepcopy(model).eval()
    with torch.no_grad():
        model.gates[layer].bias.copy_(torch.tensor(bias))
        return model.propagate(operator, NOISE_FREE).factors()


def test_an_unknown_user_is_refused_by_name(learned: Run) -> None:
    with pytest.raises(UnknownId, match="nobody"):
        learned.recommend(["u0", "nobody"])


def test_a_user_without_history_has_a_ranking(learned: Run) -> None:
    """Nothing is masked for such a user, so every item comes once, with a score."""
    (answer,) = learned.recommend([f"u{NEWCOMER}"], k=100, mask="train")
    assert sorted(each["item"] for each in answer["items"]) == sorted(f"i{n}" for n in range(learned.data.n_items))
    assert np.isfinite([each["score"] for each in answer["items"]]).all()
    assert all(torch.isfinite(each).all() for each in numbers(learned))


def test_one_user_or_a_batch_is_the_same(learned: Run) -> None:
    users = [f"u{n}" for n in range(learned.data.n_users)]
    assert learned.recommend(users, k=5) == [learned.recommend([user], k=5)[0] for user in users]


def test_a_run_that_is_opened_again_is_the_same(learned: Run) -> None:
    opened = Run.open(learned.directory.path)
    assert same_numbers(opened, learned)
    assert opened.recipe == learned.recipe
    assert opened.recommend(["u0", "u1"]) == learned.recommend(["u0", "u1"])


def test_the_seed_decides_all_of_it(model: str, tmp_path: Path) -> None:
    """A second fit starts anew: bit-identical with the same seed, different with another."""
    first = short(model, board(), tmp_path / "first")
    assert same_numbers(short(model, board(), tmp_path / "again"), first)
    if model not in CLOSED:  # these have one solution, whatever the seed
        assert not same_numbers(short(model, board(), tmp_path / "other", seed=2), first)


SHAPES: dict[str, Callable[[], Dataset]] = {
    "star of one user": lambda: dataset(1, 5, train=[(0, n) for n in range(3)], valid=[(0, 3)], test=[(0, 4)]),
    "star of one item": lambda: dataset(5, 2, train=[(n, 0) for n in range(5)], valid=[(0, 1)], test=[(1, 1)]),
    "disconnected": lambda: dataset(6, 6, train=[(0, 0), (1, 0), (2, 1)], valid=[(0, 1)], test=[(3, 4)]),
    "complete but one": lambda: dataset(
        4, 4, train=[(u, i) for u in range(4) for i in range(4) if (u, i) != (3, 3)], valid=[(3, 3)]
    ),
    "nothing withheld": lambda: dataset(4, 4, train=[(n, n) for n in range(4)] + [(0, 1)]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_degenerate_graph_trains_to_finite_numbers(model: str, shape: str, tmp_path: Path) -> None:
    data = SHAPES[shape]()
    run = short(model, data, tmp_path / "run")
    assert all(torch.isfinite(each).all() for each in numbers(run))
    if data.count("valid"):
        metrics = run.evaluate("valid", "train", 2).metrics
        assert all(0.0 <= value <= 1.0 for value in metrics.values())
    answers = run.recommend([f"u{n}" for n in range(data.n_users)], k=100, mask="train")
    assert [len(each["items"]) for each in answers] == (data.n_items - data.csr("train").counts).tolist()


def test_one_user_and_one_item_leave_nothing_to_compare(model: str, tmp_path: Path) -> None:
    data = dataset(1, 1, train=[(0, 0)])
    if MODELS[model].Config.solved:  # it compares nothing
        assert all(torch.isfinite(each).all() for each in numbers(short(model, data, tmp_path / "run")))
        return
    with pytest.raises(DataError, match="some, but not all, of the items"):
        short(model, data, tmp_path / "run")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_learns_what_the_cpu_learns(model: str, learned: Run, tmp_path: Path) -> None:
    """The two devices draw other random numbers, so it is the answers that agree.

    The test items come first on both, and the validation NDCG@20 differs by at most 0.05: both have solved the board,
    and a newcomer without history is the only user whose place is left to chance.
    """
    run = fit(board(), recipe(model, *LEARNS), tmp_path / "cuda", device="cuda")
    evaluation = run.evaluate("test", "train+valid", 1)
    assert evaluation.per_user["recall"][evaluation.users < NEWCOMER].tolist() == [1.0] * NEWCOMER
    assert run.record.valid["ndcg"] == pytest.approx(learned.record.valid["ndcg"], abs=0.05)
