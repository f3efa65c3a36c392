"""Prepared directories: order, fingerprint, save and load, damage; and the steps that `prepare` reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forging import seal_dataset, seal_record
from forked import Forked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmlet.data import PARTS, Columns, Dataset, Interactions, Vocabulary, catalog, dataset, prepare
from hmlet.data.dialect import SkippedRow
from hmlet.data.interactions import encode, merge
from hmlet.errors import ConfigError, DataError, UnknownId

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PAIRS = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=40).map(sorted)


def frame(pairs: list[tuple[int, int]]) -> pl.DataFrame:
    return pl.DataFrame(pairs, schema=["user", "item"], orient="row")


def rows(dataset: Dataset, part: str) -> list[tuple[object, object]]:
    """The external ids of one part."""
    where = dataset.slice(part)
    return [
        (dataset.users.id(int(user)), dataset.items.id(int(item)))
        for user, item in zip(dataset.user[where], dataset.item[where], strict=True)
    ]


@quick
@given(PAIRS, st.sampled_from(["ratio:0.8,0.1,0.1", "leave-one-out"]), st.data())
def test_parts_are_disjoint_their_union_is_the_input_and_order_does_not_matter(
    pairs: list[tuple[int, int]], split: str, data: st.DataObject
) -> None:
    dataset = Dataset.from_frame(frame(pairs), split=split)
    assert sorted(pair for part in PARTS for pair in rows(dataset, part)) == pairs
    assert {user for user, _ in rows(dataset, "train")} == {user for user, _ in pairs}
    assert Dataset.from_frame(frame(data.draw(st.permutations(pairs))), split=split).fingerprint == dataset.fingerprint


@quick
@given(PAIRS)
def test_csr_has_each_users_items_sorted(pairs: list[tuple[int, int]]) -> None:
    dataset = Dataset.from_frame(frame(pairs), split="ratio:0.5,0.25,0.25")
    for parts in (("train",), ("train", "test"), PARTS):
        csr = dataset.csr(*parts)
        for user in range(dataset.n_users):
            expected = sorted(
                int(i)
                for part in parts
                for u, i in zip(dataset.user[dataset.slice(part)], dataset.item[dataset.slice(part)], strict=True)
                if u == user
            )
            assert csr.row(user).tolist() == expected


@quick
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2), st.integers(-9, 9)), min_size=1, max_size=40
    )
)
def test_merge_equals_a_dictionary(table: list[tuple[int, int, int, int]]) -> None:
    latest: dict[tuple[int, int, int], int] = {}
    for *key, time in table:
        latest[tuple(key)] = max(time, latest.get(tuple(key), -99))
    user, item, part, time = (np.array(column) for column in zip(*table, strict=True))
    weight = np.arange(1.0, len(table) + 1)
    summed = Counter[tuple[int, ...]]()
    for (*key, _), each in zip(table, weight, strict=True):
        summed[tuple(key)] += int(each)
    columns = user.astype(np.int32), item.astype(np.int32), part.astype(np.uint8), time.astype(np.int64)
    merged = merge(*columns, 5, weight)
    assert list(zip(*(column.tolist() for column in merged), strict=True)) == [
        (*key, latest[key], summed[key]) for key in sorted(latest)
    ]
    assert [*map(np.ndarray.tolist, merge(*columns, 5)[:4])] == [*map(np.ndarray.tolist, merged[:4])]


def test_items_seen_only_after_training_stay_in_the_catalogue(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("0 1 2\n1 2\n")
    (tmp_path / "test.txt").write_text("0 9\n")
    dataset = prepare([tmp_path / "train.txt", tmp_path / "test.txt"], split="files")
    assert dataset.items.ids.to_pylist() == [1, 2, 9]
    assert [dataset.count(part) for part in PARTS] == [3, 0, 1]
    assert rows(dataset, "test") == [(0, 9)]


def test_users_without_training_are_counted() -> None:
    table = pl.DataFrame({"user": ["a", "a", "a", "b"], "item": [1, 2, 3, 1], "time": [1, 2, 3, 4]})
    dataset = Dataset.from_frame(table, split="temporal:0.5,0.25,0.25")
    assert rows(dataset, "test") == [("b", 1)]
    assert dataset.provenance.users_without_training == 1


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {"user": rng.integers(0, 60, 900), "item": rng.integers(0, 40, 900), "rating": rng.integers(1, 6, 900)}
    )
    table.write_csv(tmp_path / "f.csv")
    dataset = prepare([tmp_path / "f.csv"], columns=Columns(rating="rating"), min_rating=3, core=5)
    done = dataset.provenance
    assert min(done.below_min_rating, done.duplicates, done.outside_core) > 0
    assert done.rows == 900 == done.below_min_rating + done.duplicates + done.outside_core + len(dataset)
    assert dataset.csr(*PARTS).counts.min() >= 5


def test_names_follow_their_ids_through_filtering_and_files(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(
        "user,item\n" + "".join(f"{u},{i}\n" for u in (3, 10, 7) for i in (1, 2)) + "99,5\n"
    )
    (tmp_path / "users.csv").write_text("id,name\n10,Ten\n99,Gone\n7,Seven\n")
    dataset = prepare([tmp_path / "f.csv"], core=2, user_names=tmp_path / "users.csv")
    dataset.save(tmp_path / "out")
    loaded = Dataset.load(tmp_path / "out")
    assert loaded.users.ids.to_pylist() == [3, 7, 10]
    assert [loaded.users.name(index) for index in range(3)] == [None, "Seven", "Ten"]
    assert loaded.items.name(0) is None


def test_names_that_are_missing_or_of_other_ids_are_no_names(caplog: pytest.LogCaptureFixture) -> None:
    table = pl.DataFrame({"user": [1, 1, 2, 3, 3], "item": [1, 2, 3, 4, 5]})
    caplog.set_level("INFO", "hmlet")
    names = {1: None, 2: float("nan"), 3: pd.NA, "4": "nan", 5: 7, 6: "Gone"}
    data = Dataset.from_frame(table, item_names=names)
    assert data.items.names.to_pylist() == [None, None, None, "nan", "7"]
    assert caplog.messages == ["2 of 5 items have names"]
    for other, hint in (({"01": "One", "02": "Two"}, ", not '01'"), ({1: None}, ""), ({}, "")):
        with pytest.raises(DataError, match=rf"none of the \d item names .* of the 5 items: .* such as '1'{hint}$"):
            Dataset.from_frame(table, item_names=other)


@pytest.mark.parametrize("times", [None, [5, -3, 2**62]])
def test_save_and_load_give_the_same_back(tmp_path: Path, times: list[int] | None) -> None:
    table = pl.DataFrame({"user": ["b", "a", "é"], "item": [2**40, -7, 3]})
    table = table if times is None else table.with_columns(pl.Series("at", times))
    dataset = Dataset.from_frame(table, timestamp=None if times is None else "at", name="three")
    dataset.save(tmp_path / "deep" / "out")
    loaded = Dataset.load(tmp_path / "deep" / "out")
    assert loaded.statistics() == dataset.statistics()
    assert loaded.provenance == dataset.provenance
    assert (loaded.timestamp is None) == (times is None)
    if loaded.timestamp is not None:
        np.testing.assert_array_equal(loaded.timestamp, dataset.timestamp)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_the_prepared_directory_has_the_contracts_columns(tmp_path: Path) -> None:
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": ["x", "y"], "t": [1, 2]}), timestamp="t").save(
        tmp_path / "out"
    )
    table = pq.read_table(tmp_path / "out" / "interactions.parquet")
    assert table.column_names == ["user", "item", "split", "timestamp"]
    assert pa.types.is_integer(table["user"].type)
    assert set(table["split"].to_pylist()) <= set(PARTS)
    assert pq.read_table(tmp_path / "out" / "items.parquet").to_pydict() == {"index": [0, 1], "id": ["x", "y"]}
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["users"] == 2
    assert record["provenance"]["split"] == "ratio:0.8,0.1,0.1"


STOPPED_BETWEEN_RENAMES = """\
import os, signal, sys, time
from pathlib import Path
from hmlet.data import Dataset
from hmlet.system.stopping import end_when_told
end_when_told(lambda number: None)
rename = Path.rename
def stopped(path, target):
    rename(path, target)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
