"""Recipes: what to train and how, as frozen types. A parameter is documented here and nowhere else.

A recipe is resolved in four steps, later ones winning: the defaults below, a preset
(`recipes/<preset>/<family>.toml`, then `recipes/<preset>/<data set>/<family>.toml` where there is one), a TOML file of
the user's, and `section.key=value` overrides. "hmlet", the default, is the best that validation found: for a data set
that was searched at the paper's size on a GPU it is what that search found.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from hmlet.errors import ConfigError

GateType = Literal["linear", "non-linear", "gated"]
HmletName = Literal["hmlet-end", "hmlet-middle", "hmlet-front", "hmlet-all"]
Preset = Literal["hmlet", "gpu", "paper", "authors"]
SEARCHED = {"hmlet": ("hmlet", "gpu")}  # the default is, for a data set, the first of these that has a recipe for it
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """One table of a recipe: frozen, and a key it does not know is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class ModelConfig(Section):
    """What every model has."""

    family: ClassVar[str]

    embedding_size: PositiveInt = 64
    """D, the length of a node's embedding."""
    initial_deviation: PositiveFloat = 0.1
    """Standard deviation of the embeddings before training: 0.1 in the authors' program."""


class GraphModelConfig(ModelConfig):
    """What every model that propagates over the graph has."""

    layers: Annotated[int, Field(ge=1, le=16)] = 4
    """K, how many times embeddings are propagated."""


class HmletConfig(GraphModelConfig):
    """HMLET: each node chooses, layer by layer, between linear and non-linear propagation."""

    family: ClassVar[str] = "hmlet"

    name: HmletName = "hmlet-end"
    gate_types: tuple[GateType, ...] | None = None
    """One type a layer, instead of the variant's: "linear", "non-linear" or "gated"."""
    activation: Literal["elu", "leaky-relu", "relu", "tanh"] = "elu"
    """φ of the non-linear branch; ELU has α = 1."""
    leaky_slope: Rate = 0.01
    """Slope of "leaky-relu" below zero: 0.01 in the paper's text, 0.1 in the authors' program."""
    nonlinear_input: Literal["bypassed", "gated"] = "bypassed"
    """What the first gated layer's non-linear branch propagates: the bypassed e⁰ (text), or eᴳ (formula)."""
    readout: Literal["mean", "layerwise"] = "mean"
    """One dot product of averaged layers (authors' program), or the sum of a dot product a layer (formula)."""
    gate_hidden: tuple[PositiveInt, ...] = (512, 128, 64)
    """Hidden sizes of the gate's MLP between its input of 2 D and its two logits."""
    gate_dropout: Rate = 0.2
    """Dropout between the gate's layers while training."""
    gate_choice: Literal["learned", "random"] = "learned"
    """"random" is an ablation: each node's choice is drawn once and never trained."""
    gate_training: Literal["straight-through", "soft"] = "soft"
    """Gates while training: one-hot forward with soft gradients (paper), or soft (authors' program)."""
    gate_noise: bool = True
    """Gumbel noise on the logits while training; without it, "soft" is a plain mixture."""
    gate_ranking: Literal["argmax", "noisy", "soft"] = "argmax"
    """Gates of the finished model: noise-free choice, the authors' noisy choice, or the mixture."""
    gate_warmup: Annotated[int, Field(ge=0)] = 0
    """Epochs at the start in which the gates' parameters are frozen."""
    temperature: Literal["formula", "text", "authors"] = "text"
    """τ by epoch e: exp(-0.001 e); 0.7 · 0.995ᵉ, floor 0.01; 0.7 · exp(-0.005 (e - 300)) past 300, same floor."""

    @property
    def types(self) -> tuple[GateType, ...]:
        """The gate type of each layer: the variant's, unless given one by one."""
        return self.gate_types or variant_types(self.name, self.layers)

    @model_validator(mode="after")
    def _one_type_a_layer(self) -> HmletConfig:
        if self.gate_types is not None and len(self.gate_types) != self.layers:
            raise ValueError(
                f"gate_types has {len(self.gate_types)} entries for {self.layers} layers; give one a layer"
            )
        return self


