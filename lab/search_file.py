"""<data set>/<model>.json: the record of one model's search, and the recipe that it found best."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

from hmlet.config import Recipe
from hmlet.errors import ConfigError
from hmlet.system.files import put
from hmlet.system.outside import MOST_RECORD, parse_json, read_text

SEARCH_FORMAT = 1
SELECTION = "ndcg"


class DataReference(TypedDict):
    name: str
    fingerprint: str


@dataclass(frozen=True)
class Trial:
    """One point: what it changed, and validation metrics and their epoch, or an error."""

    params: Mapping[str, object]
    seconds: float | None
    valid: Mapping[str, float] | None = None
    best_epoch: int | None = None
    error: str | None = None

    @property
    def value(self) -> float | None:
        """Validation NDCG@20."""
        return None if self.valid is None else self.valid[SELECTION]

    def as_json(self) -> dict[str, object]:
        about: dict[str, object] = {"params": self.params}
        about |= {"error": self.error} if self.valid is None else {"valid": self.valid, "best_epoch": self.best_epoch}
        return about | {"seconds": self.seconds}


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """The trial with the highest value, the earliest of several."""
    return max((trial for trial in trials if trial.valid), key=lambda trial: trial.value or 0.0, default=None)


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
    trials: tuple[Trial, ...] = ()

    @classmethod
    def read(cls, path: Path) -> SearchFile:
        """The file at a path."""
        try:
            content: Any = parse_json(read_text(path, "the trials of a search", MOST_RECORD))
            del content["device_minutes"]  # a sum over the trials
            trials = tuple(Trial(**trial) for trial in content.pop("trials"))
            return cls(**content, trials=trials)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a search file ({error!r})", "restore it from a copy") from error

    @property
    def device_minutes(self) -> float:
        return round(sum(trial.seconds or 0.0 for trial in self.trials) / 60, 2)

    @property
    def best(self) -> float | None:
        """The best validation value so far."""
        found = best_of(self.trials)
        return None if found is None else found.value

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
            "trials": [trial.as_json() for trial in self.trials],
            "device_minutes": self.device_minutes,
        }
        put(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def best_recipe(search: SearchFile, own: Mapping[str, object] = MappingProxyType({})) -> str | None:
    """The TOML that a finished search adds to its preset for its data set: the best trial's values and their source.

    `own` is what the data set has of its own for all its models, as far as they have such a key; where the search
    varied it, only the trials that agree count.
    """
    base = Recipe.from_toml(search.base)
    agreed = [key for key in own if key in search.space]
    flat = base.flat()
    counted = [
        trial
        for trial in search.trials
        if trial.valid is not None and all({**flat, **trial.params}[key] == own[key] for key in agreed)
    ]
    best = best_of(counted)
    if best is None:
        return None
    found = {**flat, **best.params}
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
        f"# lab/results/search/{search.data['name']}/{search.model}.json",
    ]
    for section in sorted(sections):
        lines += [f"[{section}]", *sections[section], ""]
    return "\n".join(lines).rstrip() + "\n"
