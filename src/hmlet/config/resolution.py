"""Which recipe a model gets: defaults, a preset, a file and overrides, later ones winning.

A preset is `recipes/<preset>/<family>.toml`, then `recipes/<preset>/<data set>/<family>.toml` if it exists. "hmlet",
the default, is the best that validation found: for a data set that was searched at the paper's size on a GPU it is what
that search found.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

from hmlet.config.recipe import SECTIONS, Recipe, validated
from hmlet.config.toml import Table, parse_overrides, parse_toml
from hmlet.errors import ConfigError
from hmlet.models import MODELS

Preset = Literal["hmlet", "gpu", "paper", "authors"]
DEFAULT_PRESET: Preset = "hmlet"
SEARCHED = {"hmlet": ("hmlet", "gpu")}  # the default is, for a data set, the first of these that has a recipe for it
RECIPES = resources.files("hmlet.config") / "recipes"


def resolve(
    model: str,
    preset: str = DEFAULT_PRESET,
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
    tables = _preset(model, preset, dataset)
    if config is not None:
        if not config.is_file():
            raise ConfigError(f"{config} is not a file", "pass a TOML file, such as one that --print-config wrote")
        tables.append(parse_toml(_read(config), str(config), SECTIONS))
    tables.append(parse_overrides(overrides, SECTIONS))
    merged: Table = {"model": {}, "train": {}}
    for table in tables:
        for key, value in table.items():
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
    return validated(merged, "recipe")


def _preset(model: str, preset: str, dataset: str | None) -> list[Table]:
    """The preset's recipe of a model, and what it changes for a data set; a model without any has its defaults."""
    family = MODELS[model].Config.family
    known = [name for name in get_args(Preset) if (RECIPES / name / f"{family}.toml").is_file()]
    if not known and preset == DEFAULT_PRESET:
        return []
    if preset not in known:
        raise ConfigError(f"preset {preset!r} has no recipe for {model}", f"use --preset {' or '.join(known)}")
    base, files = preset, [f"{family}.toml"]
    if dataset is not None and Path(dataset).name == dataset:  # a name, and no path
        own = f"{dataset}/{family}.toml"
        searched = [each for each in SEARCHED.get(preset, (preset,)) if (RECIPES / each / own).is_file()]
        if searched:
            base, files = searched[0], [*files, own]
    return [
        parse_toml((RECIPES / base / each).read_text(encoding="utf-8"), f"recipes/{base}/{each}", SECTIONS)
        for each in files
    ]


def _read(config: Path) -> str:
    try:
        return config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config} cannot be read: {error}", "pass a TOML file in UTF-8") from error