def variant_types(name: HmletName, layers: int) -> tuple[GateType, ...]:
    """The paper's table of variants: which layers are gated. End, Middle and Front gate two layers whatever K is."""
    width = min(2, layers)
    first, count = {
        "hmlet-all": (1, layers),
        "hmlet-front": (1, width),
        "hmlet-middle": ((layers - width) // 2 + 1, width),
        "hmlet-end": (layers - width + 1, width),
    }[name]
    return tuple("gated" if first <= layer < first + count else "linear" for layer in range(1, layers + 1))


class LightGCNConfig(GraphModelConfig):
    """LightGCN: linear propagation, layers averaged."""

    family: ClassVar[str] = "lightgcn"
    name: Literal["lightgcn"] = "lightgcn"


class LRGCCFConfig(GraphModelConfig):
    """LR-GCCF: linear propagation with a transformation, layers concatenated."""

    family: ClassVar[str] = "lr-gccf"
    name: Literal["lr-gccf"] = "lr-gccf"
    layers: Annotated[int, Field(ge=1, le=16)] = 3
    """K, how many times embeddings are propagated."""
    transform: bool = True
    """Multiply by a trained matrix at each layer, as its paper says; its program leaves the matrix out."""


class NGCFConfig(GraphModelConfig):
    """NGCF: two transformations, the product of neighbours and LeakyReLU; normalised layers concatenated."""

    family: ClassVar[str] = "ngcf"
    name: Literal["ngcf"] = "ngcf"
    layers: Annotated[int, Field(ge=1, le=16)] = 3
    """K, how many times embeddings are propagated."""
    message_dropout: Rate = 0.1
    """Dropout on each layer's output while training."""
    leaky_slope: Rate = 0.2
    """Slope of LeakyReLU below zero."""


class GCMCConfig(GraphModelConfig):
    """GC-MC: one graph convolution, then a dense layer."""

    family: ClassVar[str] = "gc-mc"
    name: Literal["gc-mc"] = "gc-mc"
    layers: Literal[1] = 1
    """K, how many times embeddings are propagated: one convolution, as in its paper."""
    hidden_dropout: Rate = 0.1
    """Dropout on the messages while training."""


class PinSageConfig(GraphModelConfig):
    """PinSage: convolutions over importance-weighted neighbourhoods that random walks choose."""

    family: ClassVar[str] = "pinsage"
    name: Literal["pinsage"] = "pinsage"
    layers: Annotated[int, Field(ge=1, le=16)] = 2
    """K, how many times embeddings are propagated."""
    neighbours: PositiveInt = 20
    """T, how many of the most visited nodes form a neighbourhood."""
    walks: PositiveInt = 50
    """Random walks that start at each node."""
    walk_length: PositiveInt = 4
    """Steps of a random walk."""


class BPRConfig(ModelConfig):
    """BPR-MF: matrix factorisation trained on pairs."""

    family: ClassVar[str] = "bpr"
    name: Literal["bpr"] = "bpr"


class WRMFConfig(ModelConfig):
    """WRMF: weighted matrix factorisation by alternating least squares; one epoch solves both sides once."""

    family: ClassVar[str] = "wrmf"
    name: Literal["wrmf"] = "wrmf"
    alpha: PositiveFloat = 10.0
    """Confidence of an interaction is 1 + alpha."""
    regularization: PositiveFloat = 0.01
    """λ of the least-squares problems."""


AnyModel = Annotated[
    HmletConfig | LightGCNConfig | LRGCCFConfig | NGCFConfig | GCMCConfig | PinSageConfig | BPRConfig | WRMFConfig,
    Field(discriminator="name"),
]

_FAMILIES: tuple[type[ModelConfig], ...] = get_args(get_args(AnyModel)[0])
MODELS: dict[str, type[ModelConfig]] = {
    name: config for config in _FAMILIES for name in get_args(config.model_fields["name"].annotation)
}


class TrainConfig(Section):
    """How a model is trained."""

    epochs: PositiveInt = 100
    """At most this many passes; early stopping may end sooner."""
    batch_size: PositiveInt = 2048
    """Triplets a step."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's step size, at the start."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How the step size goes on: as it is, or by a half cosine to nearly nothing in the last epoch."""
    beta2: Rate = 0.999
    """How slowly Adam forgets squared gradients: nearer 1 for noisy small batches, less for large ones."""
    l2: Annotated[float, Field(ge=0.0)] = 1e-4
    """λ on the batch's rows of e⁰."""
    l2_weights: bool = False
    """Whether λ covers the other parameters (gates, transformations) too."""
    edge_dropout: Rate = 0.0
    """Share of undirected edges left out of each step's graph; the rest are scaled up to keep the mean."""
    validate_every: PositiveInt = 5
    """Epochs between two evaluations on the validation part."""
    patience: Annotated[int, Field(ge=0)] = 10
    """Evaluations without a better validation NDCG@20 after which training stops; 0 never stops early."""
    checkpoint_seconds: Annotated[float, Field(ge=0.0)] = 60.0
    """At most this much work is lost to a crash; 0 saves after every step."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Storage type of propagated embeddings and of the gate's products on CUDA; parameters and sums stay float32."""
    optimizer_state: Literal["float32", "bfloat16"] = "float32"
    """Type of Adam's two moments; "bfloat16" halves them, rounded at random so that the mean stays right."""
    graph_memory: Literal["device", "host"] = "device"
    """Where the graph lies on CUDA; "host" leaves it in main memory and copies it at each product: the same numbers."""
    deterministic: bool = False
    """Bit-identical results on CUDA too, for some speed."""
    save_layers: bool = True
    """Store every layer's embeddings with the run: new users and explanations need them."""


class Recipe(Section):
    """A model and how it is trained: all that a run depends on beside its data."""

    model: AnyModel
    train: TrainConfig = TrainConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Every random number of a run comes from this."""

    def to_toml(self) -> str:
        """The resolved recipe as TOML, keys in the order of the types above."""
        lines = [f"seed = {self.seed}"]
        for name, section in (("model", self.model), ("train", self.train)):
            values = section.model_dump(mode="json", exclude_none=True)
            values = {"name": values.pop("name"), **values} if "name" in values else values
            lines += ["", f"[{name}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items())]
        return "\n".join(lines) + "\n"

    def changed(self, overrides: Iterable[str]) -> Recipe:
        """This recipe with `section.key=value` overrides."""
        values = tomllib.loads(self.to_toml())
        for section, change in _parse_overrides(overrides).items():
            values[section] = {**values.get(section, {}), **change} if isinstance(change, dict) else change
        return _validated(values, "recipe")

    def flat(self) -> dict[str, Any]:
        """Every value under the name that `--set` has for it."""
        values = tomllib.loads(self.to_toml())
        sections = (("model", values["model"]), ("train", values["train"]))
        return {"seed": self.seed, **{f"{name}.{key}": section[key] for name, section in sections for key in section}}

    @classmethod
    def from_toml(cls, text: str, source: str = "recipe") -> Recipe:
        """A recipe from its TOML, complete or with defaults for what is left out."""
        return _validated(_parse(text, source), source)


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """In words, the first keys whose values differ, with both values."""
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    shown = [f"{key} is {there.get(key, 'unset')} there and {here.get(key, 'unset')} here" for key in keys[:3]]
    return ", ".join(shown) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def resolve(
    model: str,
    preset: str = "hmlet",
    config: Path | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    dataset: str | None = None,
) -> Recipe:
    """The recipe of a model: defaults, then the preset, then a TOML file, then `section.key=value` overrides.

    With the name of a named set, the preset includes what it has for that set.
    """
    if model not in MODELS:
        raise ConfigError(f"there is no model {model!r}", f"choose one of {', '.join(MODELS)}")
    layers = _preset(model, preset, dataset)
    if config is not None:
        if not config.is_file():
            raise ConfigError(f"{config} is not a file", "pass a TOML file, such as one that --print-config wrote")
        layers.append(_parse(_read(config), str(config)))
    layers.append(_parse_overrides(overrides))
    merged: dict[str, Any] = {"model": {}, "train": {}}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, dict):
                merged.setdefault(key, {}).update(value)
            else:
                merged[key] = value
    named = merged["model"].get("name", model)
    if named != model:
        raise ConfigError(f"the recipe is for {named!r}, and --model says {model!r}", "make them the same")
    merged["model"]["name"] = model
    if seed is not None:
        merged["seed"] = seed
    return _validated(merged, "recipe")


def _preset(model: str, preset: str, dataset: str | None) -> list[dict[str, Any]]:
    """The preset's recipe of a model, and what it changes for a data set."""
    family, recipes = MODELS[model].family, resources.files("hmlet.config") / "recipes"
    known = [name for name in get_args(Preset) if (recipes / name / f"{family}.toml").is_file()]
    if preset not in known:
        raise ConfigError(f"preset {preset!r} has no recipe for {model}", f"use --preset {' or '.join(known)}")
    base, layers = preset, [f"{family}.toml"]
    if dataset is not None and Path(dataset).name == dataset:  # a name, and no path
        own = f"{dataset}/{family}.toml"
        searched = [each for each in SEARCHED.get(preset, (preset,)) if (recipes / each / own).is_file()]
        if searched:
            base, layers = searched[0], [*layers, own]
    return [_parse((recipes / base / each).read_text(encoding="utf-8"), f"recipes/{base}/{each}") for each in layers]


def _read(config: Path) -> str:
    try:
        return config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config} cannot be read: {error}", "pass a TOML file in UTF-8") from error


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}", "correct that line") from error
    for name in ("model", "train"):
        if not isinstance(values.get(name, {}), dict):
            raise ConfigError(f"{source}: {name} = {values[name]!r} is not a table", f"write its keys under [{name}]")
    return values


