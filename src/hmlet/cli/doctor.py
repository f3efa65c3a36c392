"""`hmlet doctor`: what is here, and what is missing."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from hmlet.cli.console import Json, app, print_json, print_line, print_table
from hmlet.version import VERSION

if TYPE_CHECKING:
    import torch

_CORE = ("torch", "numpy", "scipy", "pyarrow", "safetensors", "pydantic", "typer", "rich")
_EXTRAS = {
    "data": ("polars", "platformdirs"),
    "wrmf": ("implicit",),
    "report": ("matplotlib",),
    "serve": ("fastapi", "uvicorn", "prometheus-client", "usearch"),
    "tune": ("optuna",),
    "tensorboard": ("tensorboard",),
}


@app.command()
def doctor(as_json: Json = False) -> None:
    """Versions, devices and memory, and which extras are missing.

    Example: hmlet doctor
    """
    import torch

    from hmlet.training.planning import free_memory, readable

    libraries = {name: _version(name) for name in (*_CORE, *(name for names in _EXTRAS.values() for name in names))}
    places = [torch.device("cpu"), *(torch.device("cuda", at) for at in range(torch.cuda.device_count()))]
    devices = {str(place): {"name": _name(place), "free_bytes": free_memory(place)} for place in places}
    missing = [extra for extra, names in _EXTRAS.items() if any(libraries[name] is None for name in names)]
    if as_json:
        found = {"hmlet": VERSION, "python": platform.python_version(), "libraries": libraries}
        print_json({**found, "devices": devices, "missing_extras": missing})
        return
    print_line(f"hmlet {VERSION}, Python {platform.python_version()} on {platform.system()}")
    print_table(["library", "version"], [[name, found or "missing"] for name, found in libraries.items()])
    for place in places:
        print_line(f"{place}: {_name(place)}, {readable(free_memory(place))} free")
    print_line("all extras are here" if not missing else f"missing: pip install 'hmlet[{','.join(missing)}]'")


def _name(place: torch.device) -> str:
    import torch

    if place.type == "cuda":
        return f"{torch.cuda.get_device_name(place)}, Triton {_version('triton') or 'missing'}"
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
