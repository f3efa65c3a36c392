"""The campaign as data: which recipe fills which cell of which table, with how many seeds, and what comes first.

Every cell is a list of overrides on a model's recipe, so an ablation is a line here and no code anywhere else. One run
may fill several cells: the trained gate of the ablation is HMLET(End) of the main table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from hmlet.config import Recipe, resolve
from hmlet.errors import ConfigError
from hmlet.models import MODELS

TABLES = ("main", "variants", "ablation")
OURS, RIVAL = "hmlet-end", "lightgcn"
TITLES = {
    "hmlet-end": "HMLET(End)",
    "hmlet-middle": "HMLET(Middle)",
    "hmlet-front": "HMLET(Front)",
    "hmlet-all": "HMLET(All)",
    "lightgcn": "LightGCN",
    "lr-gccf": "LR-GCCF",
    "ngcf": "NGCF",
    "gc-mc": "GC-MC",
    "pinsage": "PinSage",
    "bpr": "BPR-MF",
    "wrmf": "WRMF",
}
NAMES = {
    "gowalla": "Gowalla",
    "yelp2018": "Yelp2018",
    "amazon-book": "Amazon-Book",
    "amazon-book-29k": "Amazon-Book-29k",
}
# The preset that a data set's cells are run with; any other set takes the last one, which fits a CPU.
PRESETS = {"gowalla": "gpu", "yelp2018": "gpu", "amazon-book": "gpu", "amazon-book-29k": "gpu"}
CPU_PRESET = "hmlet"
ABLATION_EPOCHS = 200  # at the most: arms are told apart by a shorter schedule, at half the cost or less


@dataclass(frozen=True)
class Cell:
    """One row of a table: a model, what is changed in its recipe, and how many seeds it wants."""

    table: str
    label: str
    model: str
    overrides: tuple[str, ...] = ()
    seeds: int = 1
    group: str = ""
    value: int = 0  # runs of a lower number come first


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
            raise ConfigError(f"--seeds {self.seeds} is not positive", "use --seeds 1, say")

    @property
    def recipes(self) -> str:
        """The preset: the one asked for, or the data set's own."""
        return self.preset or PRESETS.get(self.dataset, CPU_PRESET)

    def recipe(self, cell: Cell, seed: int) -> Recipe:
        """A cell's recipe. What the cell changes wins over what is set for all cells, or its arms would be one."""
        return resolve(cell.model, self.recipes, None, [*self.overrides, *cell.overrides], seed, dataset=self.dataset)

    def cells(self, tables: Iterable[str] | None = None) -> list[Cell]:
        """The cells of the chosen tables (or of `tables`), in the tables' order; only chosen models, capped seeds."""
        made = {"main": MAIN, "variants": VARIANTS, "ablation": ablation(*self._shape())}
        return [
            replace(cell, seeds=min(cell.seeds, self.seeds or cell.seeds))
            for table in (self.tables if tables is None else tables)
            for cell in made[table]
            if not self.models or cell.model in self.models
        ]

    def _shape(self) -> tuple[int, int]:
        """Depth and epochs of HMLET(End)'s recipe, which its ablation needs; where it is not chosen, any will do."""
        if self.models and OURS not in self.models:
            return 4, 100
        base = self.recipe(Cell("main", "", OURS), 1)
        return base.model.depth, base.train.epochs

    def runs(self) -> list[Planned]:
        """Every run that the chosen cells need, once, the most valuable first."""
        tested = {
            identity(self.recipe(cell, seed))
            for cell in (*MAIN, *VARIANTS)
            if not self.models or cell.model in self.models
            for seed in range(1, cell.seeds + 1)
        }
        wanted: dict[str, Planned] = {}
        for cell in self.cells():
            for seed in range(1, cell.seeds + 1):
                recipe = self.recipe(cell, seed)
                key = identity(recipe)
                if key not in wanted or cell.value < wanted[key].cell.value:
                    wanted[key] = Planned(self.dataset, cell, recipe, key in tested)
        return sorted(wanted.values(), key=lambda run: (run.cell.value, run.recipe.seed))


