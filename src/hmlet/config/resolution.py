"""Which recipe a model gets: defaults, a preset, a file and overrides, later ones winning.

A preset is `recipes/<preset>/<family>.toml`, then `recipes/<preset>/<data set>/<family>.toml` if it exists. "hmlet",
the default, is the best that validation found: for a named data set what its search found, and for any other the
default rule of hmlet.config.fitting. "fitted" is that rule for every data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Literal, Unpack, get_args

from hmlet.config.fitting import Shape, fitted, variants
from hmlet.config.recipe import SECTIONS, Recipe, validated
from hmlet.config.settings import Settings, as_tables
from hmlet.config.toml import Table, merge, parse_overrides, parse_toml
from hmlet.config.train import TrainConfig
from hmlet.errors import ConfigError
from hmlet.losses import LOSSES
from hmlet.models import MODELS, ModelConfig
from hmlet.system.outside import read_text
from hmlet.system.spelling import option

Preset = Literal["hmlet", "fitted", "gpu", "fast", "best", "paper", "authors"]
DEFAULT_PRESET: Preset = "hmlet"
FITTED: Preset = "fitted"  # the default rule, for named sets too
GPU: Preset = "gpu"
RECIPES = resources.files("hmlet.config") / "recipes"


def resolve(
    model: str,
    preset: str = DEFAULT_PRESET,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    dataset: str | None = None,
    shape: Shape | None = None,
    device: str | None = None,
    **settings: Unpack[Settings],
) -> Recipe:
    """The recipe of a model: defaults, the preset, a TOML file, `section.key=value` overrides, settings by keyword.

    With the name of a named set, the preset includes what was searched for that set; with the shape of another one and
    the kind of device, "cpu" or "cuda", what the default rule says for it (hmlet.config.fitting).
    """
    if model not in MODELS:
        raise ConfigError(f"there is no model {model!r}", f"choose one of {', '.join(MODELS)}")
    chosen = [parse_overrides(overrides, SECTIONS)]
    if config is not None:
        text = read_text(config, "a recipe in TOML, such as the config.toml of a run")
        chosen.insert(0, parse_toml(text, str(config), SECTIONS))
    named = [table["train"]["loss"] for table in chosen if "loss" in table.get("train", {})]
    loss = settings.get("loss", named[-1] if named else None)
    merged: Table = {"model": {}, "train": {}}
    for table in [*_preset(model, preset, dataset, shape, device, loss), *chosen]:
        merge(merged, table)
    merge(merged, as_tables(settings, model, loss or merged["train"].get("loss", TrainConfig().loss)))
    meant = merged["model"].get("name", model)
    if meant != model:
        raise ConfigError(f"the recipe is for {meant!r}, but the model is {model!r}", "use the same model in both")
    merged["model"]["name"] = model
    if seed is not None:
        merged["seed"] = seed
    return validated(merged, "recipe")


def alternatives(
    model: str,
    preset: str = DEFAULT_PRESET,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    dataset: str | None = None,
    shape: Shape | None = None,
    device: str | None = None,
    **settings: Unpack[Settings],
) -> list[Recipe]:
    """The recipes that a training compares on validation before it takes one.

    The first is `resolve`'s. Others follow where the default rule has all of [train] and [loss] to say: every loss that
    may suit the model better, with and without popularity.
    """
    first = resolve(model, preset, config, overrides, seed, dataset, shape, device, **settings)
    named = MODELS[model].Config
    tables = (parse_overrides(overrides, SECTIONS), as_tables(settings, model, first.train.loss))
    set_here = {name for table in tables for name in table} & {"train", "loss"}
    if config is not None or set_here or not _ruled(named, preset, dataset, shape, device):
        return [first]
    chosen = [[f"train.loss={loss}", *variant] for loss in named.defaults.losses for variant in variants(loss)]
    found = [
        resolve(model, preset, None, [*overrides, *each], seed, dataset, shape, device, **settings) for each in chosen
    ]
    return [first, *(each for each in found if each != first)]


def _preset(
    model: str, preset: str, dataset: str | None, shape: Shape | None, device: str | None, loss: object
) -> list[Table]:
    """The preset's recipe of a model, with what was searched for the data set or what the default rule says for it and
    for a loss other than its own."""
    config = MODELS[model].Config
    base = DEFAULT_PRESET if preset == FITTED else preset
    known = [name for name in get_args(Preset) if _recipe(name, config.family) is not None]
    if base not in known and not (base == DEFAULT_PRESET and not known):
        raise ConfigError(
            f"preset {preset!r} has no recipe for {model}", f"use {option('preset')} {' or '.join(known)}"
        )
    if (searched := _searched(config, preset, dataset, device)) is not None:
        return searched
    tables = [_recipe(base, config.family) or {}]
    if shape is not None and device is not None and _ruled(config, preset, dataset, shape, device):
        tables.append(fitted(config, shape, device, loss if isinstance(loss, str) and loss in LOSSES else "bpr"))
    return tables


def _ruled(
    config: type[ModelConfig], preset: str, dataset: str | None, shape: Shape | None, device: str | None
) -> bool:
    """Whether the default rule decides: by its presets, for data of a known shape that no search was made for."""
    known = preset in (DEFAULT_PRESET, FITTED) and shape is not None and device is not None
    return known and _searched(config, preset, dataset, device) is None


def _searched(config: type[ModelConfig], preset: str, dataset: str | None, device: str | None) -> list[Table] | None:
    """The preset's recipe of a model with what was searched for a named set, if something was."""
    if dataset is None or Path(dataset).name != dataset or preset == FITTED:  # a path is no name
        return None
    # What was searched at the paper's size on a GPU would take hours on a CPU.
    also = (GPU,) if preset == DEFAULT_PRESET and device != "cpu" else ()
    for place in (preset, *also):
        if (searched := _recipe(place, f"{dataset}/{config.family}")) is not None:
            return [table for table in (_recipe(place, config.family), searched) if table is not None]
    return None


def _recipe(preset: str, name: str) -> Table | None:
    """The tables of one of the package's recipes, if it exists."""
    file = RECIPES / preset / f"{name}.toml"
    return (
        parse_toml(file.read_text(encoding="utf-8"), f"recipes/{preset}/{name}", SECTIONS) if file.is_file() else None
    )
