"""HMLET, every baseline of its paper and the closed forms: one file per model.

A new model is one file and one line below, or one call of `register` from outside the package.
"""

from __future__ import annotations

from typing import TypeVar, get_args

import torch

from hmlet.graph import Graph
from hmlet.models.base import (
    NOISE_FREE,
    Defaults,
    EmbeddingConfig,
    FoldInRule,
    Gated,
    GatedConfig,
    GraphModelConfig,
    ItemWeighted,
    ItemWeights,
    Joined,
    Layers,
    Model,
    ModelConfig,
    NodeTensor,
    Pass,
    Product,
    Side,
    Solved,
    Views,
)
from hmlet.models.chebycf import ChebyCF
from hmlet.models.ease import EASE
from hmlet.models.gcmc import GCMC
from hmlet.models.gfcf import GFCF
from hmlet.models.hmlet import HMLET
from hmlet.models.itemknn import ItemKNN
from hmlet.models.lightgcn import LightGCN
from hmlet.models.lrgccf import LRGCCF
from hmlet.models.mf import BPRMF
from hmlet.models.ngcf import NGCF
from hmlet.models.pinsage import PinSage
from hmlet.models.popularity import Popularity
from hmlet.models.scores import BY_PRODUCT, Scores, Scoring
from hmlet.models.wrmf import WRMF

__all__ = [
    "BY_PRODUCT",
    "DEFAULT",
    "FLOOR",
    "MODELS",
    "NOISE_FREE",
    "QUICK",
    "Defaults",
    "EmbeddingConfig",
    "FoldInRule",
    "Gated",
    "GatedConfig",
    "GraphModelConfig",
    "ItemWeighted",
    "ItemWeights",
    "Joined",
    "Layers",
    "Model",
    "ModelConfig",
    "NodeTensor",
    "Pass",
    "Product",
    "Scores",
    "Scoring",
    "Side",
    "Solved",
    "Views",
    "build",
    "register",
]

MODELS: dict[str, type[Model]] = {}
"""Every model by its name; HMLET's variants are four names of one."""
DEFAULT = "hmlet-end"
FLOOR = "popularity"  # what every personal recommendation has to beat
QUICK = (FLOOR, "itemknn", "ease", "gf-cf", "lightgcn", DEFAULT)  # the models of `hmlet try`
Registered = TypeVar("Registered", bound=type[Model])


def register(model: Registered) -> Registered:
    """Make a model known by the names that its config has; usable as a decorator."""
    for name in get_args(model.Config.model_fields["name"].annotation):
        MODELS[name] = model
    return model


for _model in (HMLET, LightGCN, LRGCCF, NGCF, GCMC, PinSage, BPRMF, WRMF, Popularity, ItemKNN, EASE, GFCF, ChebyCF):
    register(_model)


def build(config: ModelConfig, graph: Graph, generator: torch.Generator) -> Model:
    """A freshly initialised model for a graph; every initial number comes from the generator."""
    return MODELS[config.name](config, graph, generator)  # type: ignore[arg-type]  # each takes its own config
