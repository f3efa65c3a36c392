"""What other papers print for the same split, from published.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import PositiveInt, TypeAdapter

from hmlet.system.section import Rate, Section

PUBLISHED = Path(__file__).with_name("published.toml")


class Published(Section):
    """A row of somebody else, with the place where its numbers are printed."""

    method: str
    recall: Rate
    """Recall@20 on the published test set."""
    ndcg: Rate
    """NDCG@20 on the published test set."""
    size: PositiveInt | None = None
    """Embedding size; absent for a model without embeddings, and where the source does not say."""
    paper: str
    """Who published the method, where and when."""
    source: str
    """Address of the page or file with the numbers."""
    epochs_on_test: bool | None = None
    """Whether the test part chose the epoch; absent where the source does not say."""


def published(dataset: str) -> list[Published]:
    """The rows of a data set, the highest NDCG@20 first."""
    rows = tomllib.loads(PUBLISHED.read_text(encoding="utf-8")).get(dataset, [])
    return sorted(TypeAdapter(list[Published]).validate_python(rows), key=lambda row: -row.ndcg)
