"""The search for a recipe, with the same number of trials for every model: `hmlet reproduce --search`.

`hmlet tune` searches better. This search draws random points, needs no Optuna, and leaves one small file per model
that says what was tried. The test part is never read here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hmlet.data import Dataset
from hmlet.errors import ConfigError, MissingExtra
from hmlet.models import MODELS
from hmlet.reproduction.cells import CAMPAIGN, OURS, Cell, is_ours
from hmlet.reproduction.plan import Choice, folder
from hmlet.reproduction.records import SEARCH_FOLDER
from hmlet.reproduction.search_file import SearchFile
from hmlet.runs.record import Hardware
from hmlet.system.spelling import option
from hmlet.training.loop import choose_device
from hmlet.tuning import LocalQueue, Objective, TrialRecord, draw, load_space
from hmlet.tuning.space import as_json

DRAW_SEED = 1


@dataclass(frozen=True)
class Trial:
    """What the listener receives when a trial ends."""

    dataset: str
    model: str
    number: int
    trials: int
    value: float | None  # best validation NDCG@20; None where it failed
    best: float | None


def searched_models(choice: Choice) -> list[str]:
    """One model of each family that is chosen: HMLET's variants share a recipe, which End is searched for."""
    chosen = choice.models or tuple(CAMPAIGN.titles)
    families = {MODELS[name]: OURS if is_ours(name) else name for name in chosen}
    return list(families.values())


def search(
    choice: Choice,
    data: Dataset,
    out: Path,
    trials: int,
    *,
    space: Path | None = None,
    device: str = "auto",
    deadline: float | None = None,
    listener: Callable[[Trial], None] = lambda trial: None,
) -> list[Path]:
    """Try `trials` points for each model and write OUT/search/<data set>/<model>.json; the files of this search.

    The first point is the recipe as it is. All models take a trial in turn, so that a search that is cut short has
    spent the same on each; called again it goes on. `space` is a TOML file for all of them, instead of each family's
    own. A trial does not begin after `deadline` (time.monotonic).
    """
    if trials < 1:
        raise ConfigError(f"{option('search', trials)} is not positive", f"use {option('search', 8)}, say")
    searches = [_Search(choice, name, data, out, trials, space, device) for name in searched_models(choice)]
    for number in range(trials):
        for each in searches:
            longest = max((trial.seconds or 0.0 for trial in each.file.trials), default=0.0)
            if deadline is not None and time.monotonic() + longest > deadline:
                continue
            if number == len(each.file.trials):
                value = each.attempt()
                listener(Trial(data.name, each.model, number + 1, trials, value, each.file.best))
    return [each.path for each in searches if each.path.is_file()]


class _Search:
    """One model's search: its file, and the queue of its points."""

    def __init__(
        self, choice: Choice, model: str, data: Dataset, out: Path, trials: int, space: Path | None, device: str
    ) -> None:
        base = choice.recipe(Cell("main", "", model), 1)
        searched = load_space(space, model, choice.recipes, base.train.loss)
        self.model = model
        self.path = out / SEARCH_FOLDER / folder(data.name) / f"{model}.json"
        self.file = SearchFile(
            model,
            choice.recipes,
            {"name": data.name, "fingerprint": data.fingerprint},
            base.to_toml(),
            as_json(searched),
            Hardware.of(str(choose_device(device))).model_dump(),
        )
        if self.path.is_file():
            before = SearchFile.read(self.path)
            before.require_same(self.file, self.path)
            self.file = before
        self.objective = Objective(data, base.changed(["train.save_layers=false"]), device)
        self.objective.check(searched)
        own = base.flat()
        points = draw(searched, trials, DRAW_SEED, {key: own.get(key) for key in searched})
        self.queue = LocalQueue(points, self.path.with_suffix(".run"), self.file.trials, self._save)

    def attempt(self) -> float | None:
        """Train the next point and return its validation value; None where it cannot be trained."""
        try:
            self.queue.take(self.objective.train)
        except MissingExtra:
            return None  # another machine has what this model needs
        return self.file.trials[-1].value

    def _save(self, records: Sequence[TrialRecord]) -> None:
        self.file = replace(self.file, trials=tuple(records))
        self.file.write(self.path)
