"""The variants of a board: complete recipes, one table of a TOML file each, by data set."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from hmlet.config import Recipe
from hmlet.config.recipe import validated
from hmlet.config.toml import Table
from hmlet.errors import ConfigError
from hmlet.system.outside import read_text
from hmlet.system.section import Section
from hmlet.system.spelling import option

VARIANTS = Path(__file__).with_name("variants.toml")
SEEDS = 5  # of a model that is trained by steps; a closed form needs one


class Variant(Section):
    """One row of a board: a name, a title, and the tables of a recipe."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    """What selects it among the variants."""
    title: str
    """The method as the table names it."""
    chosen_on: Literal["held-out tenth of train", "the default rule", "nothing"] = "nothing"
    """What its settings were chosen on."""
    model: Table
    """The recipe's [model] table."""
    train: Table = Field(default_factory=dict)
    """The recipe's [train] table, without what `recipe` sets."""
    loss: Table = Field(default_factory=dict)
    """The recipe's [loss] table."""

    def recipe(self, seed: int) -> Recipe:
        """The whole recipe: a fixed schedule that is trained to its end, whether or not there is a validation part.

        So validation sees the last epoch alone. It chooses between recipes, and no epoch.
        """
        tables: Table = {"model": self.model, "train": self.train, "loss": self.loss, "seed": seed}
        recipe = validated(tables, f"variant {self.name}")
        return recipe.changed(["train.patience=0", f"train.validate_every={recipe.train.epochs}"])

    @property
    def seeds(self) -> int:
        return 1 if self.recipe(1).model.solved else SEEDS


def load_variants(dataset: str, file: Path | None = None, names: Sequence[str] = ()) -> list[Variant]:
    """The variants of a data set in a file (by default the board's), all or those that are named."""
    file = file or VARIANTS
    try:
        tables = tomllib.loads(read_text(file, "variants in TOML"))
        variants = TypeAdapter(list[Variant]).validate_python(tables.get(dataset, []))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} cannot be read: {error}", "pass a TOML file of variants") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, (dataset, *first["loc"])))
        raise ConfigError(f"{file}: {where}: {first['msg']}", "correct the variant") from error
    known = [variant.name for variant in variants]
    if not variants:
        raise ConfigError(
            f"{file} has no variants for {dataset}",
            f"write some under [[{dataset}]] and pass them with {option('variants')}",
        )
    if twice := sorted({name for name in known if known.count(name) > 1}):
        raise ConfigError(f"{file}: two variants of {dataset} are called {twice[0]}", "rename one")
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no variant {name!r} for {dataset}", f"choose one of {', '.join(known)}")
    return [variant for variant in variants if not names or variant.name in names]
