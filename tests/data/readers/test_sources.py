"""The same interactions come out of every format, spelling, compression and row order."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmlet.data import Columns, Dataset, Dialect, Interactions
from hmlet.data.dialect import Skipping
from hmlet.data.readers import FORMATS
from hmlet.data.readers.format import Format, Source
from hmlet.data.readers.sources import read as read_sources
from hmlet.data.readers.sources import sample_file
from hmlet.data.text import TextFile
from hmlet.errors import DataError, HmletError

# Any text without control characters; what CSV must quote (separators, quotes, spaces) is welcome.
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=6).filter(str.strip)
INTEGER = st.integers(-(2**63), 2**63 - 1)
ROWS = st.one_of(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=25),
    st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=25),
    st.lists(st.tuples(INTEGER, TEXT), min_size=1, max_size=10),
)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def pairs(interactions: Interactions) -> set[tuple[object, object]]:
    """The external ids of all interactions."""
    users, items = interactions.users.ids.to_pylist(), interactions.items.ids.to_pylist()
    return {(users[user], items[item]) for user, item in zip(interactions.user, interactions.item, strict=True)}


def read(path: Path, content: bytes, **columns: str) -> Interactions:
    path.write_bytes(content)
    return read_sources([path], Columns(**columns))[0]


def as_csv(rows: list[tuple[object, object]], separator: str = ",", end: str = "\n") -> bytes:
    sink = io.StringIO()
    csv.writer(sink, delimiter=separator, lineterminator=end).writerows([("user", "item"), *rows])
    return sink.getvalue().encode("utf-8")


def as_parquet(rows: list[tuple[object, object]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"user": [user for user, _ in rows], "item": [item for _, item in rows]}), sink)
    return sink.getvalue()


def as_json(rows: list[tuple[object, object]]) -> bytes:
    return "".join(json.dumps({"user": user, "item": item}) + "\n" for user, item in rows).encode("utf-8")


@quick
@given(ROWS)
def test_every_format_gives_the_rows_back(tmp_path: Path, rows: list[tuple[object, object]]) -> None:
    for name, content in (("f.jsonl", as_json(rows)), ("f.parquet", as_parquet(rows))):
        assert pairs(read(tmp_path / name, content)) == set(rows)
    as_text = {(str(user).strip(), str(item).strip()) for user, item in rows}
    for name, separator in (("f.csv", ","), ("f.tsv", "\t")):
        found = read(tmp_path / name, as_csv(rows, separator))
        assert {(str(user), str(item)) for user, item in pairs(found)} == as_text
        assert found.provenance.rows == len(rows) == len(found) + found.provenance.duplicates


@quick
@given(ROWS, st.data())
def test_spelling_of_the_file_does_not_matter(
    tmp_path: Path, rows: list[tuple[object, object]], data: st.DataObject
) -> None:
    plain = read(tmp_path / "f.csv", as_csv(rows))
    shuffled = data.draw(st.permutations(rows))
    content = as_csv(shuffled, end=data.draw(st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n"])))
    content = (
        data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + data.draw(st.sampled_from([b"", b"\n", b"\r\n"])) + content
    )
    if data.draw(st.booleans()):
        content = content.rstrip(b"\r\n")
    name, pack = data.draw(
        st.sampled_from(
            [
                ("g.csv", bytes),
                ("g.csv.gz", gzip.compress),
                ("g.csv.zst", lambda b: pa.compress(b, codec="zstd", asbytes=True)),
            ]
        )
    )
    other = read(tmp_path / name, pack(content))
    for column in ("user", "item"):
        np.testing.assert_array_equal(getattr(other, column), getattr(plain, column))
    assert other.users.ids.equals(plain.users.ids)
    assert other.items.ids.equals(plain.items.ids)


@quick
@given(
    st.dictionaries(st.integers(0, 10**17), st.lists(st.integers(0, 10**17), max_size=6), min_size=1, max_size=8),
    st.data(),
)
def test_adjacency(tmp_path: Path, lists: dict[int, list[int]], data: st.DataObject) -> None:
    lists[5] = [6]
    end = data.draw(st.sampled_from(["\n", "\r\n", " \n", "\n\n"]))
    gap = data.draw(st.sampled_from([" ", "  ", "\t"]))
    text = end.join(gap.join(map(str, [user, *items])) for user, items in lists.items())
    found = read(tmp_path / "f.txt", text.encode())
    assert pairs(found) == {(user, item) for user, items in lists.items() for item in items}


@quick
@given(st.sampled_from(list(FORMATS)), st.binary(max_size=200), st.data())
def test_any_bytes_are_read_or_refused(tmp_path: Path, format: str, content: bytes, data: st.DataObject) -> None:
    good = {"parquet": as_parquet([("a", "b")]), "jsonl": as_json([("a", "b")]), "adjacency": b"0 1 2\n"}.get(
        format, as_csv([("a", "b")])
    )
    cut = data.draw(st.integers(0, len(good)))
    path = tmp_path / "fuzz"
    path.write_bytes(data.draw(st.sampled_from([content, good[:cut] + content, good[:cut] + content + good[cut:]])))
    with suppress(HmletError):
        read_sources([path], Columns(), Dialect(format))


def test_integer_ids_are_sorted_by_value_and_strings_by_bytes(tmp_path: Path) -> None:
    found = read(tmp_path / "f.csv", b"user,item\n10,b\n9,B\n-1,\xc3\xa9\n10,a\n")
    assert found.users.ids.to_pylist() == [-1, 9, 10]
    assert found.items.ids.to_pylist() == ["B", "a", "b", "é"]


@pytest.mark.parametrize("odd", ["007", "+7", "-0", "99999999999999999999", "x"])
def test_one_odd_spelling_makes_a_column_strings(tmp_path: Path, odd: str) -> None:
    found = read(tmp_path / "f.csv", f"user,item\n7,1\n{odd},1\n".encode())
    assert sorted(found.users.ids.to_pylist()) == sorted(["7", odd])
    assert found.items.ids.to_pylist() == [1]


def test_spaces_around_fields_are_no_part_of_them(tmp_path: Path) -> None:
    content = b"user, item , rating, when\n\na, 1, 4 , 7\na ,1,\t2.5, 9 \n b\xc2\xa0, 3,5, 8\n"
    found = read(tmp_path / "f.csv", content, rating="rating", timestamp="when ")
    assert pairs(found) == {("a", 1), ("b", 3)}
    assert found.timestamp.tolist() == [9, 8]
    dates = read(tmp_path / "f.csv", b"user; item;at\n1; 2; 1970-01-02\n", timestamp="at")
    assert dates.timestamp.tolist() == [86_400_000_000]
    with pytest.raises(DataError, match="line 4: user and item are empty"):
        read(tmp_path / "f.csv", b"user,item\n\na,x\n , \n")
    assert read(tmp_path / "f.jsonl", as_json([("a ", " 1"), ("a", "1")])).users.ids.to_pylist() == ["a", "a "]


def test_a_column_is_found_by_its_name_with_or_without_spaces(tmp_path: Path) -> None:
    for name, value in (("n", 5), (" n", 7), ("m ", 9)):
        found = read(tmp_path / "f.csv", b"user,item,n, n,m\n1,2,5,7,9\n", weight=name)
        assert found.weight.tolist() == [value]
    with pytest.raises(DataError, match="has 2 columns named 'n'; its columns are 'user', 'item', ' n', 'n '"):
        read(tmp_path / "f.csv", b"user,item, n,n \n1,2,5,7\n", weight="n")


def test_typed_strings_stay_strings(tmp_path: Path) -> None:
    assert read(tmp_path / "f.parquet", as_parquet([("1", "2")])).users.ids.to_pylist() == ["1"]
    assert read(tmp_path / "f.jsonl", as_json([("1", "2")])).users.ids.to_pylist() == ["1"]


def test_json_integers_among_strings_are_strings(tmp_path: Path) -> None:
    assert pairs(read(tmp_path / "f.jsonl", as_json([("a", 1), (7, 1)]))) == {("a", 1), ("7", 1)}


@pytest.mark.parametrize("text", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_type_of_text_is_read_from_parquet(tmp_path: Path, text: pa.DataType) -> None:
    table = pa.table(
        {"user": pa.array(["a", "b"], text), "item": [1, 2], "more": pa.array([b"x", b"y"], pa.binary_view())}
    )
    pq.write_table(table, tmp_path / "f.parquet")
    assert pairs(read_sources([tmp_path / "f.parquet"], Columns())[0]) == {("a", 1), ("b", 2)}
    sample = sample_file(tmp_path / "f.parquet", Dialect(), 2)
    assert sample[0].values == ["a", "b"]


def test_integers_beyond_64_bits_become_strings(tmp_path: Path) -> None:
    big = 2**100
    assert read(tmp_path / "f.jsonl", as_json([(big, 1), (2, 1)])).users.ids.to_pylist() == [str(big), "2"]
    unsigned = pa.table({"user": pa.array([2**64 - 1, 3], pa.uint64()), "item": [1, 2]})
    pq.write_table(unsigned, tmp_path / "u.parquet")
    assert read_sources([tmp_path / "u.parquet"], Columns())[0].users.ids.to_pylist() == [str(2**64 - 1), "3"]


def test_files_of_several_formats_are_one_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"user,item\n1,2\n")
    (tmp_path / "b.txt").write_bytes(b"1 2 3\n")
    (tmp_path / "c.jsonl").write_bytes(as_json([(4, 2)]))
    found, _ = read_sources([tmp_path / name for name in ("a.csv", "b.txt", "c.jsonl")], Columns())
    assert pairs(found) == {(1, 2), (1, 3), (4, 2)}
    assert found.provenance.duplicates == 1


@pytest.mark.parametrize("names", [("a.csv", "b.txt"), ("b.txt", "a.csv")])
@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (Columns().guessing(welcome=("timestamp",)), "timestamp"),
        (Columns(weight="ts"), "weight"),
        (Columns(item_name="ts"), "item name"),
    ],
)
def test_a_column_of_some_files_is_refused(tmp_path: Path, names: tuple[str, str], columns: Columns, what: str) -> None:
    (tmp_path / "a.csv").write_bytes(b"user,item,ts\n1,2,7\n")
    (tmp_path / "b.txt").write_bytes(b"1 2 3\n")
    with pytest.raises(DataError, match=rf"a\.csv has a {what} column, and \S+b\.txt has none: give every file"):
        read_sources([tmp_path / name for name in names], columns)


def test_names_of_two_types_are_text(tmp_path: Path) -> None:
    one = pl.DataFrame({"user": [1], "item": [2], "title": pl.Series(["Two"], dtype=pl.Categorical)})
    other = pl.DataFrame({"user": [1], "item": [3], "title": ["Three"]})
    assert read_sources([one, other], Columns(item_name="title"))[0].items.names.to_pylist() == ["Two", "Three"]


def test_a_threshold_drops_rows_before_duplicates_are_merged(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"user,item,stars\na,x,1\na,x,5\na,y,2\nb,x,4.5\n")
    found, _ = read_sources([tmp_path / "f.csv"], Columns().guessing("rating"), min_rating=4)
    assert pairs(found) == {("a", "x"), ("b", "x")}
    assert found.provenance.below_min_rating == 2
    assert found.provenance.duplicates == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["5", "9", "7"], [9, 7]),
        (["1.5", "2", "0.25"], [2_000_000, 250_000]),
        (["1970-01-01", "1970-01-02", "1970-01-01T00:00:01Z"], [86_400_000_000, 1_000_000]),
        (["1970-01-01 00:01", "1970-01-01T00:02Z", "1970-01-01T01:03+01"], [120_000_000, 180_000_000]),
        (["19700101T000001Z", "19700101T0000", "19700101T010002.5+0100"], [1_000_000, 2_500_000]),
        (["1970-01-01 00:00:01+00", "1970-01-01 00:00:03.25 +0000", "1970-1-1"], [3_250_000, 0]),
        (["1970-01-01 00:00:00.5", "1970-01-01T01:00:01+01:00", "1970-01-01T00:00:00"], [1_000_000, 0]),
    ],
)
def test_timestamps_become_integers_and_duplicates_keep_the_latest(
    tmp_path: Path, values: list[str], expected: list[int]
) -> None:
    rows = zip("aab", "xxy", values, strict=True)
    content = "user,item,when\n" + "".join(f"{user},{item},{value}\n" for user, item, value in rows)
    found = read(tmp_path / "f.csv", content.encode(), timestamp="when")
    assert found.timestamp is not None
    assert found.timestamp.tolist() == expected


def test_names_from_a_column_do_not_depend_on_the_row_order(tmp_path: Path) -> None:
    lines = ["a,x,Zed", "b,x,Alpha", "b,y,"]
    for order in (lines, lines[::-1]):
        found = read(tmp_path / "f.csv", "\n".join(["user,item,title", *order]).encode(), item_name="title")
        assert found.items.names is not None
        assert found.items.names.to_pylist() == ["Alpha", None]


def test_users_without_items_and_blank_lines_in_adjacency(tmp_path: Path) -> None:
    assert pairs(read(tmp_path / "f.txt", b"\n0 1\n7\n\n2 1 1\n")) == {(0, 1), (2, 1)}


@pytest.mark.parametrize(
    "content", [b"0 1 2\n", b"0 1 2\n1 1 3\n", b"0 1\n0 2\n", b"0 1 2\n0 3 4\n1\n", b"0 1 2 3 4\n0 5 6 7 8\n"]
)
def test_lists_of_items_are_not_taken_for_rows_of_ratings(tmp_path: Path, content: bytes) -> None:
    lines = [[int(word) for word in line.split()] for line in content.splitlines()]
    assert pairs(read(tmp_path / "f.txt", content)) == {(user, item) for user, *items in lines for item in items}


def test_the_format_that_is_named_is_believed(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_bytes(b"1 17 4\n1 9 2\n")
    assert pairs(read_sources([tmp_path / "f.txt"], Columns(), Dialect("adjacency"))[0]) == {
        *((1, 17), (1, 4), (1, 9), (1, 2))
    }


def test_quoted_line_ends(tmp_path: Path) -> None:
    found = read(tmp_path / "f.csv", b'"us\ner",item\n"a\nb","say ""hi"", x"\n', user="us\ner")
    assert pairs(found) == {("a\nb", 'say "hi", x')}


@pytest.mark.parametrize("name", ["a[1].csv", "a[1].jsonl", "a*.jsonl", "week=3.parquet", "a?.txt"])
def test_a_name_is_a_name_and_no_pattern(tmp_path: Path, name: str) -> None:
    write = {".csv": as_csv, ".jsonl": as_json, ".parquet": as_parquet}.get(Path(name).suffix, lambda rows: b"1 2\n")
    assert pairs(read(tmp_path / name, write([(1, 2)]))) == {(1, 2)}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_json_lines_with_a_mark_blank_lines_and_windows_ends(tmp_path: Path, pack: type) -> None:
    content = b'\xef\xbb\xbf\r\n{"user": 1, "item": "a"}\r\n\r\n{"item": "b", "user": 2, "more": [1]}\r\n\r\n'
    assert pairs(read(tmp_path / "f.jsonl", pack(content))) == {(1, "a"), (2, "b")}


def test_dates_with_types_are_microseconds_in_utc(tmp_path: Path) -> None:
    moments = [datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)]
    table = pa.table(
        {
            "user": [1, 2],
            "item": [1, 1],
            "at": pa.array(moments, pa.timestamp("ms", "Europe/Paris")),
            "day": pa.array([0, 1], pa.date32()),
        }
    )
    pq.write_table(table, tmp_path / "f.parquet")
    for column, expected in (("at", [0, 2_000_000]), ("day", [0, 86_400_000_000])):
        found, _ = read_sources([tmp_path / "f.parquet"], Columns(timestamp=column))
        assert found.timestamp is not None
        assert found.timestamp.tolist() == expected


def test_rows_beyond_one_block_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few bytes cut lines, quotes and characters everywhere; the result and the line numbers stay right."""
    content = 'user,item\n\n"é\n1",x\na,"y,""z"""\r\n'.encode() * 1 + b"b,x\n" * 9
    expected = pairs(read(tmp_path / "f.csv", content))
    for size in range(1, 40):
        monkeypatch.setattr("hmlet.data.text._BLOCK_BYTES", size)
        assert pairs(read(tmp_path / "f.csv", content)) == expected
        with pytest.raises(HmletError, match=r"line 15: has 1 field, and the header has 2"):
            read(tmp_path / "f.csv", content + b"c\nd,x\n")


