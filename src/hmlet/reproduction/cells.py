"""The cells of every table, from campaign.toml: models, seeds, and what an arm of the ablation changes.

Every cell is a list of overrides on a model's recipe, so a new arm is a line of campaign.toml and no code. One run may
fill several cells: the trained gate of the ablation is also a row of the main table.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, PositiveInt, model_validator

from hmlet.models import MODELS
from hmlet.system.section import Section

TABLES = ("main", "variants", "ablation")


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


class Arm(Section):
    """One arm of the ablation."""

    label: str
    set: tuple[str, ...] = ()
    """Overrides on the recipe."""
    gated: str | tuple[str, ...] | None = None
    """The type that the gated layers have instead: one for all of them, or one each, the last layer's last."""
    warmup: float | None = None
    """The share of the epochs in which the gates rest."""

    def overrides(self, depth: int, gated: int, epochs: int) -> tuple[str, ...]:
        """The arm's overrides on a recipe with `depth` layers, `gated` of them with gates at the end."""
        found = self.set
        if self.gated is not None:
            own = [self.gated] * gated if isinstance(self.gated, str) else list(self.gated[-gated:])
            types = ["linear"] * (depth - len(own)) + own
            found = (*found, f"model.gate_types={json.dumps(types)}")
        if self.warmup is not None:
            found = (*found, f"model.gate_warmup={round(self.warmup * epochs)}")
        return found


class ArmGroup(Section):
    """The arms that change one thing: listed one by one, or the options of one key for each model."""

    name: str
    value: int
    models: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()
    key: str | None = None
    options: tuple[int | float | str, ...] = ()

    @model_validator(mode="after")
    def _arms_or_options(self) -> ArmGroup:
        if (self.key is None) != (not self.options) or bool(self.arms) == bool(self.options):
            raise ValueError(f"the group {self.name!r} needs arms, or a key and its options")
        return self

    def all_arms(self) -> tuple[Arm, ...]:
        return self.arms or tuple(Arm(label=f"{each}", set=(f"{self.key}={each}",)) for each in self.options)


class Ablation(Section):
    """The ablation around our model."""

    seeds: PositiveInt
    epochs: PositiveInt
    gated_layers: PositiveInt
    shorter: Mapping[str, tuple[str, ...]]
    groups: tuple[ArmGroup, ...] = Field(min_length=1)


class Campaign(Section):
    """All of campaign.toml."""

    ours: str
    rival: str
    preset: str
    titles: Mapping[str, str]
    datasets: Mapping[str, PaperDataset]
    main: tuple[Rows, ...]
    variants: Variants
    ablation: Ablation

    @model_validator(mode="after")
    def _known_models(self) -> Campaign:
        compared = {self.ours, self.rival, *(model for group in self.ablation.groups for model in group.models)}
        shown = {*self.variants.models.values(), *(model for rows in self.main for model in rows.models)}
        if unknown := set(self.titles) - set(MODELS):
            raise ValueError(f"there is no model {', '.join(sorted(unknown))}")
        if missing := (compared | shown) - set(self.titles):
            raise ValueError(f"titles lacks {', '.join(sorted(missing))}")
        if missing := compared - set(self.ablation.shorter):
            raise ValueError(f"ablation.shorter lacks {', '.join(sorted(missing))}")
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

    def ablation_cells(self, depth: int, epochs: int) -> list[Cell]:
        """The ablation around our model with so many layers, whose recipe is trained for so many epochs."""
        plan = self.ablation
        short, gated = min(epochs, plan.epochs), min(plan.gated_layers, depth)
        return [
            Cell(
                "ablation",
                arm_label(arm.label, model),
                model,
                (*(plan.shorter[model] if short < epochs else ()), *arm.overrides(depth, gated, short)),
                plan.seeds,
                group.name,
                group.value,
            )
            for group in plan.groups
            for model in group.models or (self.ours,)
            for arm in group.all_arms()
        ]

    def variant(self, model: str) -> str:
        """The paper's name of the variant that a model is."""
        return {each: name for name, each in self.variants.models.items()}[model]


def load_campaign(path: Path) -> Campaign:
    return Campaign.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))


CAMPAIGN = load_campaign(Path(__file__).with_name("campaign.toml"))
OURS, RIVAL = CAMPAIGN.ours, CAMPAIGN.rival
OURS_TITLE, RIVAL_TITLE = CAMPAIGN.titles[OURS], CAMPAIGN.titles[RIVAL]


def arm_label(label: str, model: str) -> str:
    """The label of a model's arm; our model needs no name in its own ablation."""
    return label if model == OURS else f"{CAMPAIGN.titles[model]}, {label}"


def is_ours(model: str) -> bool:
    """Whether a model is an HMLET variant rather than a baseline."""
    return MODELS[model] is MODELS[OURS]


def title(dataset: str) -> str:
    """A data set as the tables name it."""
    return CAMPAIGN.datasets[dataset].title if dataset in CAMPAIGN.datasets else dataset


def preset(dataset: str) -> str:
    """The preset that a data set's cells are run with."""
    return CAMPAIGN.datasets[dataset].preset if dataset in CAMPAIGN.datasets else CAMPAIGN.preset
