"""What the analysis of a run found, as types: analysis.json as it is written and read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal, Self

from pydantic import TypeAdapter, ValidationError

from hmlet.analysis.gates import Box, ClassSize, DegreeDecile, DegreeDensity, GateProbability
from hmlet.analysis.similarity import ClassCosine
from hmlet.analysis.stability import Stability
from hmlet.analysis.verdict import Judgement
from hmlet.errors import RunError

ANALYSIS = "analysis.json"
ANALYSIS_VERSION: Literal[1] = 1


@dataclass(frozen=True)
class DataIdentity:
    """The data set of the analysed run."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class CentralityMethod:
    """How betweenness and closeness were computed: from how many of the nodes as sources."""

    exact: bool
    sources: int
    nodes: int
    pagerank_damping: float


@dataclass(frozen=True)
class RelativeError:
    """The standard error of a node's value over that value: its median and its 90th percentile over the nodes."""

    median: float | None
    ninetieth_percentile: float | None


@dataclass(frozen=True)
class SampledMethod(CentralityMethod):
    """Centralities from a sample of the sources, with their error."""

    betweenness_relative_error: RelativeError
    betweenness_unknown_nodes: int
    closeness_relative_error: RelativeError
    closeness_unknown_nodes: int


@dataclass(frozen=True)
class Subject:
    """Which run was analysed, and how."""

    format_version: Literal[1]
    model: str
    seed: int
    data: DataIdentity
    gated_layers: list[int]
    centrality_method: SampledMethod | CentralityMethod | None  # None: degrees alone


@dataclass(frozen=True)
class Findings:
    """What was found about some nodes: all of them, the users or the items."""

    nodes: int
    gate_share: dict[str, float]  # by layer
    gate_probability: dict[str, GateProbability]  # by layer
    class_size: dict[str, ClassSize]
    degree_deciles: list[DegreeDecile]
    centrality_boxes: dict[str, dict[str, Box]]  # by centrality and class
    neighbour_cosine: dict[str, ClassCosine]
    verdict: dict[str, Judgement]  # by centrality
    degree_density: DegreeDensity

    def judged(self) -> Self:
        """The same numbers with verdicts by today's rule: they may have been written under another."""
        sizes = {name: size.nodes for name, size in self.class_size.items()}
        return replace(self, verdict={name: one.judged(sizes) for name, one in self.verdict.items()})


@dataclass(frozen=True, repr=False)
class Analysis(Findings, Subject):
    """The findings about all nodes of a run, and the same about its `users` and its `items`.

    The order of the base classes makes the order of the fields that of analysis.json: Subject's, Findings', these.
    """

    users: Findings
    items: Findings
    stability: Stability | None = None  # of several runs that were analysed together

    def __repr__(self) -> str:
        shares = ", ".join(f"{name.upper()} {size.share:.1%}" for name, size in self.class_size.items())
        return f"<Analysis of {self.model} on {self.data.name}, seed {self.seed}: {self.nodes:,} nodes, {shares}>"

    def judged(self) -> Self:
        return replace(super().judged(), users=self.users.judged(), items=self.items.judged())

    def as_json(self) -> dict[str, object]:
        """The content of analysis.json, which is also what `hmlet analyze --json` prints."""
        content: dict[str, object] = asdict(self)
        if self.stability is None:
            del content["stability"]
        return content

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Analysis:
        """The analysis in a file's content, with verdicts by today's rule; `where` names the file in errors."""
        try:
            found = _adapter().validate_json(content, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "the content"
            raise RunError(
                f"{where} is not an analysis ({field}: {first['msg']})", "analyse the run again, or restore the file"
            ) from error
        return found.judged()


@cache
def _adapter() -> TypeAdapter[Analysis]:
    return TypeAdapter(Analysis)
