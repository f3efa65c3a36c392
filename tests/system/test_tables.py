"""Parquet from outside: bombs of every encoding are refused in little memory, and columns are what they have to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hmlet.errors import DataError
from hmlet.system.outside import Origin
from hmlet.system.tables import Column, read_table

ROWS = 60_000
MEASURE = """\
import resource, sys
from pathlib import Path
from hmlet.errors import DataError
from hmlet.system.outside import Origin
from hmlet.system.tables import read_table
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
try:
    read_table(Origin(Path(sys.argv[1]), DataError, "").read(), {})
except DataError as error:
    print(peak() - before, error)
"""


def bomb(path: Path, kind: str) -> Path:
    """A file of a few KB that decodes to gigabytes."""
    if kind == "rows":
        pq.write_table(pa.table({"n": np.zeros(20_000_000, np.int8)}), path, compression="zstd")
    elif kind == "dictionary":
        one = pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS, np.int32)), pa.array(["x" * 100_000]))
        pq.write_table(pa.table({"id": one}), path, compression="zstd", store_schema=False)
    elif kind == "plain":
        with pq.ParquetWriter(path, pa.schema([("id", pa.string())]), compression="zstd", use_dictionary=False) as file:
            for _ in range(10):
                file.write_table(pa.table({"id": ["x" * 1_000_000] * 10}))
    else:
        schema = pa.schema([("id", pa.string())])
        delta = {"id": "DELTA_BYTE_ARRAY"}
        options = {"compression": "zstd", "use_dictionary": False, "column_encoding": delta}
        with pq.ParquetWriter(path, schema, **options) as file:
            for _ in range(20):
                file.write_table(pa.table({"id": ["y" * 1_000_000 + str(n) for n in range(10)]}))
    assert path.stat().st_size < 100_000
    return path


@pytest.mark.parametrize("kind", ["rows", "dictionary", "plain", "delta"])
def test_a_bomb_is_refused_in_little_memory(kind: str, tmp_path: Path) -> None:
    path = bomb(tmp_path / "bomb.parquet", kind)
    command = [sys.executable, "-c", MEASURE, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    grown, _, message = said.partition(" ")
    assert int(grown) < 250, "MiB"
    assert "bomb.parquet" in message
    assert "decodes to more than 67.1 MB" in message or "20000000 rows in" in message


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"b": [1]}, "column 'a': the table has no column of this name"),
        ({"a": ["1"]}, "column 'a': its type is string, not int32"),
        ({"a": pa.array([1, None], pa.int32())}, "column 'a': 1 values are missing"),
        ({"a": pa.array([[1]], pa.list_(pa.int32()))}, "column 'a': the table has no column"),
    ],
)
def test_another_table_is_refused_by_its_column(table: dict[str, object], what: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=what):
        read_table(Origin(tmp_path / "t.parquet", DataError, "").read(), {"a": Column((pa.int32(),))})


def test_strings_come_back_as_they_were_written(tmp_path: Path) -> None:
    values = ["é", None, "x" * 100, "", "x" * 100] * 50
    views = {"view": pa.array(values, pa.string_view())}
    table = pa.table({"plain": values, **views, "coded": pa.array(values).dictionary_encode(), "n": range(250)})
    for options in (
        {},
        {"use_dictionary": False, "column_encoding": dict.fromkeys(["plain", "view"], "DELTA_BYTE_ARRAY")},
    ):
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=60, **options)
        found = read_table(Origin(tmp_path / "t.parquet", DataError, "").read(), {})
        assert found.to_pydict() == {"plain": values, "view": values, "coded": values, "n": list(range(250))}
