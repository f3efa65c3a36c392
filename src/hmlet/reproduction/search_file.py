"""OUT/search/<data set>/<model>.json: the record of one model's search, and the recipe that it found best."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

from hmlet.config import Recipe
from hmlet.errors import ConfigError
from hmlet.reproduction.records import SEARCH_FOLDER
from hmlet.system.files import put
from hmlet.system.outside import MOST_RECORD, parse_json, read_text
from hmlet.system.spelling import option
from hmlet.training.trainer import SELECTION
from hmlet.tuning import TrialRecord, best_trial
from hmlet.tuning.trial import Trained

SEARCH_FORMAT = 1


class DataReference(TypedDict):
    name: str
    fingerprint: str


@dataclass(frozen=True)
class SearchFile:
    """What one model's search was about, and every trial."""

    model: str
    preset: str
    data: DataReference
    base: str  # the recipe at the start, as TOML
    space: Mapping[str, object]  # in JSON's types
    hardware: Mapping[str, object]
    selection: str = f"validation {SELECTION}@20"
    format_version: int = SEARCH_FORMAT
    trials: tuple[TrialRecord, ...] = ()

    @classmethod
    def read(cls, path: Path) -> SearchFile:
        """The file at a path."""
        try:
            content: Any = parse_json(read_text(path, "the trials of a search", MOST_RECORD))
            del content["device_minutes"]  # a sum over the trials
            trials = tuple(_read_trial(number, trial) for number, trial in enumerate(content.pop("trials")))
            return cls(**content, trials=trials)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a search file ({error!r})", "restore it from a copy") from error

    @property
    def device_minutes(self) -> float:
        return round(sum(trial.seconds or 0.0 for trial in self.trials) / 60, 2)

    @property
    def best(self) -> float | None:
        """The best validation value so far."""
        found = best_trial(self.trials)
        return None if found is None else found.value

    def require_same(self, other: SearchFile, path: Path) -> None:
        """Refuse to go on with a search over something else; keys that a recipe got later have their defaults."""
        same = {
            "data": self.data == other.data,
            "base": Recipe.from_toml(self.base) == Recipe.from_toml(other.base),
            "space": self.space == other.space,
        }
        for key, agrees in same.items():
            if not agrees:
                raise ConfigError(f"{path} is a search with another {key}", f"choose another {option('out')}")

    def write(self, path: Path) -> None:
        content = {
            "format_version": self.format_version,
            "model": self.model,
            "preset": self.preset,
            "data": self.data,
            "base": self.base,
            "space": self.space,
            "selection": self.selection,
            "hardware": self.hardware,
            "trials": [_trial_json(trial) for trial in self.trials],
            "device_minutes": self.device_minutes,
        }
        put(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _trial_json(trial: TrialRecord) -> dict[str, object]:
    """A trial in its search's file: it has validation metrics and their epoch, or an error."""
    if trial.trained is None:
        return {"params": trial.params, "error": trial.error, "seconds": trial.seconds}
    valid, best_epoch = trial.trained.valid, trial.trained.best_epoch
    return {"params": trial.params, "valid": valid, "best_epoch": best_epoch, "seconds": trial.seconds}


def _read_trial(number: int, content: Mapping[str, Any]) -> TrialRecord:
    params, seconds = content["params"], content["seconds"]
    if "error" in content:
        return TrialRecord(number, "failed", params, None, seconds, None, content["error"])
    trained = Trained(content["valid"], content["best_epoch"], seconds)
    return TrialRecord(number, "complete", params, trained.value, seconds, None, trained=trained)


def best_recipe(search: SearchFile, own: Mapping[str, object] = MappingProxyType({})) -> str | None:
    """The TOML that a finished search adds to its preset for its data set: the best trial's values and their source.

    `own` is what the data set has of its own for all its models, as far as they have such a key; where the search
    varied it, only the trials that agree count.
    """
    base = Recipe.from_toml(search.base)
    agreed = [key for key in own if key in search.space]
    points = {trial.number: {**base.flat(), **trial.params} for trial in search.trials}
    counted = [
        trial
        for trial in search.trials
        if trial.trained is not None and all(points[trial.number][key] == own[key] for key in agreed)
    ]
    best = best_trial(counted)
    if best is None:
        return None
    found = points[best.number]
    values = {key: value for key, value in own.items() if key in found}
    values |= {key: found[key] for key in search.space}
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, name = key.split(".", 1)
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    tried = f"{len(search.trials)} trials" if not agreed else f"{len(counted)} trials (of {len(search.trials)})"
    lines = [
        f"# The best of {tried} of {base.train.epochs} epochs by validation NDCG@20 "
        f"({best.value:.4f}), {search.device_minutes:.1f} device minutes:",
        f"# lab/results/{SEARCH_FOLDER}/{search.data['name']}/{search.model}.json",
    ]
    for section in sorted(sections):
        lines += [f"[{section}]", *sections[section], ""]
    return "\n".join(lines).rstrip() + "\n"
