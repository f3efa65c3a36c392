"""The settings of a recipe as Python keywords: `fit(data, "lightgcn", epochs=5, embedding_size=32)`.

A keyword is the key of a model or of training. A setting of the loss has the prefix `loss_`: loss="softmax",
loss_temperature=0.2. The fields of the types document each setting; here are its name and type for editors and type
checkers.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypedDict

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from hmlet.config.toml import Table
from hmlet.config.train import TrainConfig
from hmlet.data.inputs import Preparing
from hmlet.errors import ConfigError
from hmlet.losses import LOSSES, LossConfig
from hmlet.models import MODELS, ModelConfig

LOSS_PREFIX = "loss_"


class Settings(TypedDict, total=False):
    """Every setting of the models, of training and of the losses that come with hmlet; a model takes its own."""

    # Training.
    epochs: int
    loss: str
    batch_size: int
    draw: Literal["user", "root", "interaction", "weight"]
    learning_rate: float
    schedule: Literal["constant", "cosine"]
    beta2: float
    l2: float
    l2_weights: bool
    edge_dropout: float
    validate_every: int
    patience: int
    stop_after: int | None
    checkpoint_seconds: float
    precision: Literal["float32", "bfloat16"]
    optimizer_state: Literal["float32", "bfloat16"]
    graph_memory: Literal["device"]
    deterministic: bool
    save_layers: bool
    # Models.
    embedding_size: int
    initial_deviation: float
    start: Literal["random", "spectral"]
    layers: int
    gate_types: Sequence[Literal["linear", "non-linear", "gated"]] | None
    activation: Literal["elu", "leaky-relu", "relu", "tanh"]
    leaky_slope: float
    nonlinear_input: Literal["bypassed", "gated"]
    readout: Literal["mean", "layerwise"]
    gate_hidden: Sequence[int]
    gate_dropout: float
    gate_choice: Literal["learned", "random"]
    gate_training: Literal["straight-through", "soft"]
    gate_noise: bool
    gate_ranking: Literal["argmax", "noisy", "soft"]
    gate_warmup: int
    temperature: Literal["formula", "text", "authors"]
    temperature_speed: float
    temperature_from: int | None
    transform: bool
    message_dropout: float
    hidden_dropout: float
    neighbours: int
    walks: int
    walk_length: int
    alpha: float
    regularization: float
    shrinkage: float
    vectors: int
    order: int
    flatness: float
    degree_power: float
    # Losses.
    loss_similarity: Literal["dot", "cosine"]
    loss_temperature: float
    loss_temperature_end: float | None
    loss_temperature_learned: bool
    loss_temperature_ratio: float | None
    loss_popularity_weight: float
    loss_popularity_learned: bool
    loss_negatives: int
    loss_positives: int
    loss_k: int
    loss_weight_temperature: float


# What other libraries call a setting.
SYNONYMS = {
    "embedding_size": "factors no_components n_factors n_components embedding_dim latent_dim dim",
    "epochs": "iterations n_epochs num_epochs n_iter max_epochs",
    "learning_rate": "lr step_size",
    "layers": "n_layers num_layers depth",
    "l2": "reg reg_weight weight_decay",
    "batch_size": "train_batch_size",
    "patience": "stopping_step early_stopping",
    "seed": "random_state",
}
# Arguments of the functions that take settings, for a better hint on a misspelt one.
ARGUMENTS = ("callbacks", "device", "minutes", "out", "overrides", "preset", "progress", "resume", "seed", "threads")
_OURS = {theirs: ours for ours, words in SYNONYMS.items() for theirs in words.split()}


class _Key(NamedTuple):
    """Where a keyword goes: a key of a section, and the field that checks it."""

    section: str
    key: str
    field: FieldInfo


def keywords(model: type[ModelConfig], loss: type[LossConfig]) -> dict[str, _Key]:
    """Every keyword that a model and a loss take."""
    return {
        **{name: _Key("train", name, field) for name, field in TrainConfig.model_fields.items()},
        **{name: _Key("model", name, field) for name, field in model.model_fields.items() if name != "name"},
        **{LOSS_PREFIX + name: _Key("loss", name, field) for name, field in loss.model_fields.items()},
    }


def as_tables(settings: Mapping[str, object], model: str, loss: str) -> Table:
    """Keywords as the tables of a recipe; each value is checked here, where its keyword is known."""
    known = keywords(MODELS[model].Config, LOSSES[loss].Config if loss in LOSSES else LossConfig)
    tables: Table = {}
    for name, value in settings.items():
        if name not in known:
            raise _unknown(name, list(known), model, loss)
        section, key, field = known[name]
        checked = _checked(name, value.item() if isinstance(value, np.generic) else value, field)
        tables.setdefault(section, {})[key] = checked
    return tables


def _checked(name: str, value: object, field: FieldInfo) -> object:
    try:
        return TypeAdapter(field.rebuild_annotation()).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{name}={value!r}: {error.errors()[0]['msg']}", "correct the value") from error


def _unknown(name: str, known: list[str], model: str, loss: str) -> ConfigError:
    """The error for a keyword that this model and loss do not take."""
    if name in (where := _elsewhere()):
        has = f"with loss={loss!r}" if name.startswith(LOSS_PREFIX) else f"of {model}"
        return ConfigError(f"`{name}` is no setting {has}", f"leave it out, or use {' or '.join(where[name])}")
    if name in Preparing.__annotations__:
        hint = f"make a data set with it: Dataset.from_frame(…, {name}=…) or Dataset.from_file(…, {name}=…)"
        return ConfigError(f"`{name}` is no setting, but says how data is prepared", hint)
    names = [*known, *ARGUMENTS]
    near = [_OURS[name]] if _OURS.get(name) in names else difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"the settings of {model} are {', '.join(known)}"
    return ConfigError(f"there is no setting `{name}`", hint)


def _elsewhere() -> dict[str, list[str]]:
    """The models or losses that take each keyword that not all of them take."""
    found: dict[str, list[str]] = {}
    for name, model in MODELS.items():
        for key in model.Config.model_fields:
            found.setdefault(key, []).append(name)
    for name, loss in LOSSES.items():
        for key in loss.Config.model_fields:
            found.setdefault(LOSS_PREFIX + key, []).append(f"loss={name!r}")
    return found
