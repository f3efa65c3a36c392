"""Interactions with contiguous integer ids, and the vocabularies that lead back to the user's own ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hmlet.errors import UnknownId

Ints = npt.NDArray[np.int32]
Id = int | str


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The external ids of one side, in index order: int64 where the source had integers, strings otherwise."""

    kind: str  # "user" or "item": the word that messages use
    ids: pa.Array
    names: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {str(value): index for index, value in enumerate(self.ids.to_pylist())}

    def indices(self, ids: Iterable[Id]) -> Ints:
        """The indices of external ids; integers and their decimal spelling are the same id."""
        found = []
        for value in ids:
            index = self._positions.get(str(value))
            if index is None:
                raise UnknownId(f"{self.kind} {value!r} is not in the data set", self._suggestion(str(value)))
            found.append(index)
        return np.array(found, dtype=np.int32)

    def __contains__(self, value: object) -> bool:
        return str(value) in self._positions

    def id(self, index: int) -> Id:
        """The external id at an index."""
        value: Id = self.ids[index].as_py()
        return value

    def name(self, index: int) -> str | None:
        """The readable name at an index, where the data set has names."""
        if self.names is None:
            return None
        value: str | None = self.names[index].as_py()
        return value

    def _suggestion(self, value: str) -> str:
        import difflib

        close = difflib.get_close_matches(value, self._positions, n=3, cutoff=0.6) if len(self) <= 200_000 else []
        return f"did you mean {', '.join(close)}?" if close else f"its {self.kind} ids look like {self.id(0)!r}"


@dataclass(frozen=True, eq=False)
class Interactions:
    """Distinct (user, item) pairs as integers. Duplicates are merged before this; order carries no meaning."""

    user: Ints
    item: Ints
    users: Vocabulary
    items: Vocabulary
    timestamp: npt.NDArray[np.int64] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)  # how it came to be: files, options, rows in and out

    def __len__(self) -> int:
        return len(self.user)
