"""What this machine offers a training: libraries, devices with their free memory, and the extras that are missing."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import cache_from_source
from pathlib import Path

import torch

from hmlet.graph.kernels import multiplies_bfloat16
from hmlet.training.planning import free_memory
from hmlet.version import VERSION

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[(?P<extras>[\w.,-]+)\])?[^;]*(;.*extra == [\"'](?P<extra>[\w.-]+))?")


@dataclass(frozen=True)
class Device:
    """A place to train."""

    name: str
    free_bytes: int


@dataclass(frozen=True)
class Environment:
    """Versions, devices, missing extras, and whether every start takes seconds longer than it has to."""

    hmlet: str
    python: str
    libraries: Mapping[str, str | None]  # None: not installed
    devices: Mapping[str, Device]
    missing_extras: Sequence[str]
    compiles_at_start: bool  # Python compiles PyTorch's sources in every process and keeps nothing

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def environment() -> Environment:
    """What is installed here and what can be trained on: `hmlet doctor`."""
    core, extras = requirements(_declared())
    libraries = {name: _version(name) for name in (*core, *(name for names in extras.values() for name in names))}
    places = [torch.device("cpu"), *(torch.device("cuda", at) for at in range(torch.cuda.device_count()))]
    return Environment(
        hmlet=VERSION,
        python=platform.python_version(),
        libraries=libraries,
        devices={str(place): Device(_name(place), free_memory(place)) for place in places},
        missing_extras=[extra for extra, names in extras.items() if any(libraries[name] is None for name in names)],
        compiles_at_start=sys.dont_write_bytecode and not Path(cache_from_source(torch.__file__)).exists(),
    )


def requirements(declared: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The libraries that the package needs, and those of each extra that `all` includes, from its metadata."""
    found = [match for line in declared if (match := _REQUIREMENT.match(line))]
    included = {extra for match in found if match["extra"] == "all" for extra in (match["extras"] or "").split(",")}
    extras: dict[str, list[str]] = {}
    for match in found:
        if match["extra"] in included:
            extras.setdefault(match["extra"], []).append(match["name"])
    return [match["name"] for match in found if match["extra"] is None], extras


def _declared() -> Sequence[str]:
    try:
        return requires("hmlet") or ()
    except PackageNotFoundError:  # run from its source without an installation
        return ()


def _name(place: torch.device) -> str:
    if place.type == "cuda":
        return f"{torch.cuda.get_device_name(place)}, Triton {_version('triton') or 'missing'}"
    narrow = ", bfloat16" if multiplies_bfloat16(place) else ""
    return f"{platform.machine()}, {torch.get_num_threads()} threads{narrow}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
