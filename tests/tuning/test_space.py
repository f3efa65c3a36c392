"""Spaces: what a file may say, which points are drawn, and that every shipped space fits its model's recipe."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from finished import NAMES

from hmlet.config import Recipe, resolve
from hmlet.errors import ConfigError
from hmlet.losses import LOSSES
from hmlet.tuning import Range, Space, load_space
from hmlet.tuning.space import grid


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[space]\n", "is not one .space. table"),
        ("[space]\n'train.l2' = [1]\n[train]\nepochs = 1\n", "is not one .space. table"),
        ("[space", "is not TOML"),
        ("[space]\n'train.l2' = []\n", "train.l2"),
        ("[space]\n'train.l2' = {low = 2, high = 1}\n", "low = 2.* is not below high"),
        ("[space]\n'train.l2' = {low = 0, high = 1, log = true}\n", "log = true needs low above 0"),
        ("[space]\n'train.l2' = {from = 1, to = 2}\n", "train.l2"),
    ],
)
def test_a_broken_space_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "space.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_space(tmp_path / "space.toml", "bpr")


def test_a_grid_has_every_combination_in_the_seeds_order() -> None:
    space: Space = {"a": (1, 2, 3), "b": ("x", "y")}
    product = [{"a": a, "b": b} for a, b in itertools.product((1, 2, 3), ("x", "y"))]
    assert grid(space, 5) == [product[at] for at in np.random.default_rng(5).permutation(6)]
    with pytest.raises(ConfigError, match="the range of a"):
        grid({"a": Range(low=1, high=2)}, 5)


def _require_recipes(base: Recipe, space: Space) -> None:
    for key, values in space.items():
        assert isinstance(values, tuple)
        for value in values:
            section, name = key.split(".")
            changed = base.changed([f"{key}={json.dumps(value)}"])
            assert getattr(getattr(changed, section), name) == value


@pytest.mark.parametrize("preset", ["hmlet", "gpu"])
@pytest.mark.parametrize("model", sorted(NAMES))
def test_every_point_of_a_shipped_space_is_a_recipe(preset: str, model: str) -> None:
    _require_recipes(resolve(model, preset), load_space(None, model, preset))


@pytest.mark.parametrize("loss", sorted(set(LOSSES) - {"bpr"}))
def test_a_loss_adds_its_space_to_that_of_a_model(loss: str) -> None:
    plain, space = load_space(None, "lightgcn"), load_space(None, "lightgcn", loss=loss)
    assert space.keys() > plain.keys()
    assert {key.split(".")[0] for key in space.keys() - plain.keys()} <= {"loss", "train"}
    assert any(key.startswith("loss.") for key in space)
    _require_recipes(resolve("lightgcn", overrides=[f"train.loss={loss}"]), space)
    assert 12 <= len(grid(space, 1)) <= 60
    assert load_space(None, "wrmf", loss=loss) == load_space(None, "wrmf")  # it is solved, whatever the loss
