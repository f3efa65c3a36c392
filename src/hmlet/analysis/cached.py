"""Centralities computed once for a data set: kept in the user's cache under the data's fingerprint, with a checksum."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hmlet.data import Dataset
from hmlet.data.catalog import cache_directory
from hmlet.errors import HmletError
from hmlet.graph import Graph
from hmlet.graph.centrality import Centralities, centralities
from hmlet.system.files import replacing
from hmlet.system.progress import Advance, silent

CACHE_VERSION = 1


def cached_centralities(
    data: Dataset,
    graph: Graph,
    *,
    samples: int | None = None,
    device: torch.device | str = "cpu",
    advance: Advance = silent,
) -> Centralities:
    """The centralities of a data set's training graph, from the cache where they are; a damaged entry is made anew."""
    kind = "exact" if samples is None or samples >= graph.n_nodes else f"sampled-{samples}"
    path = cache_directory() / "centrality" / f"{data.fingerprint}-{kind}-{CACHE_VERSION}.safetensors"
    found = _read(path)
    if found is None or len(found.degree) != graph.n_nodes:
        found = centralities(graph, samples=samples, device=device, advance=advance)
        _write(path, found)
    return found


def _write(path: Path, found: Centralities) -> None:
    """Put an entry into the cache; where that cannot be written, the next call computes again."""
    values = asdict(found)
    sources = values.pop("sources")
    with suppress(HmletError), replacing(path) as temporary:
        save_file(values, temporary, {"sources": str(sources), "sha256": _digest(values, sources)})


def _read(path: Path) -> Centralities | None:
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        sources = int(about["sources"])
        return Centralities(**values, sources=sources) if about["sha256"] == _digest(values, sources) else None
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None


def _digest(values: dict[str, np.ndarray], sources: int) -> str:
    digest = hashlib.sha256(str(sources).encode())
    for name in sorted(values):
        digest.update(f"{name} {values[name].dtype} {values[name].shape}".encode())
        digest.update(np.ascontiguousarray(values[name]).data)
    return digest.hexdigest()
