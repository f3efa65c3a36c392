"""What is wanted of the campaign on a data set, and the runs that this takes, the most valuable first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

from hmlet.config import Recipe, resolve
from hmlet.errors import ConfigError
from hmlet.models import MODELS, GatedConfig
from hmlet.reproduction.cells import CAMPAIGN, TABLES, Cell, preset
from hmlet.system.spelling import option


@dataclass(frozen=True)
class Choice:
    """What of the campaign is wanted on one data set, and the recipes' starting point."""

    dataset: str
    tables: tuple[str, ...] = ("main",)
    models: tuple[str, ...] = ()  # empty: all
    seeds: int | None = None  # at most this many of each cell
    preset: str | None = None
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for table in self.tables:
            if table not in TABLES:
                raise ConfigError(f"there is no table {table!r}", f"use {', '.join(TABLES)}")
        for model in self.models:
            if model not in MODELS:
                raise ConfigError(f"there is no model {model!r}", f"choose one of {', '.join(MODELS)}")
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"{option('seeds', self.seeds)} is not positive", f"use {option('seeds', 1)}, say")

    @property
    def recipes(self) -> str:
        """The preset: the one asked for, or the data set's own."""
        return self.preset or preset(self.dataset)

    def recipe(self, cell: Cell, seed: int) -> Recipe:
        """A cell's recipe. What the cell changes wins over what is set for all cells, or its variants would be one."""
        return resolve(cell.model, self.recipes, None, [*self.overrides, *cell.overrides], seed, dataset=self.dataset)

    def cells(self, tables: Iterable[str] | None = None) -> list[Cell]:
        """The cells of the chosen tables (or of `tables`), in the tables' order; only chosen models, capped seeds."""
        made = {"main": CAMPAIGN.main_cells(), "variants": CAMPAIGN.variant_cells()}
        return self.chosen(cell for table in (self.tables if tables is None else tables) for cell in made[table])

    def chosen(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those of some cells whose models are chosen, with capped seeds."""
        return [
            replace(cell, seeds=min(cell.seeds, self.seeds or cell.seeds))
            for cell in cells
            if not self.models or cell.model in self.models
        ]

    def runs(self, cells: Iterable[Cell] | None = None) -> list[Planned]:
        """Every run that the chosen cells (or `cells`) need, once, the most valuable first."""
        tested = {
            identity(self.recipe(cell, seed))
            for cell in (*CAMPAIGN.main_cells(), *CAMPAIGN.variant_cells())
            if not self.models or cell.model in self.models
            for seed in range(1, cell.seeds + 1)
        }
        wanted: dict[str, Planned] = {}
        for cell in self.cells() if cells is None else cells:
            for seed in range(1, cell.seeds + 1):
                recipe = self.recipe(cell, seed)
                key = identity(recipe)
                if key not in wanted or cell.value < wanted[key].cell.value:
                    wanted[key] = Planned(self.dataset, cell, recipe, key in tested)
        return sorted(wanted.values(), key=lambda run: (run.cell.value, run.recipe.seed))


@dataclass(frozen=True)
class Planned:
    """One training: the cell that wants it most, and its recipe with the seed.

    `tested` says whether the tests of significance need its values user by user, whichever cell wants it now. `part` is
    what it is scored on: the validation part of a data set whose test part is left out.
    """

    dataset: str
    cell: Cell
    recipe: Recipe
    tested: bool
    part: Literal["test", "valid"] = "test"

    @property
    def name(self) -> str:
        """The run's directory: its model, the recipe's fingerprint and the seed."""
        return f"{self.recipe.model.name}_{identity(self.recipe, seed=False)[:8]}_seed{self.recipe.seed}"

    @property
    def gated(self) -> bool:
        """Whether it is in one of the paper's tables and has gates."""
        return self.tested and isinstance(self.recipe.model, GatedConfig) and self.recipe.model.gated

    @property
    def analysed(self) -> bool:
        """Whether its gates are analysed: one seed's analysis is shown, and it is the largest file of a record."""
        return self.gated and self.recipe.seed == 1


def identity(recipe: Recipe, *, seed: bool = True) -> str:
    """The fingerprint of all that a recipe's result depends on; without the seed, of what its seeds have in common."""
    same = {"checkpoint_seconds": 60.0, "save_layers": True}  # they change what is on disk, not what is learned
    plain = recipe.model_copy(
        update={"train": recipe.train.model_copy(update=same), "seed": recipe.seed if seed else 0}
    )
    return sha256(plain.to_toml().encode()).hexdigest()


def folder(dataset: str) -> str:
    """A data set's name as a directory's."""
    return re.sub(r"[^\w.-]", "-", dataset, flags=re.ASCII)
