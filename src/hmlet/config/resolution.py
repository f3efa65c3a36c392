"""Which recipe a model gets: defaults, a preset, a file and overrides, later ones winning.

A preset is `recipes/<preset>/<family>.toml`, then `recipes/<preset>/<data set>/<family>.toml` if it exists. "hmlet",
the default, is the best that validation found: for a named data set what its search found, and for any other the
default rule of hmlet.config.fitting. "fitted" is that rule for every data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple, Unpack, get_args

from hmlet.config.fitting import Shape, fitted, variants
from hmlet.config.recipe import SECTIONS, Recipe, validated
from hmlet.config.settings import Settings, as_tables
from hmlet.config.toml import Table, merge, parse_overrides, parse_toml
from hmlet.config.train import TrainConfig
from hmlet.errors import ConfigError
from hmlet.losses import LOSSES
from hmlet.models import DEFAULT, MODELS, ModelConfig
from hmlet.system.outside import read_text
from hmlet.system.spelling import option

Preset = Literal["hmlet", "fitted", "gpu", "fast", "best", "paper", "authors"]
DEFAULT_PRESET: Preset = "hmlet"
FITTED: Preset = "fitted"  # the default rule, for named sets too
GPU: Preset = "gpu"
RECIPES = resources.files("hmlet.config") / "recipes"


class Target(NamedTuple):
    """What settings are for: a named set, or the shape of other data, and the kind of device, "cpu" or "cuda"."""

    dataset: str | None = None
    shape: Shape | None = None
    device: str | None = None


UNKNOWN = Target()


@dataclass(frozen=True)
class SettingsRequest:
    """The settings that someone asks for: a model, and what changes its defaults; what is left out is None or empty.

    Resolved in this order, later ones winning: the model's defaults, the preset, a TOML file, `section.key=value`
    overrides, settings by keyword, and the seed. For a named set, the preset includes what was searched for that set;
    for data of another shape, what the default rule says for it and the device (hmlet.config.fitting).
    """

    model: str | None = None
    preset: str | None = None
    config: Path | None = None
    overrides: Sequence[str] = ()
    settings: Settings = field(default_factory=lambda: Settings())
    seed: int | None = None

    @property
    def open(self) -> bool:
        """Whether it leaves the model and where its settings come from to others."""
        return self.model is None and self.preset is None and self.config is None

    def changed(self, settings: Settings, seed: int | None) -> SettingsRequest:
        """The request with settings by keyword, and a seed, that win over its own."""
        both: Settings = {**self.settings, **settings}
        return replace(self, settings=both, seed=self.seed if seed is None else seed)

    def applied_to(self, recipe: Recipe) -> Recipe:
        """A recipe with the overrides, the settings and the seed of the request."""
        changes = [*self.overrides, *([] if self.seed is None else [f"seed={self.seed}"])]
        return recipe.changed(changes, **self.settings) if changes or self.settings else recipe

    def resolve(self, target: Target = UNKNOWN) -> Recipe:
        """The one recipe that these settings make."""
        model, preset = self.model or DEFAULT, self.preset or DEFAULT_PRESET
        if model not in MODELS:
            raise ConfigError(f"there is no model {model!r}", f"choose one of {', '.join(MODELS)}")
        chosen = self._tables()
        named = [table["train"]["loss"] for table in chosen if "loss" in table.get("train", {})]
        loss = self.settings.get("loss", named[-1] if named else None)
        merged: Table = {"model": {}, "train": {}}
        for table in [*_preset(model, preset, target, loss), *chosen]:
            merge(merged, table)
        merge(merged, as_tables(self.settings, model, loss or merged["train"].get("loss", TrainConfig().loss)))
        meant = merged["model"].get("name", model)
        if meant != model:
            raise ConfigError(f"the recipe is for {meant!r}, but the model is {model!r}", "use the same model in both")
        merged["model"]["name"] = model
        if self.seed is not None:
            merged["seed"] = self.seed
        return validated(merged, "recipe")

    def _tables(self) -> list[Table]:
        """What the file and the overrides say."""
        overrides = parse_overrides(self.overrides, SECTIONS)
        if self.config is None:
            return [overrides]
        text = read_text(self.config, "a recipe in TOML, such as the config.toml of a run")
        return [parse_toml(text, str(self.config), SECTIONS), overrides]

    def alternatives(self, target: Target = UNKNOWN) -> list[Recipe]:
        """The recipes that a training compares on validation before it takes one.

        The first is `resolve`'s. Others follow where the default rule has all of [train] and [loss] to say: every loss
        that may suit the model better, with and without popularity.
        """
        first = self.resolve(target)
        named = type(first.model)
        keywords = as_tables(self.settings, first.model.name, first.train.loss)
        tables = (parse_overrides(self.overrides, SECTIONS), keywords)
        decided = self.config is not None or any({"train", "loss"} & table.keys() for table in tables)
        if decided or not _ruled(named, self.preset or DEFAULT_PRESET, target):
            return [first]
        chosen = [[f"train.loss={loss}", *variant] for loss in named.defaults.losses for variant in variants(loss)]
        found = [replace(self, overrides=[*self.overrides, *each]).resolve(target) for each in chosen]
        return [first, *(each for each in found if each != first)]


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
    """The recipe of a SettingsRequest, from its parts."""
    request = SettingsRequest(model, preset, config, overrides, settings, seed)
    return request.resolve(Target(dataset, shape, device))


def _preset(model: str, preset: str, target: Target, loss: object) -> list[Table]:
    """The preset's recipe of a model, with what was searched for the data set or what the default rule says for it and
    for a loss other than its own."""
    config = MODELS[model].Config
    base = DEFAULT_PRESET if preset == FITTED else preset
    known = [name for name in get_args(Preset) if _recipe(name, config.family) is not None]
    if base not in known and not (base == DEFAULT_PRESET and not known):
        raise ConfigError(
            f"preset {preset!r} has no recipe for {model}", f"use {option('preset')} {' or '.join(known)}"
        )
    if (searched := _searched(config, preset, target)) is not None:
        return searched
    tables = [_recipe(base, config.family) or {}]
    if _ruled(config, preset, target):
        assert target.shape is not None
        assert target.device is not None
        own = loss if isinstance(loss, str) and loss in LOSSES else "bpr"
        tables.append(fitted(config, target.shape, target.device, own))
    return tables


def _ruled(config: type[ModelConfig], preset: str, target: Target) -> bool:
    """Whether the default rule decides: by its presets, for data of a known shape that no search was made for."""
    known = preset in (DEFAULT_PRESET, FITTED) and target.shape is not None and target.device is not None
    return known and _searched(config, preset, target) is None


def _searched(config: type[ModelConfig], preset: str, target: Target) -> list[Table] | None:
    """The preset's recipe of a model with what was searched for a named set, if something was."""
    dataset = target.dataset
    if dataset is None or Path(dataset).name != dataset or preset == FITTED:  # a path is no name
        return None
    # What was searched at the paper's size on a GPU would take hours on a CPU.
    also = (GPU,) if preset == DEFAULT_PRESET and target.device != "cpu" else ()
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
