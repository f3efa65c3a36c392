"""The search for a recipe, with one budget for every model: random points, validation numbers only, nothing but torch.

`hmlet tune` searches better; this one needs no Optuna, spends the same number of trials on each model, and leaves one
small file a model that says what was tried. The test part is never read here.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hmlet.config import Recipe
from hmlet.data import Dataset
from hmlet.errors import ConfigError, HmletError, MissingExtra
from hmlet.models import MODELS
from hmlet.reproduction.plan import OURS, Cell, Choice, folder
from hmlet.reproduction.records import SEARCHES
from hmlet.runs.record import Hardware
from hmlet.system.files import put
from hmlet.training.loop import SELECTION, Interrupted, choose_device, fit
from hmlet.tuning.space import Range, Space, as_json, load_space

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Trial:
    """What the listener is told when a trial has ended."""

    dataset: str
    model: str
    number: int
    trials: int
    value: float | None  # best validation NDCG@20; None where it failed
    best: float | None


def searched_models(choice: Choice) -> list[str]:
    """One model of each family that is chosen: HMLET's variants share a recipe, which End is searched for."""
    chosen = choice.models or tuple(MODELS)
    families = {MODELS[name]: OURS if MODELS[name] is MODELS[OURS] else name for name in chosen}
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
        raise ConfigError(f"--search {trials} is not positive", "use --search 8, say")
    searches = [_Search(choice, name, data, out, trials, space, device) for name in searched_models(choice)]
    for number in range(trials):
        for each in searches:
            longest = max((trial["seconds"] for trial in each.record["trials"]), default=0.0)
            if deadline is not None and time.monotonic() + longest > deadline:
                continue
            if number == len(each.record["trials"]):
                value = each.attempt(number)
                listener(Trial(data.name, each.model, number + 1, trials, value, each.best))
    return [each.file for each in searches if each.file.is_file()]


class _Search:
    """One model's search: its file, and how to take its next trial."""

    def __init__(
        self, choice: Choice, model: str, data: Dataset, out: Path, trials: int, space: Path | None, device: str
    ) -> None:
        self.model, self.data, self.device = model, data, device
        self.base: Recipe = choice.recipe(Cell("main", "", model), 1)
        self.space = load_space(space, model, choice.recipes)
        self.file = out / SEARCHES / folder(data.name) / f"{model}.json"
        self.work = self.file.with_suffix(".run")
        own = self.base.flat()
        self.points = draw(self.space, trials, 1, {key: own.get(key) for key in self.space})
        about = {
            "format_version": FORMAT_VERSION,
            "model": model,
            "preset": choice.recipes,
            "data": {"name": data.name, "fingerprint": data.fingerprint},
            "base": self.base.to_toml(),
            "space": as_json(self.space),
            "selection": f"validation {SELECTION}@20",
            "hardware": Hardware.of(str(choose_device(device))).model_dump(),
        }
        self.record: dict[str, Any] = {**about, "trials": []}
        if self.file.is_file():
            self.record = json.loads(self.file.read_text(encoding="utf-8"))
            for key in ("data", "base", "space"):
                if self.record[key] != about[key]:
                    raise ConfigError(f"{self.file} is a search with another {key}", "choose another --out")

    @property
    def best(self) -> float | None:
        return max((trial["valid"][SELECTION] for trial in self.record["trials"] if "valid" in trial), default=None)

    def attempt(self, number: int) -> float | None:
        """Train one point and write down what validation says; None where it cannot be trained."""
        params = self.points[number]
        recipe = self.base.changed([f"{key}={json.dumps(value)}" for key, value in params.items()])
        trial: dict[str, Any] = {"params": params}
        began = time.monotonic()
        try:
            run = fit(
                self.data,
                recipe.changed(["train.save_layers=false"]),
                self.work,
                device=self.device,
                resume=True,
            )
            trial |= {"valid": run.record.valid, "best_epoch": run.record.best_epoch}
            spent = max(time.monotonic() - began, run.record.timings.training_seconds)
        except Interrupted:
            raise
        except MissingExtra:
            return None  # another machine has what this model needs
        except HmletError as error:
            trial["error"] = str(error)
            spent = time.monotonic() - began
        trial["seconds"] = round(spent, 1)
        self.record["trials"].append(trial)
        self.record["device_minutes"] = round(sum(each["seconds"] for each in self.record["trials"]) / 60, 2)
        self._write()
        shutil.rmtree(self.work, ignore_errors=True)
        return trial["valid"][SELECTION] if "valid" in trial else None

    def _write(self) -> None:
        put(self.file, (json.dumps(self.record, indent=1, ensure_ascii=False) + "\n").encode())


def draw(space: Space, trials: int, seed: int, base: dict[str, Any]) -> list[dict[str, Any]]:
    """The recipe as it is (at `base`), then random points of a space, no two alike while there are others left."""
    rng = np.random.default_rng(seed)
    points: list[dict[str, Any]] = [{}]
    for _ in range(50 * trials):
        point = {key: _value(values, rng) for key, values in space.items()}
        if len(points) < trials and point != base and point not in points:
            points.append(point)
    while len(points) < trials:
        points.append({key: _value(values, rng) for key, values in space.items()})
    return points[:trials]


def _value(values: tuple[Any, ...] | Range, rng: np.random.Generator) -> Any:
    if not isinstance(values, Range):
        return values[int(rng.integers(len(values)))]
    low, high = (np.log(values.low), np.log(values.high)) if values.log else (values.low, values.high)
    drawn = float(rng.uniform(low, high))
    value = float(np.exp(drawn)) if values.log else drawn
    return round(value) if isinstance(values.low, int) and isinstance(values.high, int) else value


def best_recipe(record: dict[str, Any], own: Mapping[str, Any] = MappingProxyType({})) -> str | None:
    """The TOML that a finished search adds to its preset for its data set: the best trial's values and their source.

    `own` is what the data set has of its own for all its models, as far as they have such a key; where the search
    varied it, only the trials that agree count.
    """
    base = Recipe.from_toml(record["base"])
    points = [({**base.flat(), **trial["params"]}, trial) for trial in record["trials"] if "valid" in trial]
    agreed = [key for key in own if key in record["space"]]
    points = [(point, trial) for point, trial in points if all(point[key] == own[key] for key in agreed)]
    if not points:
        return None
    found, best = max(points, key=lambda each: each[1]["valid"][SELECTION])
    values = {key: value for key, value in own.items() if key in found}
    values |= {key: found[key] for key in record["space"]}
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, name = key.split(".", 1)
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    tried = f"{len(record['trials'])} trials" if not agreed else f"{len(points)} trials (of {len(record['trials'])})"
    lines = [
        f"# The best of {tried} of {base.train.epochs} epochs by validation NDCG@20 "
        f"({best['valid'][SELECTION]:.4f}), {record['device_minutes']:.1f} device minutes:",
        f"# results/{SEARCHES}/{record['data']['name']}/{record['model']}.json",
    ]
    for section in sorted(sections):
        lines += [f"[{section}]", *sections[section], ""]
    return "\n".join(lines).rstrip() + "\n"
