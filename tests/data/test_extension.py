"""A data set that grows: old rows stay where they are, new ones follow, and nothing held out is trained on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from planted import dataset

from hmlet.data import Dataset, Interactions, Vocabulary
from hmlet.data.extension import everything_trains, extended, new_interactions
from hmlet.errors import DataError


def grown(rows: list[tuple[str, str]], data: Dataset) -> Dataset:
    frame = pa.table({"user": [user for user, _ in rows], "item": [item for _, item in rows]})
    return extended(data, new_interactions(frame, data))[0]


def pairs(data: Dataset, part: str) -> set[tuple[object, object]]:
    """The pairs of a part, by their own ids."""
    where = data.slice(part)
    return {
        (data.users.id(int(user)), data.items.id(int(item)))
        for user, item in zip(data.user[where], data.item[where], strict=True)
    }


SMALL = dataset(2, 3, train=[(0, 0), (1, 1)], valid=[(0, 1)], test=[(1, 2)])


def test_new_pairs_train_and_known_ones_stay_in_their_part() -> None:
    new = [("u0", "i2"), ("a", "i0"), ("u1", "b"), ("u0", "i1"), ("u1", "i2"), ("u0", "i0"), ("u0", "i2")]
    frame = pa.table({"user": [user for user, _ in new], "item": [item for _, item in new]})
    data, added = extended(SMALL, new_interactions(frame, SMALL))
    assert added == (3, 1, 1, 3)
    assert pairs(data, "train") == {("u0", "i0"), ("u1", "i1"), ("u0", "i2"), ("a", "i0"), ("u1", "b")}
    assert pairs(data, "valid") == {("u0", "i1")}
    assert pairs(data, "test") == {("u1", "i2")}


def test_old_ids_keep_their_rows() -> None:
    data = grown([("0 sorts first", "i0"), ("u0", "0 sorts first")], SMALL)
    assert data.users.ids.to_pylist() == ["u0", "u1", "0 sorts first"]
    assert data.items.ids.to_pylist() == ["i0", "i1", "i2", "0 sorts first"]


@pytest.mark.parametrize(
    ("new", "ids"), [([7, 30], [5, 7, 30]), (["7", "x"], ["5", "7", "x"])], ids=["integers", "text"]
)
def test_integers_stay_integers_unless_text_comes(new: list[object], ids: list[object]) -> None:
    users = Vocabulary("user", pa.array([5, 7]))
    old = Interactions(np.array([0, 1], np.int32), np.array([0, 0], np.int32), users, Vocabulary("item", pa.array([1])))
    data = Dataset("old", old, np.zeros(2, np.uint8))
    frame = pa.table({"user": new, "item": [2, 2]})
    assert extended(data, new_interactions(frame, data))[0].users.ids.to_pylist() == ids


def test_names_follow_their_ids() -> None:
    """New items have no name here, and old ones keep theirs."""
    items = Vocabulary("item", pa.array(["a", "b"]), pa.array(["A", None]))
    old = Interactions(np.array([0], np.int32), np.array([0], np.int32), SMALL.users, items)
    data = grown([("u0", "c")], Dataset("named", old, np.zeros(1, np.uint8)))
    assert data.items.names.to_pylist() == ["A", None, None]
    assert data.users.names is None


def test_times_are_kept_if_both_have_them() -> None:
    old = Interactions(SMALL.user, SMALL.item, SMALL.users, SMALL.items, np.array([10, 20, 30, 40]))
    data = Dataset("timed", old, SMALL.parts)
    frame = pa.table({"user": ["u0"], "item": ["i2"], "timestamp": [50]})
    found, _ = extended(data, new_interactions(frame, data))
    assert found.timestamp is not None
    where = (found.user == 0) & (found.item == 2)
    assert found.timestamp[where].tolist() == [50]
    assert grown([("u0", "i2")], data).timestamp is None


def test_the_rating_that_counts_is_the_data_sets_own() -> None:
    """A file without ratings is taken whole; a threshold of its own needs them."""
    rated = pa.table({"user": ["u0", "u1"], "item": ["i2", "i0"], "rating": [5.0, 2.0]})
    data = Dataset.from_frame(
        pa.table({"user": ["u0", "u1", "u0"], "item": ["i0", "i1", "i2"], "rating": [5.0, 5.0, 1.0]}),
        min_rating=4,
        split="ratio:1,0,0",
    )
    assert len(new_interactions(rated, data)) == 1
    assert len(new_interactions(rated, data, min_rating=1)) == 2
    assert len(new_interactions(rated.drop_columns(["rating"]), data)) == 2
    with pytest.raises(DataError, match="rating"):
        new_interactions(rated.drop_columns(["rating"]), data, min_rating=4)


def test_nothing_new_is_refused() -> None:
    with pytest.raises(DataError, match="all 1 new interactions are already in planted"):
        grown([("u0", "i1")], SMALL)


def test_everything_trains() -> None:
    data = everything_trains(SMALL)
    assert pairs(data, "train") == {("u0", "i0"), ("u1", "i1"), ("u0", "i1"), ("u1", "i2")}
    assert data.count("valid") == data.count("test") == 0
    assert data.users.ids.equals(SMALL.users.ids)
    assert data.fingerprint != SMALL.fingerprint
