"""The public split of a benchmark, and a split of its training part to choose recipes by (docs/decisions/0013).

HMLET's authors halved NGCF's published test set into a validation and a test part. A number beside other papers' needs
NGCF's own split back, and a recipe behind it that saw neither half. `board_split` trains on the whole training part
and tests on both halves. `selection_split` holds out a tenth of the training part and leaves the test set out.
"""

from __future__ import annotations

import numpy as np

from hmlet.data.dataset import Dataset
from hmlet.data.interactions import Interactions
from hmlet.data.record import Provenance
from hmlet.data.splits import TEST, TRAIN, PartCodes, SplitRule, assign

BOARD, SELECTION = "board", "selection"
HELD_OUT = "ratio:0.9,0.1,0"  # of each user's training items; at least one stays, and a single one always does
HELD_OUT_SEED = 0


def board_split(data: Dataset) -> Dataset:
    """The published split: the whole training part, no validation part, and valid ∪ test as the test part."""
    part = np.full(len(data), TEST, dtype=np.uint8)
    part[data.slice("train")] = TRAIN
    return _derived(data, BOARD, slice(None), part, "files")


def selection_split(data: Dataset) -> Dataset:
    """The training part alone, with a random tenth of each user's items as the validation part.

    The test part is empty, so that nothing can be chosen on it. Users and items stay those of the whole data set.
    """
    train = data.slice("train")
    part = assign(SplitRule.parse(HELD_OUT), data.user[train], data.item[train], None, HELD_OUT_SEED)
    return _derived(data, SELECTION, train, part, HELD_OUT)


def _derived(data: Dataset, kind: str, rows: slice, part: PartCodes, split: str) -> Dataset:
    """Some interactions of a data set in other parts; not a named set, whose searched recipes saw the test part."""
    trained = np.bincount(data.user[rows][part == TRAIN], minlength=data.n_users) > 0
    provenance = Provenance(
        derived_from=f"{data.name} {data.fingerprint}",
        rows=len(part),
        split=split,
        seed=HELD_OUT_SEED,
        users_without_training=int((~trained).sum()),
    )
    timestamp = None if data.timestamp is None else data.timestamp[rows]
    weight = None if data.weight is None else data.weight[rows]
    interactions = Interactions(data.user[rows], data.item[rows], data.users, data.items, timestamp, provenance, weight)
    return Dataset(f"{data.name}-{kind}", interactions, part)
