"""HMLET and every baseline of its paper, each ending in one pair of factor matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hmlet.config import ModelConfig
from hmlet.graph import Graph
from hmlet.models.base import NOISE_FREE, Layers, Model, Pass, Product
from hmlet.models.gcmc import GCMC
from hmlet.models.hmlet import HMLET
from hmlet.models.lightgcn import LightGCN
from hmlet.models.lrgccf import LRGCCF
from hmlet.models.mf import BPRMF
from hmlet.models.ngcf import NGCF
from hmlet.models.pinsage import PinSage
from hmlet.models.wrmf import WRMF

__all__ = ["NOISE_FREE", "Layers", "Model", "Pass", "Product", "build"]

_MODELS: dict[str, Callable[[Any, int, int, torch.Generator], Model]] = {
    "hmlet": HMLET,
    "lightgcn": LightGCN,
    "lr-gccf": LRGCCF,
    "ngcf": NGCF,
    "gc-mc": GCMC,
    "bpr": BPRMF,
    "wrmf": WRMF,
}


def build(config: ModelConfig, graph: Graph, generator: torch.Generator) -> Model:
    """A freshly initialised model for a graph; every initial number comes from the generator."""
    if config.family == "pinsage":
        return PinSage(config, graph, generator)  # type: ignore[arg-type]
    return _MODELS[config.family](config, graph.n_users, graph.n_items, generator)
