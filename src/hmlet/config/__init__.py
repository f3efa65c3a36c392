"""Recipes: what to train and how, as frozen types, and the recipes that come with the package, as data."""

from hmlet.config.fitting import Shape
from hmlet.config.recipe import Recipe, differences
from hmlet.config.resolution import DEFAULT_PRESET, Preset, SettingsRequest, Target, resolve
from hmlet.config.settings import Settings
from hmlet.config.train import TrainConfig

__all__ = [
    "DEFAULT_PRESET",
    "Preset",
    "Recipe",
    "Settings",
    "SettingsRequest",
    "Shape",
    "Target",
    "TrainConfig",
    "differences",
    "resolve",
]
