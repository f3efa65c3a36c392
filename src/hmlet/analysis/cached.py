"""What is computed once and kept in the user's cache, with a checksum: centralities of data, and layouts of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hmlet.analysis.layout import Layout, layout
from hmlet.data import Dataset
from hmlet.data.catalog import cache_directory
from hmlet.errors import HmletError
from hmlet.graph import Graph
from hmlet.graph.centrality import Centralities, centralities
from hmlet.system.files import replacing
from hmlet.system.progress import Advance, silent

CACHE_VERSION = 1
LAYOUT_VERSION = 1
Arrays = dict[str, npt.NDArray[np.generic]]


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
    with suppress(OSError, SafetensorError, KeyError, ValueError, TypeError):
        values, about = _read(path)
        found = Centralities(**values, sources=int(about["sources"]))  # type: ignore[arg-type]
        if len(found.degree) == graph.n_nodes:
            return found
    found = centralities(graph, samples=samples, device=device, advance=advance)
    values = asdict(found)
    _write(path, values, {"sources": str(values.pop("sources"))})
    return found


def cached_layout(factors_NF: torch.Tensor, checksum: str, advance: Advance = silent) -> Layout:
    """The map of a run's embeddings, from the cache where it is. `checksum` is that of the file with the factors."""
    path = cache_directory() / "layout" / f"{checksum}-{LAYOUT_VERSION}.safetensors"
    with suppress(OSError, SafetensorError, KeyError, ValueError, TypeError):
        values, _ = _read(path)
        found = Layout(values["place"], values["cluster"])  # type: ignore[arg-type]
        if found.place_N2.shape == (len(factors_NF), 2) and found.cluster_N.shape == (len(factors_NF),):
            return found
    found = layout(factors_NF, advance)
    _write(path, {"place": found.place_N2, "cluster": found.cluster_N}, {})
    return found


def _write(path: Path, values: Arrays, about: Mapping[str, str]) -> None:
    """Put an entry into the cache; where that cannot be written, the next call computes again."""
    with suppress(HmletError), replacing(path) as temporary:
        save_file(values, temporary, {**about, "sha256": _digest(values, about)})


def _read(path: Path) -> tuple[Arrays, dict[str, str]]:
    """An entry's arrays and what else it says. Raises a ValueError for a damaged one."""
    with safe_open(path, framework="numpy") as file:
        about = dict(file.metadata() or {})
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    if about.pop("sha256", None) != _digest(values, about):
        raise ValueError("damaged")
    return values, about


def _digest(values: Arrays, about: Mapping[str, str]) -> str:
    digest = hashlib.sha256("".join(about[key] for key in sorted(about)).encode())
    for name in sorted(values):
        digest.update(f"{name} {values[name].dtype} {values[name].shape}".encode())
        digest.update(np.ascontiguousarray(values[name]).data)
    return digest.hexdigest()
