"""What the gates of a run chose: gates.parquet as it is written and read, the branch and the class of each node.

Nodes are numbered users first. Shapes: N nodes, L gated layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch import Tensor

from hmlet.errors import RunError
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import RESTORE
from hmlet.system.tables import Column

GATES = "gates.parquet"
GATE_COLUMNS = {
    "node": Column((pa.int32(),)),
    "layer": Column((pa.int8(),)),
    "probability": Column((pa.float32(),)),
    "nonlinear": Column((pa.bool_(),)),
}
# In the paper's order: every gated layer non-linear, some, none.
CLASSES = ("fnl", "pnl", "fl")

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
Probability = TypeVar("Probability", Tensor, npt.NDArray[np.float32])


def is_nonlinear(probability: Probability) -> Probability:
    """Whether a gate without noise takes the non-linear branch, from that branch's probability; a tie is linear."""
    return probability > 0.5  # type: ignore[return-value]


def gates_table(gates: Mapping[int, Tensor]) -> pa.Table:
    """A gates.parquet: one row a node and gated layer, with the probability of the non-linear branch and the choice."""
    probability = [gates[layer].float().cpu().numpy() for layer in sorted(gates)]
    count = len(probability[0])
    return pa.table(
        {
            "node": np.tile(np.arange(count, dtype=np.int32), len(probability)),
            "layer": np.repeat(np.array(sorted(gates), dtype=np.int8), count),
            "probability": np.concatenate(probability),
            "nonlinear": is_nonlinear(np.concatenate(probability)),
        }
    )


@dataclass(frozen=True, eq=False)
class Choices:
    """Each node's noise-free choice at each gated layer, and the probability of the non-linear branch behind it."""

    layers: tuple[int, ...]
    nonlinear_NL: Bools
    probability_NL: npt.NDArray[np.float32]

    @classmethod
    def from_table(cls, table: pa.Table, n_nodes: int, where: str) -> Choices:
        """The choices of a gates.parquet: one row a node and gated layer, in any order. `where` names it in errors."""
        node, layer = table["node"].to_numpy(), table["layer"].to_numpy()
        layers, column = np.unique(layer, return_inverse=True)
        if not len(layers):
            raise RunError(
                f"{where} has no gated layer, so no node chose anything", "analyse a run of an HMLET variant"
            )
        cell = node.astype(np.int64) * len(layers) + column
        whole = n_nodes * len(layers)
        if len(cell) != whole or not np.array_equal(np.sort(cell), np.arange(whole)):
            raise RunError(
                f"{where} has {len(cell)} gate rows, not one for each of {n_nodes} nodes and {len(layers)} layers",
                RESTORE,
            )
        stored = table["probability"].to_numpy()
        if not ((stored >= 0) & (stored <= 1)).all():  # NaN is neither
            raise RunError(f"{where}: column 'probability': it has values outside 0 to 1", RESTORE)
        nonlinear, probability = np.empty(whole, dtype=np.bool_), np.empty(whole, dtype=np.float32)
        nonlinear[cell] = table["nonlinear"].to_numpy(zero_copy_only=False)
        probability[cell] = stored
        shape = (n_nodes, len(layers))
        return cls(tuple(int(each) for each in layers), nonlinear.reshape(shape), probability.reshape(shape))

    @classmethod
    def read(cls, run: RunDirectory, n_nodes: int) -> Choices | None:
        """The choices that a run has stored; None where its model has no gates."""
        if GATES not in run.record.files:
            return None
        return cls.from_table(run.read_table(GATES, GATE_COLUMNS), n_nodes, str(run.path / GATES))

    @property
    def count(self) -> npt.NDArray[np.int64]:
        """How many gated layers each node passes by the non-linear branch."""
        return np.asarray(self.nonlinear_NL.sum(axis=1, dtype=np.int64))

    @property
    def classes(self) -> Codes:
        """Each node's class as its place in CLASSES."""
        count = self.count
        return np.where(count == len(self.layers), 0, np.where(count == 0, 2, 1)).astype(np.int8)

    def of(self, chosen: slice) -> Choices:
        """The choices of some of the nodes."""
        return Choices(self.layers, self.nonlinear_NL[chosen], self.probability_NL[chosen])
