"""HMLET and the baselines of its paper, from an interaction file to recommendations.

The names below are the Python twin of the command line. They are imported on first use, so that
`import hmlet` costs nothing and `hmlet --help` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hmlet.version import VERSION as __version__

_HOMES = {
    "Dataset": "hmlet.data",
    "HmletError": "hmlet.errors",
    "Run": "hmlet.api",
    "fit": "hmlet.api",
}

__all__ = ["Dataset", "HmletError", "Run", "__version__", "fit"]


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]  # what is imported on first use is there for completion too


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hmlet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
