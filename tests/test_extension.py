"""A model and a loss of one's own, defined here and nowhere in the package, do all that the package's own do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from forked import Forked
from planted import checkerboard
from served import client_of
from torch import Tensor, nn

from hmlet import Run, fit
from hmlet.cli import main
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.graph import Graph, Sizes
from hmlet.losses import LOSSES, LossConfig, Terms
from hmlet.losses import register as register_loss
from hmlet.losses.bpr import BPR, triplet_margins
from hmlet.losses.sampling import Triplets
from hmlet.models import MODELS, GraphModelConfig, Layers, Model, Pass, Product, Views
from hmlet.models import register as register_model
from hmlet.runs.loading import load_model
from hmlet.serving.settings import Settings
from hmlet.system.ranks import Ranks
from hmlet.training.planning import memory_plan

# -- a model: linear propagation with a trained weight a layer, and the agreement of two views as a further term --


class TwoViewsConfig(GraphModelConfig):
    """Two views: weighted linear propagation, and a penalty on how much two thinned graphs disagree."""

    family: ClassVar[str] = "two-views"
    name: Literal["two-views"] = "two-views"
    agreement: float = 0.1
    """Weight of the disagreement in the loss."""


class TwoViews(Model):
    Config = TwoViewsConfig
    config: TwoViewsConfig

    def __init__(self, config: TwoViewsConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        self.strength = nn.Parameter(torch.ones(config.layers))

    def propagate(self, product: Product, how: Pass) -> Layers:
        layers: list[Tensor] = [self.embedding]
        for layer in range(self.config.layers):
            layers.append(product(layers[-1]) * self.strength[layer])
        return self.readout(layers, how)

    def auxiliary(self, views: Views, how: Pass) -> Tensor:
        nodes = views.nodes()
        apart = (views.layers.factors(nodes) - views.another().factors(nodes)).square().sum() / len(nodes)
        return self.config.agreement * how.ranks.total(apart)[0]


# -- a loss: the hinge on BPR's triplets, whose width is trained --------------------------------------------------


class HingeConfig(LossConfig):
    width: float = 1.0
    """By how much a positive shall be ahead before it costs nothing; where training begins."""


class Hinge(BPR):
    name = "hinge"
    Config = HingeConfig

    def __init__(self, config: HingeConfig) -> None:
        super().__init__(config)
        self.width = nn.Parameter(torch.tensor(config.width))

    def forward(self, layers: Layers, batch: Triplets) -> Terms:
        margin_B, norms = triplet_margins(layers, batch)
        return Terms(torch.relu(self.width - margin_B).mean() + (self.width - 1.0).square(), norms)


# -- what they do -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_model(TwoViews)
    register_loss(Hinge)
    yield
    del MODELS["two-views"], LOSSES["hinge"]


SETTINGS = [
    "train.loss=hinge", "loss.width=0.9", "model.embedding_size=16", "model.layers=2", "train.epochs=12",
    "train.batch_size=64", "train.learning_rate=0.03", "train.edge_dropout=0.2", "train.checkpoint_seconds=0",
]  # fmt: skip


def recipe(*overrides: str) -> Recipe:
    return resolve("two-views", overrides=[*SETTINGS, *overrides])


@pytest.fixture(scope="module")
def board() -> Dataset:
    return checkerboard()


@pytest.fixture
def run(board: Dataset, tmp_path: Path) -> Run:
    return fit(board, recipe(), tmp_path / "run", device="cpu")


def test_it_learns_evaluates_recommends_and_folds_in(run: Run, board: Dataset) -> None:
    """The board has one right answer: a user's own colour."""
    assert run.evaluate("test", "train+valid", 1).metrics["recall"] == 1.0
    (answer,) = run.recommend(["u0"], 2, "train")
    assert all(int(each["item"][1:]) % 2 == 0 for each in answer["items"])
    (newcomer,) = run.recommend_new([["i0", "i2", "i4"]], 9)
    assert all(int(each["item"][1:]) % 2 == 0 for each in newcomer["items"])


