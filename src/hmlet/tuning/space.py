"""What a search may change: for each key of a recipe the values to choose from, or a range."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
from pydantic import ValidationError, model_validator

from hmlet.errors import ConfigError
from hmlet.models import MODELS
from hmlet.system.outside import read_text
from hmlet.system.section import Section
from hmlet.system.spelling import option


class Range(Section):
    """An interval that a sampler draws from: whole numbers where both ends are."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} is not below high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log = true needs low above 0, and it is {self.low}")
        return self


Space = Mapping[str, "tuple[object, ...] | Range"]
"""section.key -> the values to choose from, or a range."""
Point = Mapping[str, object]
"""section.key -> one value of a space; keys that are left out keep the recipe's own value."""


def load_space(file: Path | None, model: str, preset: str = "hmlet", loss: str = "bpr") -> Space:
    """The space of a TOML file's [space] table, or the one that comes with a model's family (and a preset).

    If the loss has its own space, it is added to the family's and takes precedence.
    """
    if file is not None:
        return _parse(read_text(file, "a [space] table in TOML"), file)
    spaces, name = resources.files("hmlet.config") / "recipes" / "spaces", f"{MODELS[model].Config.family}.toml"
    own = spaces / preset / name
    source = own if own.is_file() else spaces / name
    if not source.is_file():
        raise ConfigError(f"{model} has no default search space", "pass a TOML file with a [space] table")
    space, of_loss = _parse(source.read_text(encoding="utf-8"), source), spaces / "losses" / f"{loss}.toml"
    if of_loss.is_file() and not MODELS[model].Config.solved:
        return {**space, **_parse(of_loss.read_text(encoding="utf-8"), of_loss)}
    return space


def _parse(text: str, file: object) -> Space:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not TOML: {error}", "fix that line") from error
    space = tables.pop("space", None)
    if tables or not isinstance(space, dict) or not space:
        raise ConfigError(f"{file} is not one [space] table", 'for example [space] "train.l2" = [1e-4, 1e-3]')
    return {key: _dimension(key, value) for key, value in space.items()}


def _dimension(key: str, value: object) -> tuple[object, ...] | Range:
    if isinstance(value, list) and value:
        return tuple(value)
    try:
        return Range.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"space: {key} = {value!r}: {first['msg']}",
            "give a list of values, or {low = 1e-4, high = 1e-2, log = true}",
        ) from error


def as_json(space: Space) -> dict[str, object]:
    """A space in JSON's types, in which a search remembers it."""
    return {key: values.model_dump() if isinstance(values, Range) else list(values) for key, values in space.items()}


def grid(space: Space, seed: int) -> list[Point]:
    """Every combination of a space's values, in an order drawn from the seed."""
    choices: dict[str, tuple[object, ...]] = {}
    for key, values in space.items():
        if isinstance(values, Range):
            raise ConfigError(
                f"a grid cannot try the range of {key}", f"list its values, or use {option('sampler', 'tpe')}"
            )
        choices[key] = values
    points = [dict(zip(choices, combination, strict=True)) for combination in itertools.product(*choices.values())]
    return [points[at] for at in np.random.default_rng(seed).permutation(len(points))]
