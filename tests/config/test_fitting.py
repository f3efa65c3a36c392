"""The default rule: who gets it, and that it gives every data set a recipe that makes sense."""

from __future__ import annotations

import math

import pytest

from hmlet.config import Shape, fitting, resolve
from hmlet.config.fitting import FEWEST_STEPS, MOST_STEPS, fitted
from hmlet.losses import LOSSES
from hmlet.models import MODELS

SHAPES = [
    Shape(3, 4, 7), Shape(1, 1, 1), Shape(1_880, 4_489, 42_134), Shape(6_022, 3_043, 716_559),
    Shape(29_858, 40_981, 810_128), Shape(40_000, 600, 434_919), Shape(3_000, 30_000, 362_000),
    Shape(10_000_000, 1_000_000, 500_000_000),
]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_shape_gets_a_valid_recipe(model: str, shape: Shape, device: str) -> None:
    recipe = resolve(model, shape=shape, device=device)
    if recipe.model.solved:
        assert recipe == resolve(model)
        return
    train = recipe.train
    steps = train.epochs * math.ceil(shape.interactions / train.batch_size)
    assert steps >= FEWEST_STEPS
    assert steps <= MOST_STEPS[device] + math.ceil(shape.interactions / train.batch_size)
    assert train.batch_size <= 131_072
    assert train.epochs // train.validate_every >= min(train.epochs, 20)
    assert recipe.model.embedding_size <= 2 * max(min(shape.users, shape.items), 8)
    assert recipe.model.start == "spectral"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", sorted(set(LOSSES) - {"bpr"}))
def test_every_loss_gets_settings_of_its_own(loss: str, shape: Shape, device: str) -> None:
    recipe = resolve("lightgcn", overrides=[f"train.loss={loss}"], shape=shape, device=device)
    plain = resolve("lightgcn", shape=shape, device=device)
    assert (recipe.train.draw, recipe.train.edge_dropout) == ("interaction", 0.0)
    assert (plain.train.draw, plain.train.edge_dropout) == ("user", 0.4)
    assert 0.07 <= recipe.loss.temperature <= 0.28  # type: ignore[attr-defined]


def test_the_rule_of_a_likelihood_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """LastFM: everyone in each of 80 steps. Gowalla: 3e12 / (300 · 40,981 · 128) users a step, 16 in an epoch."""
    monkeypatch.setattr(fitting, "multiplies_bfloat16", lambda device: False)
    likelihood = ["train.loss=multinomial"]
    small = resolve("lightgcn", overrides=likelihood, shape=Shape(1_880, 4_489, 42_134), device="cpu")
    assert (small.train.batch_size, small.train.epochs, small.loss.temperature) == (1_880, 80, 0.15)  # type: ignore[attr-defined]
    large = resolve("lightgcn", overrides=likelihood, shape=Shape(29_858, 40_981, 810_128), device="cpu")
    assert (large.train.batch_size, large.train.epochs, large.loss.temperature) == (1_906, 19, 0.07)  # type: ignore[attr-defined]
    assert large.train.precision == "float32"
    pairs = resolve("lightgcn", overrides=["train.loss=softmax"], shape=Shape(1_880, 4_489, 42_134), device="cpu")
    assert (pairs.train.batch_size, pairs.train.epochs, pairs.loss.negatives) == (8_192, 334, 1_000)  # type: ignore[attr-defined]


def test_a_cpu_with_bfloat16_scores_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gowalla: everyone in each of 80 steps, and 90,814 items of as many users: 16e12 / (300 · 90,814 · 128) a step."""
    monkeypatch.setattr(fitting, "multiplies_bfloat16", lambda device: device.type == "cpu")
    likelihood, triplets = (
        resolve("hmlet-end", overrides=[f"train.loss={loss}"], shape=Shape(29_858, 40_981, 810_128), device="cpu")
        for loss in ("multinomial", "bpr")
    )
    assert (likelihood.train.batch_size, likelihood.train.epochs) == (29_858, 80)
    assert (likelihood.train.precision, triplets.train.precision) == ("bfloat16", "float32")
    books = resolve(
        "lightgcn", overrides=["train.loss=multinomial"], shape=Shape(29_787, 90_814, 1_429_082), device="cpu"
    )
    assert (books.train.batch_size, books.train.epochs) == (4_588, 43)


def test_the_rule_by_hand() -> None:
    """LastFM on a GPU: 300 steps of 32,768 triplets, two an epoch."""
    recipe = resolve("hmlet-end", shape=Shape(1_880, 4_489, 42_134), device="cuda")
    assert (recipe.train.batch_size, recipe.train.epochs, recipe.train.learning_rate) == (32_768, 150, 0.008)
    assert (recipe.model.embedding_size, recipe.model.warmup, recipe.train.validate_every) == (512, 18, 6)
    narrow = resolve("hmlet-end", shape=Shape(1_880, 4_489, 42_134), device="cpu")
    assert (narrow.model.embedding_size, narrow.train.learning_rate, narrow.train.precision) == (128, 0.016, "float32")


def test_named_sets_keep_what_was_searched_for_them_where_it_can_be_trained() -> None:
    shape = Shape(29_858, 40_981, 810_128)
    searched = resolve("hmlet-end", dataset="gowalla", shape=shape, device="cuda")
    assert searched == resolve("hmlet-end", "gpu", dataset="gowalla")
    rule = resolve("hmlet-end", shape=shape, device="cuda")
    assert rule.model.start == "spectral"
    assert resolve("hmlet-end", "fitted", dataset="gowalla", shape=shape, device="cuda") == rule
    on_cpu = resolve("hmlet-end", dataset="gowalla", shape=shape, device="cpu")
    assert on_cpu == resolve("hmlet-end", shape=shape, device="cpu")
    embedded = resolve("lightgcn", dataset="debian", shape=Shape(3_779, 1_285, 47_398), device="cpu")
    assert embedded == resolve("lightgcn", dataset="debian")


@pytest.mark.parametrize("preset", ["gpu", "paper", "authors"])
def test_other_presets_do_not_know_the_rule(preset: str) -> None:
    assert resolve("hmlet-end", preset, shape=SHAPES[2], device="cpu") == resolve("hmlet-end", preset)


def test_what_is_set_wins_over_the_rule() -> None:
    recipe = resolve("lightgcn", overrides=["train.epochs=3", "model.start=random"], shape=SHAPES[2], device="cpu")
    assert (recipe.train.epochs, recipe.model.start, recipe.train.batch_size) == (3, "random", 32_768)


def test_gates_are_narrow_only_where_the_model_is() -> None:
    config = MODELS["hmlet-all"].Config
    assert "gate_hidden" in fitted(config, SHAPES[2], "cpu")["model"]
    assert "gate_hidden" not in fitted(config, SHAPES[2], "cuda")["model"]
    assert "gate_warmup" not in fitted(MODELS["lightgcn"].Config, SHAPES[2], "cpu")["model"]
