"""Ids as positions among distinct values, however the file has them: every row keeps its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmlet.data import Columns
from hmlet.data.dialect import Skipping
from hmlet.data.readers.coding import Coded, code, ranked
from hmlet.data.readers.sources import read
from hmlet.errors import DataError

texts = st.lists(st.sampled_from(["", "a", "b", "ab", "é", "zz", "10", "9"]) | st.none(), min_size=1)


@given(texts)
def test_codes_give_the_column_back(column: list[str | None]) -> None:
    frame, values = code(pl.DataFrame({"place": range(len(column)), "id": pl.Series(column, dtype=pl.String)}), ["id"])
    back = {place: values["id"][at] for place, at in frame.select("place", "id").iter_rows()}
    assert [back[place] for place in range(len(column))] == column
    assert values["id"].n_unique() == len(values["id"])


@given(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1), st.lists(st.integers(0, 5), min_size=1))
def test_used_values_are_those_of_some_row(extra: list[str], codes: list[int]) -> None:
    values = pl.Series(["a", "b", "c", "d", "e", "f", *extra])
    found = Coded(pl.Series(codes, dtype=pl.UInt32), values).used()
    assert [found.values[at] for at in found.codes] == [values[at] for at in codes]
    assert sorted(set(found.codes)) == list(range(len(found.values)))


@given(st.lists(st.text(max_size=3), min_size=1) | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_ranks_are_places_among_the_sorted_distinct_values(values: list[str] | list[int]) -> None:
    ordered = sorted(set(values), key=lambda each: each.encode() if isinstance(each, str) else each)
    rank, distinct = ranked(pl.Series(values))
    assert distinct.to_list() == ordered
    assert rank.tolist() == [ordered.index(each) for each in values]


def write(path: Path, groups: Sequence[Sequence[tuple[str | None, str]]], **options: object) -> Path:
    """A Parquet file with these groups of rows, each with a dictionary of its own."""
    schema = pa.schema([("user", pa.string()), ("item", pa.string())])
    with pq.ParquetWriter(path, schema, **options) as file:
        for rows in groups:
            file.write_table(pa.table({"user": [row[0] for row in rows], "item": [row[1] for row in rows]}, schema))
    return path


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"dictionary_pagesize_limit": 4}], ids=str)
def test_groups_of_rows_with_different_dictionaries_are_one_column(options: dict[str, object], tmp_path: Path) -> None:
    groups = [[("b", "i"), ("a", "j")], [("c", "j"), ("a", "i")], [("a", "k")], [("b", "k"), ("c", "i")]]
    found, _ = read([write(tmp_path / "f.parquet", groups, **options)], Columns())
    assert found.users.ids.to_pylist() == ["a", "b", "c"]
    pairs = zip(found.users.ids_at(found.user), found.items.ids_at(found.item), strict=True)
    assert list(pairs) == sorted(row for rows in groups for row in rows)


def test_an_empty_group_of_rows_adds_nothing(tmp_path: Path) -> None:
    found, _ = read([write(tmp_path / "f.parquet", [[], [("a", "i")], []])], Columns())
    assert (found.users.ids.to_pylist(), found.items.ids.to_pylist()) == (["a"], ["i"])


def test_a_missing_id_is_found_by_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [[("a", "i"), ("b", "i")], [("a", "j"), (None, "j")]])
    with pytest.raises(DataError, match=r"row 4, column 'user': the user is empty"):
        read([path], Columns())


def test_a_row_without_an_id_can_be_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [[("a", "i"), (None, "i")], [("a", "j"), ("c", "j")]])
    skipping = Skipping(allowed=True)
    found, _ = read([path], Columns(), skipping=skipping)
    assert list(zip(found.users.ids_at(found.user), found.items.ids_at(found.item), strict=True)) == [
        ("a", "i"),
        ("a", "j"),
        ("c", "j"),
    ]
    assert [place for _, place, _ in skipping.rows] == ["row 2"]


def test_a_column_of_ids_can_have_the_names_too(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [[("b", "i"), ("a", "j")]])
    found, _ = read([path], Columns(user_name="user"))
    assert found.users.names is not None
    assert found.users.names.to_pylist() == found.users.ids.to_pylist() == ["a", "b"]


def test_categories_without_rows_are_no_ids(tmp_path: Path) -> None:
    ids = pa.DictionaryArray.from_arrays(pa.array([2, 0], pa.int32()), pa.array(["a", "never", "c", " "]))
    pq.write_table(pa.table({"user": ids, "item": pa.array([1, 2])}), tmp_path / "f.parquet")
    found, _ = read([tmp_path / "f.parquet"], Columns())
    assert found.users.ids.to_pylist() == ["a", "c"]


def test_one_file_with_a_dictionary_and_one_without_agree_on_ids(tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", [[("b", "i"), ("a", "j")]])
    (tmp_path / "f.csv").write_text("user,item\nc,i\nb,k\n")
    found, _ = read([tmp_path / "f.parquet", tmp_path / "f.csv"], Columns())
    pairs = zip(found.users.ids_at(found.user), found.items.ids_at(found.item), strict=True)
    assert list(pairs) == [("a", "j"), ("b", "i"), ("b", "k"), ("c", "i")]