def _parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """`train.epochs=5` as nested tables; a value that is not TOML (end of a word, say) is taken as text."""
    result: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or (dot and not name) or not (dot or section == "seed"):
            raise ConfigError(f"--set {override!r} is not section.key=value", "for example --set train.epochs=20")
        if dot and section not in ("model", "train"):
            raise ConfigError(
                f"--set {override!r}: there is no section {section!r}", "known keys: model.*, train.*, seed"
            )
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value.strip()
        if dot:
            result.setdefault(section, {})[name] = parsed
        else:
            result[section] = parsed
    return result


def _validated(values: dict[str, Any], source: str) -> Recipe:
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"] if part not in MODELS)
        value = first.get("input")
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                f"{source} has no key {path}", f"known keys: {_known_keys(values, first['loc'])}"
            ) from error
        shown = "" if isinstance(value, dict | BaseModel) else f" = {value!r}"
        raise ConfigError(f"{source}: {path}{shown}: {first['msg']}", "correct the value") from error


def _known_keys(values: dict[str, Any], location: tuple[int | str, ...]) -> str:
    if location[0] == "model":
        fields = MODELS[values["model"]["name"]].model_fields
    elif location[0] == "train" and len(location) > 1:
        fields = TrainConfig.model_fields
    else:
        return "model.*, train.*, seed"
    return ", ".join(f"{location[0]}.{name}" for name in fields)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    return repr(value)
