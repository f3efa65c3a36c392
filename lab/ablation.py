"""The ablation: our model with one thing changed, and what that leaves of its lead over the rival.

`python -m lab.campaign` trains it. Every arm is a list of overrides on a model's settings, so a new one is a line of
ablation.toml and no code. One run may fill several places: the trained gate is also a row of the paper's main table.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, PositiveInt, model_validator

from hmlet.reproduction.cells import CAMPAIGN, OURS, RIVAL, Cell
from hmlet.reproduction.differences import Difference, differences
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.tables import Row, Tables
from hmlet.system.section import Section


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


class Plan(Section):
    """All of ablation.toml."""

    seeds: PositiveInt
    epochs: PositiveInt
    gated_layers: PositiveInt
    shorter: Mapping[str, tuple[str, ...]]
    groups: tuple[ArmGroup, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _shorter(self) -> Plan:
        compared = {OURS, RIVAL, *(model for group in self.groups for model in group.models)}
        if missing := compared - set(self.shorter):
            raise ValueError(f"shorter lacks {', '.join(sorted(missing))}")
        return self

    def cells(self, depth: int, epochs: int) -> list[Cell]:
        """The cells around our model with so many layers, whose settings are trained for so many epochs."""
        short, gated = min(epochs, self.epochs), min(self.gated_layers, depth)
        return [
            Cell(
                "ablation",
                arm_label(arm.label, model),
                model,
                (*(self.shorter[model] if short < epochs else ()), *arm.overrides(depth, gated, short)),
                self.seeds,
                group.name,
                group.value,
            )
            for group in self.groups
            for model in group.models or (OURS,)
            for arm in group.all_arms()
        ]


PLAN = Plan.model_validate(tomllib.loads(Path(__file__).with_name("ablation.toml").read_text(encoding="utf-8")))


def arm_label(label: str, model: str) -> str:
    """The label of a model's arm; our model needs no name in its own ablation."""
    return label if model == OURS else f"{CAMPAIGN.titles[model]}, {label}"


def cells(choice: Choice) -> list[Cell]:
    """The cells of the ablation on a data set; only chosen models, with capped seeds."""
    if choice.models and OURS not in choice.models:
        depth, epochs = 4, 100  # no arm of another model needs them
    else:
        base = choice.recipe(Cell("main", "", OURS), 1)
        depth, epochs = base.model.depth, base.train.epochs
    return choice.chosen(PLAN.cells(depth, epochs))


# In the words of docs/reproduction.md; each with its group and label.
CARRIERS = {
    "HMLET(End) as it is": ("gates", "trained"),
    "gates: every node non-linear": ("gates", "all non-linear"),
    "gates: layer 3 non-linear, layer 4 linear": ("gates", "layer 3 non-linear, layer 4 linear"),
    "gates: random and frozen": ("gates", "random and frozen"),
    "gates: every node linear": ("gates", "all linear"),
    "no shortcut to layer 0": ("input of the non-linear branch", "gated"),
    "no dropout, both": ("edge dropout", "0.0"),
    "spectral start, both": ("start", "spectral"),
    **{f"D = {size}, both": ("embedding size", f"{size}") for size in (64, 128, 256, 512)},
}


class Ablation:
    """The ablation of one data set, from the records that its tables find."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.rows = [tables.row(cell) for cell in cells(tables.choice)]
        self.arms = {(row.cell.group, row.cell.label): row for row in self.rows}

    @property
    def reference(self) -> Row | None:
        """The trained gate, which every other arm is held against."""
        return next(iter(self.rows), None)

    def differences(self) -> list[tuple[Row, Difference | None]]:
        """Every arm minus the trained gate; None for an arm that changes nothing."""
        changed = [row for row in self.rows if self.reference is not None and not _same_runs(row, self.reference)]
        base = self.reference.by_seed() if self.reference else {}
        found = dict(zip(map(id, changed), differences([(row.by_seed(), base) for row in changed]), strict=True))
        return [(row, found.get(id(row))) for row in self.rows]

    def leads(self) -> list[tuple[Row, Row, Difference]]:
        """HMLET(End) and LightGCN wherever both have the same thing changed, with their differences as one family."""
        pairs = [
            (ours, self.arms[rival])
            for (group, label), ours in self.arms.items()
            if (rival := (group, arm_label(label, RIVAL))) in self.arms
        ]
        found = differences([(ours.by_seed(), rival.by_seed()) for ours, rival in pairs])
        return [(ours, rival, each) for (ours, rival), each in zip(pairs, found, strict=True)]

    def carriers(self) -> dict[str, Difference]:
        """The lead over the rival that each arm leaves: over the rival with the same change, or as it is."""
        plain = self.arms["edge dropout", arm_label("0.4", RIVAL)]
        pairs = [
            (self.arms[group, label], self.arms.get((group, arm_label(label, RIVAL)), plain))
            for group, label in CARRIERS.values()
        ]
        found = differences([(ours.by_seed(), rival.by_seed()) for ours, rival in pairs])
        return dict(zip(CARRIERS, found, strict=True))


def _same_runs(one: Row, other: Row) -> bool:
    return bool(one.records) and one.records == other.records
