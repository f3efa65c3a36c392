"""Every default of a model and a loss, written down a second time: one that moves changes every result after it."""

from __future__ import annotations

from typing import Any

import pytest

from hmlet.config import listing, resolve
from hmlet.errors import ConfigError
from hmlet.losses import LOSSES
from hmlet.models import MODELS, Gated, ItemWeighted, Solved

EMBEDDED = {"embedding_size": 64, "initial_deviation": 0.1, "start": "random"}
HMLET = {
    **EMBEDDED,
    "layers": 4,
    "gate_types": None,
    "activation": "elu",
    "leaky_slope": 0.01,
    "nonlinear_input": "bypassed",
    "readout": "mean",
    "gate_hidden": (512, 128, 64),
    "gate_dropout": 0.2,
    "gate_choice": "learned",
    "gate_training": "soft",
    "gate_noise": True,
    "gate_ranking": "argmax",
    "gate_warmup": 0,
    "temperature": "text",
    "temperature_speed": 1.0,
    "temperature_from": None,
}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("hmlet-end", "hmlet-all", "hmlet-front", "hmlet-middle"), HMLET),
    "lightgcn": {**EMBEDDED, "layers": 4},
    "lr-gccf": {**EMBEDDED, "layers": 3, "transform": True},
    "ngcf": {**EMBEDDED, "layers": 3, "message_dropout": 0.1, "leaky_slope": 0.2},
    "gc-mc": {**EMBEDDED, "layers": 1, "hidden_dropout": 0.1},
    "pinsage": {**EMBEDDED, "layers": 2, "neighbours": 20, "walks": 50, "walk_length": 4},
    "bpr": EMBEDDED,
    "wrmf": {**EMBEDDED, "alpha": 10.0, "regularization": 0.01},
    "popularity": {},
    "itemknn": {"neighbours": 200, "shrinkage": 10.0},
    "ease": {"neighbours": 0, "regularization": 5.0},
    "gf-cf": {"neighbours": 0, "vectors": 256, "alpha": 0.3},
    "cheby-cf": {"neighbours": 0, "vectors": 256, "alpha": 0.2, "order": 8, "flatness": 1.5, "degree_power": 0.4},
}
SOFTMAX = {
    "similarity": "cosine",
    "temperature": 0.1,
    "temperature_end": None,
    "temperature_learned": False,
    "popularity_weight": 0.0,
    "popularity_learned": False,
    "negatives": 0,
}
LOSS_SETTINGS: dict[str, dict[str, Any]] = {
    "bpr": {},
    "softmax": SOFTMAX,
    "multinomial": {**SOFTMAX, "temperature_ratio": None},
    "softmax@k": {**SOFTMAX, "k": 20, "weight_temperature": 1.0},
    "bsl": {**SOFTMAX, "positives": 4, "temperature_ratio": 1.0},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_settings_of_a_model(name: str) -> None:
    config: Any = MODELS[name].Config
    assert config(name=name).model_dump(exclude={"name"}) == SETTINGS[name]


@pytest.mark.parametrize("name", LOSSES)
def test_the_settings_of_a_loss(name: str) -> None:
    assert LOSSES[name].Config().model_dump() == LOSS_SETTINGS[name]


def named(fact: str, of_config: bool = True) -> set[str]:
    """The models, HMLET's variants as one, of which something holds."""
    return {model.Config.family for model in MODELS.values() if getattr(model.Config if of_config else model, fact)}


def test_what_is_known_of_a_model_before_there_is_a_graph() -> None:
    closed = {"popularity", "itemknn", "ease", "gf-cf", "cheby-cf"}
    assert named("solved") == {"wrmf", *closed}
    assert {model.Config.family: model.Config.defaults.step_share for model in MODELS.values()} == {
        **dict.fromkeys(("hmlet", "lightgcn"), 1.0),
        **dict.fromkeys(("lr-gccf", "ngcf", "gc-mc", "pinsage", "bpr", "wrmf", *closed), 0.25),
    }
    assert {name for name, model in MODELS.items() if issubclass(model, Solved)} == {"wrmf", *closed}
    assert {name for name, model in MODELS.items() if issubclass(model, ItemWeighted)} == closed - {"popularity"}
    assert {model.Config.family for model in MODELS.values() if issubclass(model, Gated)} == {"hmlet"}


def test_what_is_known_of_the_layers_of_a_model() -> None:
    assert named("self_loops", of_config=False) == {"lr-gccf"}
    propagated: dict[str | None, set[str]] = {}
    for name in set(MODELS) - {"itemknn", "ease", "gf-cf", "cheby-cf"}:  # which have no layers
        propagated.setdefault(MODELS[name].propagated, set()).add(MODELS[name].Config.family)
    assert propagated["layers"] == {"hmlet", "lightgcn", "lr-gccf", "gc-mc"}
    assert propagated["hidden"] == {"ngcf"}
    assert propagated[None] == {"pinsage", "bpr", "wrmf", "popularity"}
    joined: dict[str, set[str]] = {}
    for model in MODELS.values():
        joined.setdefault(model.joined.how, set()).add(model.Config.family)
    assert joined["concatenation"] == {"lr-gccf", "ngcf"}
    assert joined["last"] == {"gc-mc", "pinsage", "popularity"}


def test_depth_and_width_of_the_defaults() -> None:
    depths = {
        name: resolve(name).model.depth for name in ("hmlet-end", "lightgcn", "lr-gccf", "gc-mc", "pinsage", "bpr")
    }
    assert depths == {"hmlet-end": 4, "lightgcn": 4, "lr-gccf": 3, "gc-mc": 1, "pinsage": 1, "bpr": 0}
    assert {name: resolve(name, overrides=["model.embedding_size=8"]).model.columns for name in ("bpr", "ngcf")} == {
        "bpr": 8,
        "ngcf": 8,
    }
    assert MODELS["popularity"].Config().columns == 1


def test_gc_mc_has_one_layer() -> None:
    assert resolve("gc-mc", overrides=["model.layers=1"]).model.depth == 1
    with pytest.raises(ConfigError, match=r"model\.layers"):
        resolve("gc-mc", overrides=["model.layers=2"])


@pytest.mark.parametrize("setting", ["gf-cf.alpha", "cheby-cf.alpha", "cheby-cf.degree_power", "itemknn.shrinkage"])
def test_a_weight_may_be_zero_and_not_less(setting: str) -> None:
    model, _, name = setting.rpartition(".")
    assert MODELS[model].Config(name=model, **{name: 0.0}).model_dump()[name] == 0.0  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=name):
        resolve(model, overrides=[f"model.{name}=-0.5"])


@pytest.mark.parametrize(("name", "kind"), [("lightgcn", "graph"), ("wrmf", "factorisation"), ("ease", "closed form")])
def test_the_kind_of_a_model(name: str, kind: str) -> None:
    assert listing.kind(MODELS[name].Config) == kind


def test_what_is_known_of_a_loss() -> None:
    assert {name for name, loss in LOSSES.items() if loss.entries == "users"} == {"multinomial"}
    assert LOSSES["bpr"].Config().scoring == ("dot", 0.0, False)


def test_a_training_that_goes_on_keeps_a_loss_without_a_schedule() -> None:
    plain, softmax = LOSSES["bpr"].Config(), LOSSES["softmax"].Config(temperature=0.2)  # type: ignore[call-arg]
    assert plain.continued() is plain
    assert softmax.continued() is softmax
    moving: Any = LOSSES["softmax"].Config(temperature=0.2, temperature_end=0.1)  # type: ignore[call-arg]
    assert (moving.continued().temperature, moving.continued().temperature_end) == (0.1, None)