class Arrows(Format):
    """A format of one's own: `user -> item` on each line."""

    name = "arrows"
    suffixes = (".arrows",)
    has_columns = False

    def read(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Source:
        lines = text.path.read_text().splitlines()
        rows = pl.DataFrame([line.split(" -> ") for line in lines], schema=["user", "item"], orient="row").lazy()
        return Source(
            text.shown, rows, {"user": "user", "item": "item"}, lambda found: [f"line {n + 1}" for n in found]
        )


def test_a_new_format_is_a_class_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.arrows.gz"
    with pytest.raises(DataError, match=r"cannot be guessed from its name: pass `format` \(csv, tsv, "):
        read(path, gzip.compress(b"a -> x\nb -> y\n"))
    monkeypatch.setitem(FORMATS, Arrows.name, Arrows())
    assert pairs(read(path, gzip.compress(b"a -> x\nb -> y\n"))) == {("a", "x"), ("b", "y")}
    with pytest.raises(DataError, match=r"line 2, column 'user': the user is empty"):
        read(path, gzip.compress(b"a -> x\n -> y\n"))
    with pytest.raises(DataError, match="is read as arrows, which has no delimiter: leave `delimiter` out"):
        read_sources([path], Columns(), Dialect(delimiter=";"))


def test_no_two_formats_claim_one_suffix() -> None:
    claimed = [suffix for format in FORMATS.values() for suffix in format.suffixes]
    assert len(claimed) == len(set(claimed))
    assert all(name == format.name for name, format in FORMATS.items())


FRAME = {"user": ["b", "a", "a"], "item": [3, 1, 3], "rating": [5.0, 1.0, 4.0], "at": [10, 20, 30]}


@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame, pa.table, lambda data: pl.LazyFrame(data)])
def test_a_frame_is_the_twin_of_a_file(tmp_path: Path, make: type) -> None:
    from hmlet.data import prepare

    options = {"min_rating": 2.0, "split": "leave-one-out", "seed": 3}
    frame = Dataset.from_frame(make(FRAME), rating="rating", timestamp="at", **options)
    pl.DataFrame(FRAME).write_csv(tmp_path / "f.csv")
    file = prepare([tmp_path / "f.csv"], columns=Columns(rating="rating", timestamp="at"), **options)
    assert frame.fingerprint == file.fingerprint
    assert frame.timestamp.tolist() == file.timestamp.tolist()


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|", ",", "~"])
def test_a_header_shows_its_delimiter(tmp_path: Path, name: str, delimiter: str) -> None:
    """A comma in a quoted column or in a row is none; ~ has to be named, and so has a comma in a .tsv file."""
    lines = [["user", '"item, or; so"', "rating"], ["b", "x", '"3,5"'], ["a", "y", '"4,5"']]
    path = tmp_path / name
    path.write_text("\n" + "".join(delimiter.join(line) + "\n" for line in lines))
    shown = delimiter not in (("~",) if name == "rows.csv" else ("~", ","))
    columns = Columns(item="item, or; so")
    found, _ = read_sources([path], columns, Dialect(delimiter=None if shown else delimiter))
    assert (found.users.ids.to_pylist(), found.items.ids.to_pylist()) == (["a", "b"], ["x", "y"])
    assert (found.user.tolist(), found.item.tolist()) == ([0, 1], [1, 0])
    if not shown:
        with pytest.raises(DataError, match="a quote inside a field"):
            read_sources([path], Columns())


