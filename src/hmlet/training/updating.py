"""update(): new interactions, users and items for a finished run, without starting over.

How many epochs an update takes and how large its steps are follow from how much is new:

- A training needs its epochs to move every node from where it starts. An update moves only what the new interactions
  touch, so its epochs are a multiple of their share. It never takes more epochs than the run itself did.
- The step size starts far below the one that the run started with, because old nodes are where they belong, and falls
  along a cosine, because a finished model is one whose steps have become small.
- Validation after every few epochs chooses which of them is kept.

docs/production.md has what this was measured on.
"""

from __future__ import annotations

import math
from pathlib import Path

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.data.extension import Added
from hmlet.models import EmbeddingConfig, GatedConfig
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import UpdatedFrom
from hmlet.training import loop
from hmlet.training.trainer import Listener, Tell, untold

EPOCHS_PER_SHARE = 2.0  # times the share of new interactions is the share of the run's epochs
FEWEST = 0.05  # of the run's epochs
STEP_SHARE = 0.2  # of the run's first step size
VALIDATIONS = 3  # at least, if there are as many epochs


def update(
    before: RunDirectory,
    data: Dataset,
    added: Added,
    out: Path | str,
    *,
    device: str = "auto",
    resume: bool = False,
    listener: Listener | None = None,
    tell: Tell = untold,
) -> RunDirectory:
    """Train the model of a finished run on its grown data set, and write a new run directory.

    The run's users and items have to be the first ones of the data set. A closed form has nothing to go on from: it is
    refitted.
    """
    recipe = before.require_finished().recipe()
    warm, earlier = isinstance(recipe.model, EmbeddingConfig), before.record.updated_from
    record = UpdatedFrom(
        run=str(before.path.resolve()),
        model=before.record.files["model.safetensors"][0],
        fingerprint=before.record.data.fingerprint,
        epochs=before.record.epochs if earlier is None else earlier.epochs,
        learning_rate=recipe.train.learning_rate if earlier is None else earlier.learning_rate,
        interactions=added.interactions,
        users=added.users,
        items=added.items,
    )
    if warm:
        recipe = update_recipe(recipe, before.record.best_epoch, record, data.count("train"))
        tell(f"{recipe.train.epochs} epochs from {before.path}")
    else:
        tell(f"{recipe.model.name} is a closed form: it is fitted again on all interactions")
    return loop.fit(
        data,
        recipe,
        out,
        device=device,
        resume=resume,
        listener=listener,
        tell=tell,
        origin=record,
        start=before if warm else None,
    )


def update_recipe(recipe: Recipe, trained: int, origin: UpdatedFrom, interactions: int) -> Recipe:
    """The recipe of an update, from that of its run, whose model took `trained` epochs.

    `interactions` is the number of all training interactions, of which `origin` says how many are new.
    """
    share = EPOCHS_PER_SHARE * origin.interactions / interactions
    epochs = math.ceil(origin.epochs * min(max(share, FEWEST), 1.0))
    train = {
        "epochs": epochs,
        "learning_rate": float(f"{origin.learning_rate * STEP_SHARE:.2g}"),
        "schedule": "cosine",
        "stop_after": None,
        "validate_every": max(1, min(recipe.train.validate_every, epochs // VALIDATIONS)),
    }
    return recipe.model_copy(
        update={
            "train": recipe.train.model_copy(update=train),
            "model": recipe.model.continued(trained) if isinstance(recipe.model, GatedConfig) else recipe.model,
            "loss": recipe.loss.continued(),
        }
    )
