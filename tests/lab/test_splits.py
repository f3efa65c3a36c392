"""The public split and the held-out tenth: every pair is where it should be, and the test part is out of reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted import dataset, random_pairs

from hmlet.data import Dataset
from hmlet.data.catalog import known_name, load_named
from lab.board.splits import board_split, selection_split

Pairs = set[tuple[int, int]]


def pairs(data: Dataset, *parts: str) -> Pairs:
    return {
        (int(user), int(item))
        for part in parts
        for user, item in zip(data.user[data.slice(part)], data.item[data.slice(part)], strict=True)
    }


@pytest.fixture
def data() -> Dataset:
    """Users with 1, 2, 9, 10, 11, 25 and no training items; each has one item in valid and one in test."""
    counts = [1, 2, 9, 10, 11, 25, 0]
    train = [(user, item) for user, count in enumerate(counts) for item in range(count)]
    held = {part: [(user, item) for user in range(len(counts))] for part, item in (("valid", 30), ("test", 31))}
    return dataset(len(counts), 32, "planted", train=train, **held)


def test_the_board_is_the_published_split(data: Dataset) -> None:
    board = board_split(data)
    assert pairs(board, "train") == pairs(data, "train")
    assert pairs(board, "test") == pairs(data, "valid", "test")
    assert board.count("valid") == 0
    assert len(board) == len(data)


def test_the_selection_holds_out_a_tenth_of_each_users_training_items(data: Dataset) -> None:
    split = selection_split(data)
    assert pairs(split, "train") | pairs(split, "valid") == pairs(data, "train")
    assert not pairs(split, "train") & pairs(split, "valid")
    assert split.count("test") == 0
    assert split.csr("valid").counts.tolist() == [0, 1, 1, 1, 2, 3, 0]  # a tenth, rounded up, but never the last item
    assert (split.n_users, split.n_items) == (data.n_users, data.n_items)


def test_no_held_out_interaction_reaches_the_selection() -> None:
    """Other validation and test parts make the same selection, and what it holds out is random in each user's items."""
    train = random_pairs(1, 200, 40, 0.5)
    splits = []
    for held in ([(0, 40)], [(0, 41), (3, 40)]):
        splits.append(selection_split(dataset(200, 42, "planted", train=train, valid=held, test=[(5, 41)])))
    assert splits[0].fingerprint == splits[1].fingerprint
    chosen = np.bincount(splits[0].item[splits[0].slice("valid")], minlength=42)
    shares = chosen[:40] / np.bincount([item for _, item in train], minlength=42)[:40]
    assert shares.min() > 0.03  # about a tenth of each item's
    assert shares.max() < 0.25


def test_neither_split_is_a_named_set() -> None:
    """Recipes that were searched on the named set saw half of the public test set."""
    for split in (board_split(load_named("debian")), selection_split(load_named("debian"))):
        assert known_name(split) is None
        assert split.provenance.derived_from is not None
        assert split.provenance.derived_from.startswith("debian ")


def test_a_split_survives_a_prepared_directory(data: Dataset, tmp_path: Path) -> None:
    for split in (board_split(data), selection_split(data)):
        assert Dataset.load(split.save(tmp_path / split.name)).fingerprint == split.fingerprint