def test_advice_speaks_the_askers_language(tmp_path: Path) -> None:
    frame = pl.DataFrame({"who": [1], "what": [2]})
    with pytest.raises(DataError, match=r"the frame has no column .* 'what': name it with `user`$"):
        Dataset.from_frame(frame)
    with pytest.raises(DataError, match=r"name the right one with `item_name`$"):
        Dataset.from_frame(frame, user="who", item="what", item_name="title")
    frame.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"name it with `user`$"):
        read_sources([tmp_path / "a.parquet"], Columns())
    frame.write_csv(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"name it with `user`, or its `columns`$"):
        read_sources([tmp_path / "a.csv"], Columns())
    (tmp_path / "b.csv").write_text("user~item\n1~2\n")
    with pytest.raises(DataError, match=r"'user~item': name it with `user`, or name its `delimiter`$"):
        read_sources([tmp_path / "b.csv"], Columns())


def test_a_frame_of_mixed_ids_is_refused() -> None:
    with pytest.raises(HmletError, match="one type in a column"):
        Dataset.from_frame(pd.DataFrame({"user": [1, "a"], "item": [1, 2]}))


@pytest.mark.parametrize("frame", [[1, 2], {"user": [1]}, np.zeros((2, 2)), pl.Series([1])])
def test_other_objects_are_no_frames(frame: object) -> None:
    with pytest.raises(HmletError, match="cannot read interactions from a"):
        Dataset.from_frame(frame)


def test_a_prepared_directory_loads_without_polars(tmp_path: Path) -> None:
    """Importing it takes a while, and a service does not need it."""
    Dataset.from_frame(pl.DataFrame(FRAME)).save(tmp_path / "out")
    program = f"""
import sys
from hmlet.data import Dataset, catalog
assert len(Dataset.load({str(tmp_path / "out")!r})) == 3
assert len(catalog.load("debian")) == 61020
assert "polars" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