Path.rename = stopped
Dataset.load(sys.argv[1]).save(sys.argv[2], overwrite=True)
"""


def test_a_signal_between_two_renames_loses_no_data(tmp_path: Path) -> None:
    old, new = (Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, each]})) for each in (4, 5))
    old.save(tmp_path / "out")
    new.save(tmp_path / "new")
    process = Forked(STOPPED_BETWEEN_RENAMES, str(tmp_path / "new"), str(tmp_path / "out"))
    process.wait()
    assert process.status == 128 + signal.SIGTERM
    left = sorted(path for path in tmp_path.iterdir() if path.name.startswith(".out."))
    assert [Dataset.load(path).fingerprint for path in left] == [new.fingerprint, old.fingerprint]
    with pytest.raises(DataError, match="exists already"):
        new.save(tmp_path / "out")  # brings the old one back
    assert Dataset.load(tmp_path / "out").fingerprint == old.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "out"]
    new.save(tmp_path / "out", overwrite=True)
    assert Dataset.load(tmp_path / "out").fingerprint == new.fingerprint


@pytest.mark.parametrize("name", ["interactions.parquet", "users.parquet", "items.parquet"])
def test_every_flipped_bit_is_noticed(tmp_path: Path, name: str) -> None:
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]})).save(tmp_path / "out")
    path = tmp_path / "out" / name
    good = path.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(good), 20):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(DataError, match=name):
            Dataset.load(tmp_path / "out")
    path.unlink()
    with pytest.raises(DataError, match="missing"):
        Dataset.load(tmp_path / "out")


THREADS_OF_A_READ = """\
import os, sys
from pathlib import Path
from hmlet.errors import DataError
from hmlet.system.outside import Origin
from hmlet.system.tables import read_table
path, before = Path(sys.argv[1]), os.listdir("/proc/self/task")
assert read_table(Origin(path, DataError, "").read(), {}).num_rows == 2
sys.exit(os.listdir("/proc/self/task") != before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not list a process's threads there")
def test_reading_parquet_starts_no_threads(tmp_path: Path) -> None:
    """With torch loaded, a process that ends while pyarrow's threads do aborts."""
    pq.write_table(pa.table({"user": [1, 2], "item": [3, 4]}), tmp_path / "table.parquet")
    command = [sys.executable, "-c", THREADS_OF_A_READ, str(tmp_path / "table.parquet")]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99"),
        ({"fingerprint": "0"}, "fingerprint"),
        ({"checksums": {}}, "damaged"),
        ({"checksums": None}, r"dataset\.json: checksums: "),
        ({"fingerprint": None}, r"dataset\.json: fingerprint: "),
        (None, "is a JSON list, not an object"),
    ],
)
def test_a_changed_record_is_refused(tmp_path: Path, change: dict[str, object] | None, message: str) -> None:
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]})).save(tmp_path / "out")
    path = tmp_path / "out" / "dataset.json"
    path.write_text("[]") if change is None else seal_record(path, json.loads(path.read_text()) | change)
    with pytest.raises(DataError, match=message):
        Dataset.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 7),
        ("users", "2"),
        ("items", -1),
        ("interactions", 2.5),
        ("train", True),
        ("density", "0.5"),
        ("fingerprint", ["0"]),
        ("provenance", []),
        ("checksums", {"users.parquet": 7}),
        ("format_version", None),
        ("users", 3),
        ("items", 99),
        ("interactions", 0),
        ("train", 1),
        ("valid", 5),
        ("test", 5),
    ],
)
def test_a_damaged_or_forged_record_names_the_field(tmp_path: Path, field: str, value: object) -> None:
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]})).save(tmp_path / "out")
    path = tmp_path / "out" / "dataset.json"
    good = json.loads(path.read_text())
    seal_record(path, good | {field: value})
    with pytest.raises(DataError, match=rf"\b{field.replace('_', '.')}\b"):
        Dataset.load(tmp_path / "out")
    del good[field]
    seal_record(path, good)
    with pytest.raises(DataError, match=rf"dataset\.json: {field}: Field required"):
        Dataset.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("field", "value"), [("rows", "900"), ("named_set", 1), ("seed", -1), ("files", [{"file": "f", "format": 1}])]
)
def test_a_forged_provenance_names_the_field(tmp_path: Path, field: str, value: object) -> None:
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]})).save(tmp_path / "out")
    path = tmp_path / "out" / "dataset.json"
    record = json.loads(path.read_text())
    seal_record(path, record | {"provenance": record["provenance"] | {field: value}})
    with pytest.raises(DataError, match=rf"dataset\.json: provenance\.{field}"):
        Dataset.load(tmp_path / "out")


