"""A recipe: a model, a loss and how it is trained, each described by its own frozen type.

A parameter is documented on its field, and nowhere else: models/ has the models' fields, losses/ the losses'.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Annotated, TypeVar, Unpack

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError

from hmlet.config.settings import Settings, as_tables
from hmlet.config.toml import Table, merge, parse_overrides, parse_toml, toml_line
from hmlet.config.train import TrainConfig
from hmlet.errors import ConfigError
from hmlet.losses import LOSSES, LossConfig
from hmlet.models import BY_PRODUCT, MODELS, ModelConfig, Scoring
from hmlet.system.section import Section

SECTIONS = ("model", "train", "loss")
Kind = TypeVar("Kind", bound=BaseModel)


class Recipe(Section):
    """A model and how it is trained: everything a run depends on except its data."""

    model: SerializeAsAny[ModelConfig]
    train: TrainConfig = TrainConfig()
    loss: SerializeAsAny[LossConfig] = LossConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Every random number of a run comes from this."""

    def __repr__(self) -> str:
        size, epochs = self.model.columns, self.train.epochs
        return f"<Recipe {self.model.name}: D = {size}, at most {epochs} epochs, seed {self.seed}>"

    __str__ = __repr__

    @property
    def scoring(self) -> Scoring:
        """What the loss decides of the scores of a model that it trains."""
        if self.model.solved:
            return BY_PRODUCT
        return self.loss.scoring

    @property
    def objective(self) -> str:
        """What the model is trained by, in words: its loss, and whether popularity adds to scores."""
        return f"popularity-aware {self.train.loss}" if self.scoring.with_popularity else self.train.loss

    def as_json(self) -> dict[str, object]:
        """Every value in JSON's types; a section without keys is left out."""
        values = self.model_dump(mode="json", exclude_none=True)
        return {name: value for name, value in values.items() if value != {}}

    def to_toml(self) -> str:
        """The resolved recipe as TOML, keys in the order of the types above; a section without keys is left out."""
        lines = [f"seed = {self.seed}"]
        for name in SECTIONS:
            values = getattr(self, name).model_dump(mode="json", exclude_none=True)
            values = {"name": values.pop("name"), **values} if "name" in values else values
            if values:
                lines += ["", f"[{name}]", *(toml_line(key, value) for key, value in values.items())]
        return "\n".join(lines) + "\n"

    def changed(self, overrides: Iterable[str] = (), **settings: Unpack[Settings]) -> Recipe:
        """This recipe with `section.key=value` overrides, and with settings by keyword."""
        values = tomllib.loads(self.to_toml())
        loss = settings.get("loss", self.train.loss)
        if loss != self.train.loss:
            values.pop("loss", None)  # the settings of another loss
        for table in (parse_overrides(overrides, SECTIONS), as_tables(settings, self.model.name, loss)):
            merge(values, table)
        return validated(values, "recipe")

    def flat(self) -> dict[str, object]:
        """Every value under the name that `--set` has for it."""
        values = tomllib.loads(self.to_toml())
        sections = {name: values.get(name, {}) for name in SECTIONS}
        return {"seed": self.seed, **{f"{name}.{key}": table[key] for name, table in sections.items() for key in table}}

    @classmethod
    def from_toml(cls, text: str, source: str = "recipe") -> Recipe:
        """A recipe from its TOML, complete or with defaults for what is left out."""
        return validated(parse_toml(text, source, SECTIONS), source)


def differences(there: Mapping[str, object], here: Mapping[str, object]) -> str:
    """In words, the first keys whose values differ, with both values."""
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    shown = [f"{key} is {there.get(key, 'unset')} there and {here.get(key, 'unset')} here" for key in keys[:3]]
    return ", ".join(shown) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def validated(values: Table, source: str) -> Recipe:
    """The recipe of a table of tables, each checked by the type that its model or loss declares."""
    model = _section(_model_type(values, source), values, "model", source)
    train = _section(TrainConfig, values, "train", source)
    if train.loss not in LOSSES:
        raise ConfigError(f"{source}: there is no loss {train.loss!r}", f"choose one of {', '.join(LOSSES)}")
    loss = _section(LOSSES[train.loss].Config, values, "loss", source)
    return _checked(Recipe, {**values, "model": model, "train": train, "loss": loss}, (), source)


def _model_type(values: Table, source: str) -> type[ModelConfig]:
    table = values.get("model")
    name = table.get("name") if isinstance(table, dict) else None
    if not isinstance(name, str) or name not in MODELS:
        said = "has no model.name" if name is None else f"names the model {name!r}, which does not exist"
        raise ConfigError(f"{source} {said}", f"choose one of {', '.join(MODELS)}")
    return MODELS[name].Config


def _section(kind: type[Kind], values: Table, name: str, source: str) -> Kind:
    return _checked(kind, values.get(name, {}), (name,), source)


def _checked(kind: type[Kind], values: object, where: tuple[str, ...], source: str) -> Kind:
    """Values as a type, or an error that names the key, its value and what is wrong with it."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join([*where, *map(str, first["loc"])])
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{source} has no key {path}", _known_keys(kind, where, str(first["loc"][0]))) from error
        value = first.get("input")
        shown = "" if isinstance(value, dict | BaseModel) else f" = {value!r}"
        raise ConfigError(f"{source}: {path}{shown}: {first['msg']}", "correct the value") from error


def _known_keys(kind: type[BaseModel], where: tuple[str, ...], key: str) -> str:
    """What to use instead of a key that a section does not have; only the section of a loss may have none at all."""
    if not where:
        return f"known keys: {', '.join([*(f'{name}.*' for name in SECTIONS), 'seed'])}"
    if kind.model_fields:
        return f"known keys: {', '.join(f'{where[0]}.{name}' for name in kind.model_fields)}"
    losses = " or ".join(name for name, loss in LOSSES.items() if key in loss.Config.model_fields)
    return f"this loss has no settings; leave it out{f', or set train.loss to {losses}' if losses else ''}"
