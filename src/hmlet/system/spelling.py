"""How messages name settings: as Python arguments, or as options while a command runs.

`f"use {option('device', 'cpu')}"` is `use device="cpu"` in Python and `use --device cpu` on the command line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Arguments and functions whose options and commands have other names.
OPTIONS = {"k": "-k", "overwrite": "--force", "allow_hosts": "--allow-host", "token": "--token-file"}
COMMANDS = {"fit": "train", "Dataset.from_file": "data prepare"}
_in_shell = False


@contextmanager
def in_shell() -> Iterator[None]:
    """Name settings as the command line does, inside the block."""
    global _in_shell
    before, _in_shell = _in_shell, True
    try:
        yield
    finally:
        _in_shell = before


def option(name: str, value: object = None) -> str:
    """A setting by its name in Python, and its value if one is meant; True is a switch that is on."""
    if _in_shell:
        flag = OPTIONS.get(name, f"--{name.replace('_', '-')}")
        shown = f"'{value}'" if " " in str(value) else value
        return flag if value is None or value is True else f"{flag} {shown}"
    if value is None:
        return f"`{name}`"
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"


def override(*settings: str) -> str:
    """Settings of a recipe, each `section.key=value`: keywords in Python, where those of a loss begin with `loss_`."""
    if _in_shell:
        return " ".join(f"--set {setting}" for setting in settings)
    return ", ".join(map(_keyword, settings))


def _keyword(setting: str) -> str:
    key, _, value = setting.partition("=")
    section, _, name = key.rpartition(".")
    try:
        shown = repr(tomllib.loads(f"value = {value}")["value"])
    except tomllib.TOMLDecodeError:  # a word
        shown = f'"{value}"'
    return f"{'loss_' if section == 'loss' else ''}{name}={shown}"


def call(function: str, **settings: object) -> str:
    """A function of the package with some of its settings, or its command."""
    words = [option(name, value) for name, value in settings.items()]
    if _in_shell:
        return f"`{' '.join(['hmlet', COMMANDS.get(function, function), '…', *words])}`"
    return f"`hmlet.{function}({', '.join(['…', *words])})`"


def enumerated(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
