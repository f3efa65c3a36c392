"""The campaign as data: what the issue asks for is in the plan, every recipe resolves, and no run is wanted twice."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished import NAMES
from pydantic import ValidationError

from hmlet.config import resolve
from hmlet.errors import ConfigError
from hmlet.models import MODELS
from hmlet.reproduction import cells
from hmlet.reproduction.campaign import plan_runs
from hmlet.reproduction.cells import CAMPAIGN, TABLES, Campaign, is_ours
from hmlet.reproduction.plan import Choice, identity

SETS = ("gowalla", "yelp2018", "amazon-book", "amazon-book-29k", "debian")
ALL = tuple(TABLES)


@pytest.mark.parametrize("dataset", SETS)
def test_every_cell_has_a_recipe(dataset: str) -> None:
    choice = Choice(dataset, ALL)
    cells = choice.cells()
    assert {cell.model for cell in cells if cell.table == "main"} == set(NAMES)
    for cell in cells:
        recipe = choice.recipe(cell, 3)
        assert (recipe.model.name, recipe.seed) == (cell.model, 3)


def test_the_seeds_are_those_that_were_asked_for() -> None:
    cells = Choice("gowalla", ALL).cells()
    main = {cell.model: cell.seeds for cell in cells if cell.table == "main"}
    assert (main["hmlet-end"], main["lightgcn"], main["bpr"]) == (5, 5, 1)
    assert {cell.seeds for cell in cells if cell.table == "variants"} == {3}
    assert {cell.seeds for cell in Choice("gowalla", ALL, seeds=2).cells()} == {1, 2}


def test_a_key_of_one_model_can_be_set_when_it_is_chosen_alone() -> None:
    choice = Choice("debian", ALL, models=("lr-gccf",), overrides=("model.transform=false",))
    (run,) = choice.runs()
    assert run.recipe.model.transform is False


def test_a_run_that_fills_several_cells_is_wanted_once_and_first_things_come_first() -> None:
    runs = plan_runs([Choice("gowalla", ALL), Choice("yelp2018", ALL)])
    keys = [(run.dataset, identity(run.recipe)) for run in runs]
    assert len(set(keys)) == len(keys)
    first = [(run.dataset, run.recipe.model.name, run.recipe.seed) for run in runs[:20]]
    pairs = [(data, model) for data in ("gowalla", "yelp2018") for model in ("hmlet-end", "lightgcn")]
    assert first == [(*pair, seed) for seed in (1, 2, 3, 4, 5) for pair in pairs]


def test_the_identity_is_of_what_changes_a_result() -> None:
    recipe = resolve("bpr", seed=1)
    assert identity(recipe) == identity(recipe.changed(["train.save_layers=false", "train.checkpoint_seconds=5"]))
    assert identity(recipe) != identity(recipe.changed(["seed=2"]))
    assert identity(recipe, seed=False) == identity(recipe.changed(["seed=2"]), seed=False)
    assert identity(recipe) != identity(recipe.changed(["train.validate_every=7"]))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tables": ("maine",)}, "maine"),
        ({"models": ("hmlet",)}, "hmlet-end"),
        ({"seeds": 0}, "seeds=0"),
        ({"preset": "paper"}, "lightgcn"),
        ({"overrides": ("model.sise=3",)}, "model.sise"),
    ],
)
def test_a_wrong_choice_is_named_with_its_fix(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        Choice("debian", **wrong).runs()  # type: ignore[arg-type]
    assert words in str(error.value)
    assert error.value.hint


@pytest.fixture
def content() -> dict[str, Any]:
    """What campaign.toml says, to be spoilt."""
    return tomllib.loads(Path(cells.__file__).with_name("campaign.toml").read_text(encoding="utf-8"))


def rename_a_model(content: dict[str, Any]) -> None:
    content["main"][0]["models"] = ["lightgcm"]


def invent_a_model(content: dict[str, Any]) -> None:
    content["titles"]["lightgcm"] = "LightGCM"


def misspell_a_key(content: dict[str, Any]) -> None:
    content["variants"]["seed"] = 3


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (rename_a_model, "titles lacks lightgcm"),
        (invent_a_model, "there is no model lightgcm"),
        (misspell_a_key, "variants.seed"),
    ],
)
def test_a_campaign_that_contradicts_itself_is_refused(
    content: dict[str, Any], spoil: Callable[[dict[str, Any]], None], words: str
) -> None:
    assert Campaign.model_validate(content) == CAMPAIGN
    spoil(content)
    with pytest.raises(ValidationError, match=words):
        Campaign.model_validate(content)


def test_the_papers_variants_are_ours() -> None:
    assert {model for model in MODELS if is_ours(model)} == set(CAMPAIGN.variants.models.values())
    assert CAMPAIGN.variant(cells.OURS) == "end"
