"""Temperatures at hand-computed epochs, and which pass a recipe asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from planted import graph

from hmlet.models import MODELS, NOISE_FREE, ModelConfig, build
from hmlet.models.base import ranking_pass, resting_epochs, training_pass
from hmlet.models.hmlet import HmletConfig, temperature, variant_types

GENERATOR = torch.Generator()


@pytest.mark.parametrize(
    ("schedule", "epoch", "expected"),
    [
        ("formula", 0, 1.0),
        ("formula", 1000, 0.36787944117144233),  # 1 / e
        ("formula", 10_000, 4.5399929762484854e-05),  # no floor
        ("text", 0, 0.7),
        ("text", 1, 0.6965),
        ("text", 2, 0.6930175),
        ("text", 847, 0.0100288),  # the last epoch above the floor …
        ("text", 848, 0.01),  # … and the first at it
        ("authors", 0, 0.7),
        ("authors", 300, 0.7),
        ("authors", 500, 0.25751560882000963),  # 0.7 / e
        ("authors", 1149, 0.010035),
        ("authors", 1150, 0.01),
    ],
)
def test_temperature(schedule: str, epoch: int, expected: float) -> None:
    assert temperature(schedule, epoch) == pytest.approx(expected, rel=1e-4)


GATED, LINEAR = "gated", "linear"


@pytest.mark.parametrize(
    ("name", "layers", "gated"),
    [
        ("hmlet-all", 4, {1, 2, 3, 4}),
        ("hmlet-front", 4, {1, 2}),
        ("hmlet-middle", 4, {2, 3}),
        ("hmlet-end", 4, {3, 4}),
        ("hmlet-all", 1, {1}),
        ("hmlet-front", 1, {1}),
        ("hmlet-middle", 1, {1}),
        ("hmlet-end", 1, {1}),
        ("hmlet-middle", 2, {1, 2}),
        ("hmlet-front", 3, {1, 2}),
        ("hmlet-middle", 3, {1, 2}),
        ("hmlet-end", 3, {2, 3}),
        ("hmlet-all", 6, {1, 2, 3, 4, 5, 6}),
        ("hmlet-front", 6, {1, 2}),
        ("hmlet-middle", 6, {3, 4}),
        ("hmlet-end", 6, {5, 6}),
    ],
)
def test_variants_are_a_table_of_gated_layers(name: Any, layers: int, gated: set[int]) -> None:
    expected = tuple(GATED if layer in gated else LINEAR for layer in range(1, layers + 1))
    assert variant_types(name, layers) == expected
    assert HmletConfig(name=name, layers=layers).types == expected


def model_of(config: ModelConfig) -> Any:
    return build(config, graph([(0, 1), (2, 3)], 3, 4), torch.Generator())


def test_training_pass() -> None:
    model = model_of(HmletConfig(gate_training="straight-through", temperature="text"))
    how = model.training_pass(0.3, GENERATOR)
    assert (how.noise, how.dropout, how.hard, how.temperature) == (GENERATOR, GENERATOR, True, 0.3)
    assert model.temperature(2) == pytest.approx(0.6930175)
    soft = model_of(HmletConfig(gate_training="soft", gate_noise=False)).training_pass(0.7, GENERATOR)
    assert (soft.noise, soft.dropout, soft.hard) == (None, GENERATOR, False)
    other = training_pass(model_of(MODELS["ngcf"].Config()), 0.7, GENERATOR)
    assert (other.noise, other.dropout) == (None, GENERATOR)


def test_ranking_pass_is_noise_free_unless_the_recipe_says_so() -> None:
    assert model_of(HmletConfig()).ranking_pass(9, GENERATOR) is NOISE_FREE
    assert ranking_pass(model_of(MODELS["lightgcn"].Config()), 9, GENERATOR) is NOISE_FREE
    noisy = model_of(HmletConfig(gate_ranking="noisy")).ranking_pass(0, GENERATOR)
    assert (noisy.noise, noisy.dropout, noisy.hard, noisy.temperature) == (GENERATOR, None, True, 0.7)
    soft = model_of(HmletConfig(gate_ranking="soft")).ranking_pass(0, GENERATOR)
    assert (soft.noise, soft.dropout, soft.hard, soft.temperature) == (None, None, False, 0.7)
    assert (NOISE_FREE.noise, NOISE_FREE.dropout, NOISE_FREE.hard) == (None, None, True)


def test_gates_rest_during_the_warmup_only() -> None:
    assert [HmletConfig(gate_warmup=warmup).warmup for warmup in (3, 0)] == [3, 0]
    assert [resting_epochs(HmletConfig(gate_warmup=3)), resting_epochs(MODELS["lightgcn"].Config())] == [3, 0]


def test_a_shorter_training_has_a_shorter_warmup_and_a_faster_temperature() -> None:
    shorter = HmletConfig(gate_warmup=10, temperature_speed=1.5).over(0.25)
    assert (shorter.gate_warmup, shorter.temperature_speed) == (2, 6.0)
    assert HmletConfig().over(1 / 3).temperature_speed == 3.0  # six digits, so that a recipe stays readable


def test_a_training_that_goes_on_goes_on_in_the_schedules() -> None:
    first = HmletConfig(gate_warmup=10).continued(4)
    assert (first.gate_warmup, first.temperature_from) == (6, 4)
    second = first.continued(30)
    assert (second.gate_warmup, second.temperature_from) == (0, 34)
    model = model_of(HmletConfig(temperature="text", temperature_from=3, temperature_speed=2.0))
    assert model.temperature(2) == pytest.approx(0.7 * 0.995**10)
    assert model_of(HmletConfig(temperature="text")).temperature(0) == 0.7


@pytest.mark.parametrize("types", [("gated",), ("gated", "linear", "linear")])
def test_types_are_given_one_a_layer(types: Any) -> None:
    with pytest.raises(ValueError, match=f"gate_types has {len(types)} entries for 2 layers"):
        HmletConfig(layers=2, gate_types=types)
