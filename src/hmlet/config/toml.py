"""Recipes as text: TOML in and out, and `section.key=value` overrides."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from hmlet.errors import ConfigError

Table = dict[str, Any]
"""What tomllib gives: values of TOML's types by key."""


def parse_toml(text: str, source: str, sections: Sequence[str]) -> Table:
    """A recipe's tables; every section must be a table too."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is not TOML: {error}", "fix that line") from error
    for name in sections:
        if not isinstance(values.get(name, {}), dict):
            raise ConfigError(f"{source}: {name} = {values[name]!r} is not a table", f"write its keys under [{name}]")
    return values


def parse_overrides(overrides: Iterable[str], sections: Sequence[str]) -> Table:
    """`train.epochs=5` as nested tables; a value that is not TOML (end of a word, say) is taken as text."""
    result: Table = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or (dot and not name) or not (dot or section == "seed"):
            raise ConfigError(f"{text!r} is not section.key=value", "for example train.epochs=20")
        if dot and section not in sections:
            known = ", ".join([*(f"{name}.*" for name in sections), "seed"])
            raise ConfigError(f"{text!r}: there is no section {section!r}", f"known keys: {known}")
        if dot:
            result.setdefault(section, {})[name] = _value(key, value)
        else:
            result[section] = _value(key, value)
    return result


def _value(key: str, text: str) -> object:
    """One TOML value, or the text itself if it is not TOML."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    except RecursionError as error:
        raise ConfigError(
            f"the value of {key.strip()} is nested too deeply", "use a number, a word or a list"
        ) from error
    if len(table) > 1:
        raise ConfigError(f"{key.strip()}={text!r} is more than one value", "pass each section.key=value on its own")
    return table["value"]


def merge(values: Table, change: Table) -> None:
    """Change some keys of tables in place."""
    for key, value in change.items():
        if isinstance(value, dict):
            values.setdefault(key, {}).update(value)
        else:
            values[key] = value


def toml_line(key: str, value: object) -> str:
    """A key with its value, a scalar or a list of them: TOML spells these as JSON does."""
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"
