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
    assert {cell.seeds for cell in cells if cell.table in ("variants", "ablation")} == {3}
    assert {cell.seeds for cell in Choice("gowalla", ALL, seeds=2).cells()} == {1, 2}


def test_the_ablation_changes_what_it_says() -> None:
    choice = Choice("gowalla", ALL)
    arms = {(cell.group, cell.label): choice.recipe(cell, 1) for cell in choice.cells(["ablation"])}
    base = arms["gates", "trained"]
    whole = resolve("hmlet-end", "gpu", seed=1, dataset="gowalla")
    assert base == whole.changed(["train.epochs=200", "model.gate_warmup=25"])
    assert (whole.train.epochs, whole.model.gate_warmup) == (400, 50)  # the same share of it
    assert arms["gates", "random and frozen"].model.gate_choice == "random"
    assert arms["gates", "all linear"].model.types == ("linear",) * 4
    assert arms["gates", "all non-linear"].model.types == ("linear", "linear", "non-linear", "non-linear")
    soft = arms["gates", "soft mixture without noise"].model
    assert (soft.gate_training, soft.gate_noise, soft.gate_ranking) == ("soft", False, "soft")
    assert arms["edge dropout", "0.0"].train.edge_dropout == 0.0
    off = arms["edge dropout", "LightGCN, 0.0"]
    assert (off.model.name, off.train.edge_dropout) == ("lightgcn", 0.0)
    assert arms["readout", "layerwise"].model.readout == "layerwise"
    assert arms["input of the non-linear branch", "gated"].model.nonlinear_input == "gated"
    assert {arms["activation", each].model.activation for each in ("elu", "leaky-relu", "relu", "tanh")} == {
        *("elu", "leaky-relu", "relu", "tanh")
    }
    assert [arms["temperature schedule", each].model.temperature for each in ("formula", "authors")] == [
        *("formula", "authors")
    ]
    assert arms["gate warm-up", "30 % of the epochs"].model.gate_warmup == 60
    sizes = [arms["embedding size", each].model.embedding_size for each in ("64", "128", "256", "512")]
    assert sizes == [64, 128, 256, 512]


def test_an_arm_wins_over_what_is_set_for_all() -> None:
    choice = Choice("debian", ALL, overrides=("model.embedding_size=8", "train.epochs=40"))
    arms = {(cell.group, cell.label): choice.recipe(cell, 1) for cell in choice.cells(["ablation"])}
    assert arms["gates", "trained"].model.embedding_size == 8
    assert arms["embedding size", "64"].model.embedding_size == 64
    assert arms["gate warm-up", "30 % of the epochs"].model.gate_warmup == 12


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
    assert all(run.cell.table == "ablation" for run in runs[20:40])


def test_what_the_tests_need_does_not_depend_on_the_table_that_asks() -> None:
    tested = {run.name for run in Choice("debian", ("main",)).runs() if run.tested}
    for run in Choice("debian", ("ablation",)).runs():
        assert run.tested == (run.name in tested)
    assert any(run.tested for run in Choice("debian", ("ablation",)).runs())


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


def forget_the_schedule(content: dict[str, Any]) -> None:
    del content["ablation"]["shorter"]["lightgcn"]


def give_arms_and_options(content: dict[str, Any]) -> None:
    content["ablation"]["groups"][1]["arms"] = [{"label": "both"}]


def forget_the_options(content: dict[str, Any]) -> None:
    del content["ablation"]["groups"][1]["options"]


def misspell_a_key(content: dict[str, Any]) -> None:
    content["variants"]["seed"] = 3


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (rename_a_model, "titles lacks lightgcm"),
        (invent_a_model, "there is no model lightgcm"),
        (forget_the_schedule, "shorter lacks lightgcn"),
        (give_arms_and_options, "'edge dropout' needs arms, or a key and its options"),
        (forget_the_options, "'edge dropout' needs arms, or a key and its options"),
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


def test_an_arm_fits_the_depth_of_the_model() -> None:
    mixed = "layer 3 non-linear, layer 4 linear"
    kinds = {"all linear": [], "all non-linear": [], mixed: []}  # type: ignore[var-annotated]
    for depth in (1, 2, 3):
        for cell in CAMPAIGN.ablation_cells(depth, 100):
            if cell.label in kinds:
                kinds[cell.label].append(cell.overrides)
    assert kinds["all linear"] == [
        ('model.gate_types=["linear"]',),
        ('model.gate_types=["linear", "linear"]',),
        ('model.gate_types=["linear", "linear", "linear"]',),
    ]
    assert kinds["all non-linear"] == [
        ('model.gate_types=["non-linear"]',),
        ('model.gate_types=["non-linear", "non-linear"]',),
        ('model.gate_types=["linear", "non-linear", "non-linear"]',),
    ]
    assert kinds[mixed] == [
        ('model.gate_types=["linear"]',),
        ('model.gate_types=["non-linear", "linear"]',),
        ('model.gate_types=["linear", "non-linear", "linear"]',),
    ]


def test_the_papers_variants_are_ours() -> None:
    assert {model for model in MODELS if is_ours(model)} == set(CAMPAIGN.variants.models.values())
    assert CAMPAIGN.variant(cells.OURS) == "end"