def test_its_explanation_adds_up(run: Run) -> None:
    (best,) = run.recommend(["u1"], 1, "train")[0]["items"]
    parts = run.explain("u1", best["item"])
    assert sum(each["contribution"] for each in parts["layers"]) == pytest.approx(parts["score"], rel=1e-5)
    assert len(parts["layers"]) == 3
    assert parts["gates"] == []


def test_its_parameters_are_trained_and_come_back(run: Run, tmp_path: Path) -> None:
    model = load_model(run.directory)
    assert isinstance(model, TwoViews)
    assert not torch.equal(model.strength, torch.ones(2))
    assert torch.equal(model.embedding, run.directory.weights()["embedding"])
    assert run.recipe == recipe()
    assert run.recipe.loss == HingeConfig(width=0.9)


def test_its_further_term_moves_the_training(board: Dataset, run: Run, tmp_path: Path) -> None:
    other = fit(board, recipe("model.agreement=0.0"), tmp_path / "other", device="cpu")
    assert not torch.equal(other.factors[0], run.factors[0])


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_extension as t
from hmlet.training.steps import GradientSteps

t.register_model(t.TwoViews)
t.register_loss(t.Hinge)
sound, taken = GradientSteps.take, 0

def take(self, step, epoch):
    global taken
    taken += 1
    if taken == 21:
        os.kill(os.getpid(), signal.SIGKILL)
    sound(self, step, epoch)

GradientSteps.take = take
t.fit(t.checkerboard(), t.recipe(), {out!r}, device="cpu")
"""


def test_it_resumes_after_a_kill_to_the_last_bit(board: Dataset, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = Forked(KILLED.format(tests=str(Path(__file__).parent), out=str(out)))
    process.wait()
    assert process.status == -9
    assert (out / "checkpoint.safetensors").is_file()
    resumed = fit(board, recipe(), out, device="cpu", resume=True)
    for side in (0, 1):
        assert torch.equal(resumed.factors[side], run.factors[side])


def test_it_is_planned(board: Dataset) -> None:
    small, large = (
        memory_plan(recipe(f"train.batch_size={size}"), Sizes(10_000, 5_000, 100_000), "cpu") for size in (64, 65_536)
    )
    assert large.activations > small.activations > 0
    assert small.table > 3 * 15_000 * 16 * 4


def test_it_is_exported(run: Run, board: Dataset, tmp_path: Path) -> None:
    assert run.export(tmp_path / "top.parquet", 3) == 3 * board.n_users
    table = pq.read_table(tmp_path / "top.parquet").to_pydict()
    first = run.recommend([table["user"][0]], 3)[0]["items"]
    assert [each["item"] for each in first] == table["item"][:3]


def test_the_command_line_knows_it(board: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board.save(tmp_path / "data")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    asked = ["train", str(tmp_path / "data"), "--model", "two-views", "--out", str(tmp_path / "run"), "--json"]
    assert main([*asked, "--device", "cpu", *settings]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "two-views"
    assert (
        main(["train", str(tmp_path / "data"), "--model", "two-views", "--set", "train.loss=none", "--out", "x"]) == 2
    )
    assert "choose one of bpr, softmax, multinomial, softmax@k, bsl, hinge" in capsys.readouterr().err


def test_it_is_served(run: Run) -> None:
    with client_of(run.directory.path, Settings()) as client:
        answer = client.post("/v1/recommend", json={"users": ["u0"], "k": 2})
        assert answer.status_code == 200
        served = [each["item"] for each in answer.json()[0]["items"]]
        assert served == [each["item"] for each in run.recommend(["u0"], 2)[0]["items"]]
        assert client.post("/v1/explain", json={"user": "u0", "item": served[0]}).status_code == 200
        assert client.post("/v1/recommend", json={"items": ["i0", "i2"], "k": 2}).status_code == 200


def test_ranks_share_it(board: Dataset) -> None:
    """Two ranks' shares of the columns are planned; each holds half of the table."""
    one, two = (memory_plan(recipe(), Sizes(10_000, 5_000, 100_000), "cpu", Ranks(0, size)) for size in (1, 2))
    assert np.isclose(two.table, one.table / 2, rtol=0.01)