@dataclass(frozen=True)
class Planned:
    """One training: the cell that wants it most, and its recipe with the seed.

    `tested` says whether the tests of significance need its values user by user, whichever cell wants it now.
    """

    dataset: str
    cell: Cell
    recipe: Recipe
    tested: bool

    @property
    def name(self) -> str:
        """The run's directory: its model, the recipe's fingerprint and the seed."""
        return f"{self.recipe.model.name}_{identity(self.recipe, seed=False)[:8]}_seed{self.recipe.seed}"

    @property
    def gated(self) -> bool:
        """Whether its nodes' classes and the effect of noise are written down."""
        return self.tested and self.recipe.model.gated

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


def title(dataset: str) -> str:
    return NAMES.get(dataset, dataset)


def folder(dataset: str) -> str:
    """A data set's name as a directory's."""
    return re.sub(r"[^\w.-]", "-", dataset, flags=re.ASCII)


MAIN: Sequence[Cell] = (
    Cell("main", TITLES["hmlet-end"], "hmlet-end", seeds=5, value=0),
    Cell("main", TITLES["lightgcn"], "lightgcn", seeds=5, value=0),
    *(Cell("main", TITLES[name], name, seeds=3, value=4) for name in ("hmlet-middle", "hmlet-front", "hmlet-all")),
    *(Cell("main", TITLES[name], name, value=5) for name in ("wrmf", "ngcf", "lr-gccf", "bpr", "gc-mc", "pinsage")),
)
VARIANTS: Sequence[Cell] = tuple(
    Cell("variants", TITLES[f"hmlet-{name}"], f"hmlet-{name}", seeds=3, value=4)
    for name in ("all", "front", "middle", "end")
)


def ablation(depth: int, epochs: int) -> list[Cell]:
    """The decisive ablation around HMLET(End) with so many layers, whose recipe is trained for so many epochs."""
    gated = min(2, depth)
    short = min(epochs, ABLATION_EPOCHS)
    # The gates rest for the share of it that they rest for in the preset's own schedule.
    shorter = {RIVAL: (f"train.epochs={short}",), OURS: (f"train.epochs={short}", f"model.gate_warmup={short // 8}")}

    def types(kind: str) -> str:
        return f"model.gate_types={['linear'] * (depth - gated) + [kind] * gated}".replace("'", '"')

    def arms(group: str, value: int, changes: dict[str, tuple[str, ...]], model: str = OURS) -> list[Cell]:
        base = shorter[model] if short < epochs else ()
        return [Cell("ablation", label, model, (*base, *change), 3, group, value) for label, change in changes.items()]

    def options(group: str, value: int, key: str, values: Sequence[object], model: str = OURS) -> list[Cell]:
        return arms(group, value, {named(each, model): (f"{key}={each}",) for each in values}, model)

    noiseless = ("model.gate_training=soft", "model.gate_noise=false", "model.gate_ranking=soft")
    return [
        *arms(
            "gates",
            1,
            {
                "trained": (),
                "random and frozen": ("model.gate_choice=random",),
                "all linear": (types("linear"),),
                "all non-linear": (types("non-linear"),),
                "soft mixture without noise": noiseless,
            },
        ),
        *options("edge dropout", 1, "train.edge_dropout", (0.4, 0.0)),
        *options("edge dropout", 1, "train.edge_dropout", (0.4, 0.0), RIVAL),
        *options("readout", 2, "model.readout", ("mean", "layerwise")),
        *options("input of the non-linear branch", 2, "model.nonlinear_input", ("bypassed", "gated")),
        *options("embedding size", 2, "model.embedding_size", (64, 128, 256, 512)),
        *options("embedding size", 2, "model.embedding_size", (64, 128, 256, 512), RIVAL),
        *options("activation", 3, "model.activation", ("elu", "leaky-relu", "relu", "tanh")),
        *options("temperature schedule", 3, "model.temperature", ("text", "formula", "authors")),
        *arms(
            "gate warm-up",
            3,
            {
                f"{100 * share:g} % of the epochs": (f"model.gate_warmup={round(share * short)}",)
                for share in (0.0, 0.125, 0.3)  # none (the algorithm), ours, the authors' 300 of 1,000
            },
        ),
        *arms(
            "gates while training", 3, {kind: (f"model.gate_training={kind}",) for kind in ("soft", "straight-through")}
        ),
    ]


def named(value: object, model: str) -> str:
    """The label of a model's arm with a value; HMLET(End) is the one that needs no name in its own ablation."""
    return f"{value}" if model == OURS else f"{TITLES[model]}, {value}"
