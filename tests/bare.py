"""A Python in which only the core dependencies can be imported, like a GPU box that has little more than PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CORE = (
    *("torch", "numpy", "scipy", "pyarrow", "polars"),
    *("safetensors", "msgspec", "pydantic", "typer", "rich", "platformdirs", "filelock", "psutil"),
)

# Python runs a module of this name at its start, in child processes too.
SITECUSTOMIZE = """\
import sys
from importlib.machinery import PathFinder

FORBIDDEN = frozenset({forbidden!r})

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in FORBIDDEN else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare  # what is forbidden is not found, also by those who only ask
"""


def run_bare(directory: Path, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """What `python ARGUMENTS` did, in `directory`, where every installed package beyond the core is unimportable."""
    site = directory / "bare-site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        SITECUSTOMIZE.format(forbidden=sorted(forbidden_modules())), encoding="utf-8"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ["PYTHONPATH"]])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout)


@cache
def forbidden_modules() -> set[str]:
    """The top-level modules that only packages outside the core bring."""
    allowed = core_distributions() | {"hmlet"}
    return {
        module
        for module, distributions in packages_distributions().items()
        if module != "hmlet" and not allowed.intersection(map(canonicalize_name, distributions))
    }


def core_distributions() -> set[str]:
    """The core dependencies and what they themselves depend on, without extras."""
    found: set[str] = set()
    waiting = [canonicalize_name(name) for name in CORE]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            requirements = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:
            continue  # a requirement of another platform
        found.add(name)
        waiting += [
            canonicalize_name(each.name)
            for each in requirements
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found
