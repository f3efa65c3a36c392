"""A data set that grows: old rows stay where they are, new ones follow, and nothing held out is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from planted import dataset

from hmlet.data import Columns, Dataset, Interactions, Vocabulary
from hmlet.data.extension import everything_trains, extended, new_interactions
from hmlet.data.record import Provenance
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


def table(**columns: list[object]) -> pa.Table:
    """A user with known items, who has some that are new."""
    return pa.table({"user": ["u0"] * len(next(iter(columns.values()))), **columns})


def test_columns_are_those_that_the_data_was_prepared_with(tmp_path: Path) -> None:
    """What they are called is in the record, so an update of an update, and of a saved one, knows it as well."""
    names = {"item": "thing", "rating": "points", "weight": "plays", "timestamp": "when", "item_name": "label"}
    rows = {"points": [5, 5, 1], "plays": [2.0, 3.0, 4.0], "when": [10, 20, 30], "label": ["A", "B", "C"]}
    first = Dataset.from_frame(table(thing=["a", "b", "c"], **rows), **names, min_rating=4, split="ratio:1,0,0")
    data = Dataset.load(first.save(tmp_path / "data"))
    new = table(thing=["d", "e"], points=[5, 3], plays=[7.0, 8.0], when=[40, 50], label=["D", "E"])
    for thing in ("d", "f"):
        new = new.set_column(1, "thing", pa.array([thing, "e"]))
        data, added = extended(everything_trains(data), new_interactions(new, data))
        assert added.interactions == 1
        at = data.items.indices([thing])[0]
        where = data.item == at
        assert data.weight is not None
        assert data.timestamp is not None
        assert (data.weight[where].tolist(), data.timestamp[where].tolist()) == ([7.0], [40])
        assert data.items.name(int(at)) == "D"


def test_the_record_of_an_older_data_set_names_no_columns() -> None:
    assert SMALL.provenance.columns == {}
    assert "columns" not in Dataset.from_frame(table(item=["a", "b"])).provenance.to_json()
    renamed = new_interactions(table(thing=["i2"]), SMALL, columns=Columns(item="thing"))
    assert renamed.provenance.columns == {"item": "thing"}


def test_a_column_that_the_new_file_lacks_or_of_an_unknown_role_is_guessed() -> None:
    small = Interactions(SMALL.user, SMALL.item, SMALL.users, SMALL.items)
    provenance = Provenance(columns={"item": "thing", "rating": "points", "later": "user"})
    data = Dataset("small", replace(small, provenance=provenance), SMALL.parts)
    assert len(new_interactions(table(item=["i2"], points=["not a number"]), data)) == 1


def with_values(min_rating: float | None = None, **values: object) -> Dataset:
    provenance = Provenance(min_rating=min_rating)
    small = Interactions(SMALL.user, SMALL.item, SMALL.users, SMALL.items, None, provenance)
    return Dataset("small", replace(small, **values), SMALL.parts)  # type: ignore[arg-type]


WEIGHED = with_values(weight=np.array([1, 2, 3, 4], np.float32))
TIMED = with_values(timestamp=np.array([10, 20, 30, 40]) + 1_700_000_000)
RATED = with_values(min_rating=4)


@pytest.mark.parametrize(
    ("data", "why", "option", "so"),
    [
        (WEIGHED, "the data set small has weights", "weight", "each row counts once"),
        (TIMED, "the data set small has timestamps", "timestamp", "the new data has no times"),
        (RATED, "only ratings of at least 4 count", "rating", "all its rows count"),
    ],
    ids=["weights", "times", "threshold"],
)
def test_what_the_data_set_has_is_taken_or_missed(
    data: Dataset, why: str, option: str, so: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says what a source without it means, and the column can be named."""
    new = table(item=["i2"], value=[1_700_000_050])
    assert len(new_interactions(new, data)) == 1
    (tmp_path / "new.txt").write_text("0 2\n", encoding="utf-8")
    assert len(new_interactions(tmp_path / "new.txt", data)) == 1
    lacking = f"the frame has no column that looks like the {option}: {so}, unless you name its column with `{option}`"
    assert caplog.messages == [
        f"{why}, and {lacking}",
        f"{why}, and {tmp_path / 'new.txt'} has only users and items: {so}",
    ]
    found, _ = extended(data, new_interactions(new, data, columns=Columns(**{option: "value"})))
    added = (found.user == 0) & (found.item == 2)
    for column, has in ((found.weight, data.weight), (found.timestamp, data.timestamp)):
        assert (column is None) == (has is None)
        assert column is None or column[added].tolist() == [pytest.approx(1_700_000_050)]
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("option", ["weight", "timestamp"])
def test_what_the_data_set_has_not_is_not_taken(option: str) -> None:
    with pytest.raises(DataError, match=f"the data set planted has no {option}s: leave `{option}` out"):
        new_interactions(table(item=["i2"], value=[1]), SMALL, columns=Columns(**{option: "value"}))


@pytest.mark.parametrize("time", ["2024-01-31", 1_700_000_050_000, 12], ids=["date", "milliseconds", "counted"])
def test_times_of_another_unit_are_refused(time: object) -> None:
    with pytest.raises(DataError, match=r"the times of the frame are around \d+, and those of small around 1700000025"):
        new_interactions(table(item=["i2"], timestamp=[time]), TIMED)


def test_the_rating_that_counts_is_the_data_sets_own() -> None:
    rated = pa.table({"user": ["u0", "u1"], "item": ["i2", "i0"], "rating": [5.0, 2.0]})
    assert len(new_interactions(rated, RATED)) == 1
    assert len(new_interactions(rated, RATED, min_rating=1)) == 2
    assert len(new_interactions(rated, SMALL)) == 2
    assert everything_trains(RATED).provenance.min_rating == 4  # a production run is updated by the same rule


def test_rows_that_cannot_be_used_may_be_skipped(caplog: pytest.LogCaptureFixture) -> None:
    bad = table(item=["i2", None])
    with pytest.raises(DataError, match=r"row 1, column 'item'.*skip_bad=True"):
        new_interactions(bad, SMALL)
    assert len(new_interactions(bad, SMALL, skip_bad=True)) == 1
    assert caplog.messages == ["1 rows were skipped, the first at the frame, row 1: column 'item': the item is empty"]


def test_nothing_new_is_refused() -> None:
    with pytest.raises(DataError, match="all 1 new interactions are already in planted"):
        grown([("u0", "i1")], SMALL)


def test_everything_trains() -> None:
    data = everything_trains(SMALL)
    assert pairs(data, "train") == {("u0", "i0"), ("u1", "i1"), ("u0", "i1"), ("u1", "i2")}
    assert data.count("valid") == data.count("test") == 0
    assert data.users.ids.equals(SMALL.users.ids)
    assert data.fingerprint != SMALL.fingerprint
