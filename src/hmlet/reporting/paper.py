"""The numbers of the paper's tables and figures, from paper.json."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

Triple = tuple[float, float, float]  # one number for each of Paper.metrics
Layers = tuple[float, float, float, float]  # one number for each layer
Box = tuple[float, float, float, float, float]  # lower whisker, lower quartile, median, upper quartile, upper whisker


@dataclass(frozen=True)
class NeighbourCosine:
    """Mean and variance of the cosine to the neighbours, by class."""

    mean: dict[str, float]
    variance: dict[str, float]


@dataclass(frozen=True)
class Paper:
    """What the paper prints. The gates' numbers, but for the class sizes, are of one data set and of HMLET(End)."""

    source: str
    metrics: tuple[str, str, str]
    main_table: dict[str, dict[str, Triple]]  # by data set and model
    improvement_percent: dict[str, Triple]  # by data set: HMLET(End) over the best baseline
    p_values: dict[str, Triple]  # by data set, of that improvement
    variants_ndcg: dict[str, dict[str, float]]  # by data set and variant
    class_size_percent: dict[str, dict[str, float]]  # by data set and class
    gates_data: str  # the data set of the numbers below
    gate_share_percent: dict[str, Layers]  # by variant
    degree_deciles_percent: dict[str, list[float]]  # by class
    centrality_boxes: dict[str, dict[str, Box]]  # by centrality and class
    neighbour_cosine: NeighbourCosine


@cache
def paper() -> Paper:
    """The paper's numbers."""
    return TypeAdapter(Paper).validate_json(Path(__file__).with_name("paper.json").read_bytes())