@pytest.mark.parametrize("content", ["", "{", "7", "[" * 100_000, '{"format_version": 1}', "\ud800"])
def test_any_record_is_read_or_refused(tmp_path: Path, content: str) -> None:
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]})).save(tmp_path / "out")
    (tmp_path / "out" / "dataset.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"dataset\.json( is damaged| cannot be read| is a JSON int)"):
        Dataset.load(tmp_path / "out")


def test_a_record_keeps_its_order_and_what_it_does_not_know(tmp_path: Path) -> None:
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]})).save(tmp_path / "out")
    path = tmp_path / "out" / "dataset.json"
    record = json.loads(path.read_text())
    counts = ["name", "users", "items", "interactions", "density", "sparsity_percent", *PARTS, "fingerprint"]
    assert list(record) == ["format_version", *counts, "provenance", "checksums", "checksum"]
    record["provenance"]["of a later hmlet"] = [1]
    seal_record(path, record)
    Dataset.load(tmp_path / "out").save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "dataset.json").read_text()) == json.loads(path.read_text())


def test_replacing_needs_to_be_asked_for_and_is_whole(tmp_path: Path) -> None:
    first = Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]}))
    second = Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 5]}))
    first.save(tmp_path / "out")
    with pytest.raises(DataError, match=r"exists already.*overwrite=True"):
        second.save(tmp_path / "out")
    second.save(tmp_path / "out", overwrite=True)
    assert Dataset.load(tmp_path / "out").fingerprint == second.fingerprint != first.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_only_what_a_prepared_directory_has_is_replaced(tmp_path: Path) -> None:
    data = Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]}))
    data.skipped = [SkippedRow("f.csv", 3, "no item")]
    data.save(tmp_path / "out")
    data.save(tmp_path / "out", overwrite=True)
    for name in ("thesis.tex", "runs"):
        (tmp_path / "out" / name).mkdir()
        with pytest.raises(DataError, match=rf"cannot be replaced: it also has '{name}'"):
            data.save(tmp_path / "out", overwrite=True)
    assert len(list((tmp_path / "out").iterdir())) == 7


