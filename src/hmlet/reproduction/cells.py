"""The cells of the paper's tables, from campaign.toml: a model, its number of seeds, and when its runs are due."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveInt, model_validator

from hmlet.models import MODELS
from hmlet.system.section import Section

TABLES = ("main", "variants")


@dataclass(frozen=True)
class Cell:
    """One row of a table: a model, what is changed in its recipe, and its number of seeds."""

    table: str
    label: str
    model: str
    overrides: tuple[str, ...] = ()
    seeds: int = 1
    group: str = ""
    value: int = 0  # runs of a lower number come first


class Rows(Section):
    """Rows of the main table: models with the same number of seeds."""

    models: tuple[str, ...]
    seeds: PositiveInt
    value: int


class Variants(Section):
    """The table of variants; `models` has the model of each variant that the paper names."""

    models: Mapping[str, str]
    seeds: PositiveInt
    value: int


class PaperDataset(Section):
    """A data set of the paper: its title, and the preset that its cells are run with."""

    title: str
    preset: str


class Campaign(Section):
    """All of campaign.toml."""

    ours: str
    rival: str
    preset: str
    titles: Mapping[str, str]
    datasets: Mapping[str, PaperDataset]
    main: tuple[Rows, ...]
    variants: Variants

    @model_validator(mode="after")
    def _known_models(self) -> Campaign:
        shown = {*self.variants.models.values(), *(model for rows in self.main for model in rows.models)}
        if unknown := set(self.titles) - set(MODELS):
            raise ValueError(f"there is no model {', '.join(sorted(unknown))}")
        if missing := {self.ours, self.rival, *shown} - set(self.titles):
            raise ValueError(f"titles lacks {', '.join(sorted(missing))}")
        return self

    def main_cells(self) -> list[Cell]:
        return [
            Cell("main", self.titles[model], model, seeds=rows.seeds, value=rows.value)
            for rows in self.main
            for model in rows.models
        ]

    def variant_cells(self) -> list[Cell]:
        rows = self.variants
        return [
            Cell("variants", self.titles[model], model, seeds=rows.seeds, value=rows.value)
            for model in rows.models.values()
        ]

    def variant(self, model: str) -> str:
        """The paper's name of the variant that a model is."""
        return {each: name for name, each in self.variants.models.items()}[model]


def load_campaign(path: Path) -> Campaign:
    return Campaign.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


CAMPAIGN = load_campaign(Path(__file__).with_name("campaign.toml"))
OURS, RIVAL = CAMPAIGN.ours, CAMPAIGN.rival
OURS_TITLE, RIVAL_TITLE = CAMPAIGN.titles[OURS], CAMPAIGN.titles[RIVAL]


def is_ours(model: str) -> bool:
    """Whether a model is an HMLET variant rather than a baseline."""
    return MODELS[model] is MODELS[OURS]


def title(dataset: str) -> str:
    """A data set as the tables name it."""
    return CAMPAIGN.datasets[dataset].title if dataset in CAMPAIGN.datasets else dataset


def preset(dataset: str) -> str:
    """The preset that a data set's cells are run with."""
    return CAMPAIGN.datasets[dataset].preset if dataset in CAMPAIGN.datasets else CAMPAIGN.preset