@pytest.mark.parametrize(
    ("home", "act"), [(Dataset, "_write"), (dataset, "_put_in_place")], ids=["writing", "renaming"]
)
def test_who_saves_second_does_not_replace_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Any, act: str
) -> None:
    first = Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]}))
    second = Dataset.from_frame(pl.DataFrame({"user": [1], "item": [3]}))
    real, quicker = getattr(home, act), [first]

    def late(*arguments: Any, **options: Any) -> None:
        if quicker:
            quicker.pop().save(tmp_path / "out")
        real(*arguments, **options)

    monkeypatch.setattr(home, act, late)
    with pytest.raises(DataError, match=r"out( exists already|: Directory not empty)"):
        second.save(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert Dataset.load(tmp_path / "out").fingerprint == first.fingerprint


@pytest.mark.parametrize("nth", range(1, 20))
def test_a_failed_write_leaves_the_old_directory_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The nth file operation of a save fails: the old data set is still there, whole, and nothing else."""
    old = Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]}))
    new = Dataset.from_frame(pl.DataFrame({"user": [1], "item": [3]}))
    old.save(tmp_path / "out")
    calls = 0

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(28, "No space left on device")
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        for home, name in (
            (pq, "write_table"),
            (Path, "rename"),
            (Path, "write_text"),
            (Path, "open"),
            (os, "chmod"),
            (tempfile, "mkdtemp"),
        ):
            patched.setattr(home, name, failing(getattr(home, name)))
        failure = None
        try:
            new.save(tmp_path / "out", overwrite=True)
        except DataError as error:
            failure = str(error)
    assert (failure is not None and "No space left" in failure) == (calls >= nth)
    expected = old if failure else new
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert Dataset.load(tmp_path / "out").fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    "pairs",
    [[(0, 0)], [(0, i) for i in range(5)], [(u, 0) for u in range(5)], [(u, i) for u in range(4) for i in range(4)]],
)
def test_degenerate_graphs_have_numbers(pairs: list[tuple[int, int]]) -> None:
    """One pair, one user, one item, a complete graph: everything that stats prints is finite."""
    numbers = Dataset.from_frame(frame(pairs)).statistics()
    assert numbers.interactions == len(pairs) == numbers.train + numbers.valid + numbers.test
    assert 0 < numbers.density <= 1
    assert numbers.sparsity_percent == pytest.approx(100 * (1 - numbers.density))


def test_vocabulary_knows_ids_in_both_spellings() -> None:
    index, users = encode("user", np.array([30, 7, 30]))
    assert index.tolist() == [1, 0, 1]
    assert users.indices([7, "30"]).tolist() == [0, 1]
    assert "7" in users
    with pytest.raises(UnknownId, match="user 8 is not in the data set"):
        users.indices([8])


@pytest.mark.parametrize("one", ["12", 12], ids=["text", "number"])
def test_one_id_is_not_taken_for_a_list_of_its_letters(one: Any) -> None:
    with pytest.raises(ConfigError, match=r"is a single user, but a list is needed: write \['?12'?\]"):
        Vocabulary("user", pa.array([1, 2, 12])).indices(one)


def test_a_data_set_says_what_it_is() -> None:
    assert repr(catalog.load("debian")) == "<Dataset debian: 3,779 users, 1,285 items, 61,020 interactions>"


def test_suggested_ids_are_quoted_so_that_a_space_shows() -> None:
    _, users = encode("user", np.array([" 7", "lot"]))
    with pytest.raises(UnknownId, match=r"user '7' is not in the data set: did you mean ' 7'\?"):
        users.indices(["7"])


def test_take_compacts_both_sides() -> None:
    table = Interactions(
        *(np.array([0, 1, 2], np.int32), np.array([2, 1, 0], np.int32)),
        *(
            Vocabulary("user", pa.array(["a", "b", "c"])),
            Vocabulary("item", pa.array([5, 6, 7]), pa.array(["five", "six", "seven"])),
        ),
    )
    taken = table.take(np.array([0, 2]))
    assert taken.users.ids.to_pylist() == ["a", "c"]
    assert taken.items.names is not None
    assert taken.items.names.to_pylist() == ["five", "seven"]
    assert (taken.user.tolist(), taken.item.tolist()) == ([0, 1], [1, 0])


def test_a_frame_cannot_be_split_by_files() -> None:
    with pytest.raises(DataError, match="split files needs two files"):
        Dataset.from_frame(frame([(0, 0)]), split="files")


def test_every_changed_record_is_noticed(tmp_path: Path) -> None:
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]}), name="pairs").save(tmp_path / "out")
    path = tmp_path / "out" / "dataset.json"
    record = json.loads(path.read_text())
    for field, value in (("name", "fairs"), ("density", 0.25), ("sparsity_percent", 1.0)):
        path.write_text(json.dumps(record | {field: value}))
        with pytest.raises(DataError, match=r"dataset\.json is damaged \(its checksum differs\)"):
            Dataset.load(tmp_path / "out")
    del record["checksum"]
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"dataset\.json is damaged \(its checksum differs\)"):
        Dataset.load(tmp_path / "out")


def column(name: str, *values: object, type: str = "int32") -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, pa.array(values, type))

    return change


FORGED_TABLES: dict[str, tuple[str, Callable[[pa.Table], pa.Table], str]] = {
    "no such user": ("interactions", column("user", 0, 5), "column 'user': it has values outside 0 to 1"),
    "negative item": ("interactions", column("item", 0, -1), "column 'item': it has values outside 0 to 1"),
    "a pair twice": ("interactions", lambda t: t.take(pa.array([0, 0])), "user 0 has item 0 more than once"),
    "a missing user": ("interactions", column("user", 0, None), "column 'user': 1 values are missing"),
    "users as text": ("interactions", column("user", "0", "1", type="string"), "column 'user': its type is string"),
    "no items": ("interactions", lambda t: t.drop_columns(["item"]), "column 'item': the table has no column"),
    "another part": ("interactions", column("split", "train", "dev", type="string"), "column 'split'"),
    "a missing part": ("interactions", column("split", "train", None, type="string"), "column 'split': 1 values are"),
    "an id twice": ("users", column("id", 1, 1, type="int64"), "column 'id': it has an id more than once"),
    "a missing id": ("items", column("id", 3, None, type="int64"), "column 'id': 1 values are missing"),
    "ids as floats": ("items", column("id", 3, 4, type="float64"), "column 'id': its type is double"),
    "another order": ("users", column("index", 1, 0), "column 'index': it does not count the rows from 0"),
}


@pytest.mark.parametrize("case", FORGED_TABLES)
def test_a_forged_table_is_refused_by_file_and_column(case: str, tmp_path: Path) -> None:
    """Checksums, counts and fingerprint are right: whoever forges a table can compute them."""
    table, change, what = FORGED_TABLES[case]
    Dataset.from_frame(pl.DataFrame({"user": [1, 2], "item": [3, 4]})).save(tmp_path / "out")
    path = tmp_path / "out" / f"{table}.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    seal_dataset(tmp_path / "out")
    with pytest.raises(DataError) as refused:
        Dataset.load(tmp_path / "out")
    assert refused.value.message.startswith(f"{path}: ")
    assert what in refused.value.message
