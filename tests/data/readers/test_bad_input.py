"""Every kind of bad input has one line of error that names the place and the fix, and leaves nothing behind."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hmlet.cli import main

GOOD = b"user,item\na,x\na,y\nb,x\n"


def parquet(table: dict[str, object]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def coded(table: dict[str, object], **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink, compression="zstd", **options)
    return sink.getvalue()


# 60,000 rows of one string of 100 KB, and 1,000 of 100 KB that differ in their ends: 6 GB and 100 MB in a few KB.
ONE = pa.DictionaryArray.from_arrays(pa.array(np.zeros(60_000, np.int32)), pa.array(["x" * 100_000]))
DICTIONARY_BOMB = coded({"user": ONE, "item": np.arange(60_000) % 7})
DELTA_BOMB = coded(
    {"user": ["y" * 100_000 + str(n) for n in range(1000)], "item": np.arange(1000)},
    use_dictionary=False, column_encoding={"user": "DELTA_BYTE_ARRAY"},
)  # fmt: skip
RATED = ["--rating", "rating"]
TIMED = ["--timestamp", "time"]
PARQUET = parquet({"user": ["a", "b"], "item": ["x", "y"]})
BIG_ROWS = b"".join(b"u%d,i%d\n" % (n, n % 7) for n in range(5000))

# name of the case: (file name, content, more arguments, what the message must say)
CASES: dict[str, tuple[str, bytes, list[str], list[str]]] = {
    # the file as a whole
    "empty file": ("f.csv", b"", [], ["f.csv is empty"]),
    "only blank lines": ("f.csv", b"\n\r\n\n", [], ["f.csv is empty"]),
    "only a byte-order mark": ("f.csv", b"\xef\xbb\xbf", [], ["f.csv is empty"]),
    "header without rows": ("f.csv", b"user,item\n", [], ["a header and no rows"]),
    "unknown suffix": ("f.xyz", GOOD, [], ["format", "f.xyz", "--format"]),
    "unknown format": ("f.csv", GOOD, ["--format", "xls"], ["no format 'xls'", "adjacency"]),
    "UTF-16": ("f.csv", "user,item\na,x\n".encode("utf-16"), [], ["line 1", "UTF-16", "iconv"]),
    "Latin-1": ("f.csv", b"user,item\na,x\nb,caf\xe9\n", [], ["line 3", "0xe9", "UTF-8"]),
    "NUL byte": ("f.csv", b"user,item\na,x\nb\0,y\n", [], ["line 3", "NUL"]),
    "old Mac line ends": ("f.csv", b"user,item\ra,x\rb,y\r", [], ["line 1", "carriage return"]),
    "stray carriage return": ("f.csv", b"user,item\na,x\nb,\ry\n", [], ["line 3", "carriage return"]),
    "named gz but plain": ("f.csv.gz", GOOD, [], ["f.csv.gz", "not a gzip file"]),
    "named zst but plain": ("f.csv.zst", GOOD, [], ["f.csv.zst", "not a zstd file"]),
    "gzip cut off": ("f.csv.gz", gzip.compress(BIG_ROWS)[:-200], [], ["truncated gzip"]),
    "gzip damaged": ("f.csv.gz", gzip.compress(GOOD)[:12] + b"\xff" * 30, [], ["damaged", "gzip"]),
    "zstd cut off": ("f.csv.zst", zstd(BIG_ROWS)[:-200], [], ["truncated zstd"]),
    "gzip of nothing": ("f.csv.gz", gzip.compress(b""), [], ["f.csv.gz is empty"]),
    "compression bomb": ("f.csv.gz", gzip.compress(b"a" * (65 << 20)), [], ["200 times", "unpack it yourself"]),
    # columns
    "no user column": ("f.csv", b"person,item\na,x\n", [], ["looks like the user", "'person', 'item'", "--user"]),
    "no item column": ("f.csv", b"user,thing\na,x\n", [], ["looks like the item", "'user', 'thing'", "--item"]),
    "named column missing": ("f.csv", GOOD, ["--user", "who"], ["no column 'who'", "'user', 'item'"]),
    "named column twice": ("f.csv", b"user,item,item\na,x,y\n", ["--item", "item"], ["2 columns named 'item'"]),
    "guessed column twice": ("f.csv", b"user,item,user\na,x,b\n", [], ["2 columns that look like the user", "--user"]),
    "two spellings of one guess": ("f.csv", b"User,item,user\na,x,b\n", [], ["2 columns", "'User', 'user'"]),
    "one column for both": ("f.csv", GOOD, ["--item", "user"], ["same column 'user'"]),
    "no rating column": ("f.csv", GOOD, ["--min-rating", "3"], ["looks like the rating", "--rating"]),
    "no time column": ("f.csv", GOOD, ["--split", "temporal:0.8,0.1,0.1"], ["looks like the timestamp"]),
    # a header line that is not expected
    "header beside column names": (
        *("f.csv", b'userId,"movieId",n\r\n1,2,3\r\n', ["--columns", "user,item,n"]),
        ["line 1", "'userId', 'movieId', 'n' look like column names", "leave --columns out"],
    ),
    "header with one name that is given": (
        *("f.csv", b"person,thing,Rating\n1,2,3\n", ["--columns", "user,item,rating"]),
        ["line 1", "'person', 'thing', 'Rating'", "leave --columns out"],
    ),
    "header with types beside column names": (
        *("f.inter", b"user_id:token\titem_id:token\n1\t2\n", ["--columns", "user,item"]),
        ["line 1", "'user_id', 'item_id' look like"],
    ),
    "header in .dat": (
        *("f.dat", b"userID\tartistID\tweight\n1\t2\t3\n", []),
        ["line 1", "'artistID', 'weight' look like", "movielens files have no header", "--format tsv (or rename"],
    ),
    "header in .dat beside column names": (
        *("f.dat", b"userID::movieID::n\n1::2::3\n", ["--columns", "user,item,_"]),
        ["leave --columns out and pass --format tsv"],
    ),
    "two fields in .dat": (
        *("f.dat", b"1\t10\n2\t10\n", []),
        [
            "line 1: has 2 fields",
            "movielens, which has 3 or 4 and no header",
            "name its --columns, or pass --format tsv",
        ],
    ),
    "one field in .dat": ("f.dat", b"1 10\n", [], ["line 1: has 1 field", "name its --columns and its --delimiter"]),
    "three fields in .dat": (
        *("f.dat", b"1\t10\t5\n2\t10\t4\n", []),
        [
            "'id', 'name', 'genres'",
            "or its --columns (movielens files have no header line; if this one",
            "--format tsv",
        ],
    ),
    "blank .dat": ("f.dat", b"\n\n", [], ["f.dat is empty"]),
    # rows
    "row too short": ("f.csv", b"user,item,r\na,x,1\nb,y\nc,z,1\n", [], ["line 3", "2 fields", "header has 3"]),
    "row too long": ("f.csv", b"user,item\na,x\n\nb,y,9\n", [], ["line 4", "3 fields", "header has 2"]),
    "file ends in a row": ("f.csv", b"user,item,r\na,x,1\nb,y", [], ["line 3", "ends in the middle"]),
    "quote never closed": ("f.csv", b'user,item\na,x\n"b,y\nc,z\n', [], ["line 3", "quoted field that does not end"]),
    "quote inside a field": ("f.csv", b'user,item\na,x\nb"b",y\n', [], ["line 3", "quote inside a field"]),
    "text after a quote": ("f.csv", b'user,item\n"a"b,x\n', [], ["line 2", "quote inside a field"]),
    "empty user": ("f.csv", b"user,item\na,x\n,y\n", [], ["line 3", "'user'", "the user is empty"]),
    "empty quoted item": ("f.csv", b'user,item\n\na,x\nb,""\n', [], ["line 4", "'item'", "the item is empty"]),
    "both ids empty": ("f.csv", b"user,item\n\na,x\n,\n", [], ["line 4", "empty"]),
    "blank id": ("f.csv", b"user,item\na,x\n  ,y\n", [], ["line 3", "'user'", "the user is empty"]),
    "whole floats as ids": ("f.csv", b"user,item\n1.0,x\n2.0,y\n", [], ["whole numbers written as floats", "integers"]),
    "field too long": ("f.csv", b"user,item\na,x\n" + b"b" * 131_073 + b",y\n", [], ["line 3", "131073 bytes"]),
    "header too long": ("f.csv", b"user,item," + b"b" * 131_073 + b"\na,x,y\n", [], ["line 1", "131073 bytes"]),
    "quoted field too long": ("f.csv", b'user,item\n"' + b"b\n" * 70_000 + b'",y\n', [], ["line 2", "140002 bytes"]),
    "a file of quotes": ("f.csv", b"user,item\n" + b'"' * 140_000 + b",y\n", [], ["line 2", "140000 bytes"]),
    # values
    "rating is a word": ("f.csv", b"user,item,rating\na,x,5\nb,y,good\n", RATED, ["line 3", "'rating'", "'good'"]),
    "rating is empty": ("f.csv", b"user,item,rating\na,x,5\nb,y,\n", RATED, ["line 3", "rating", "(empty)"]),
    "rating is NaN": ("f.csv", b"user,item,rating\na,x,nan\n", RATED, ["line 2", "finite"]),
    "rating is infinite": ("f.csv", b"user,item,rating\na,x,5\na,y,inf\n", RATED, ["line 3", "finite"]),
    "no rating is enough": ("f.csv", b"user,item,rating\na,x,1\n", ["--min-rating", "4"], ["--min-rating", "lower"]),
    "threshold is NaN": ("f.csv", GOOD, ["--min-rating", "nan"], ["finite"]),
    "time is a word": ("f.csv", b"user,item,time\na,x,12\nb,y,noon\n", TIMED, ["line 3", "'noon'", "ISO"]),
    "time is empty": ("f.csv", b"user,item,time\na,x,2020-01-01\nb,y,\n", TIMED, ["line 3", "(empty)"]),
    "no such day": ("f.csv", b"user,item,time\na,x,2020-01-01\nb,y,2020-02-31\n", TIMED, ["line 3", "2020-02-31"]),
    "year of two digits": (
        *("f.csv", b"user,item,time\na,x,2020-01-01\nb,y,20-01-02\n", TIMED),
        ["line 3", "'20-01-02' is not one of the column's ISO dates", "four-digit years"],
    ),
    "day first and a year of two digits": (
        *("f.csv", b"user,item,time\na,x,31/12/2023\nb,y,3.1.24\n", [*TIMED, "--day-first"]),
        ["line 3", "'3.1.24' is not one of the column's day-first dates", "four-digit years"],
    ),
    "month first": (
        "f.csv",
        b"user,item,time\na,x,12/31/2020\n",
        TIMED,
        ["line 2", "column's ISO dates", "--day-first"],
    ),
    "time is infinite": ("f.csv", b"user,item,time\na,x,1.5\nb,y,inf\n", TIMED, ["line 3", "'inf'"]),
    # TSV
    "TSV row too short": ("f.tsv", b"user\titem\tr\na\tx\n", [], ["line 2", "2 fields"]),
    "commas in a TSV": ("f.tsv", GOOD, [], ["looks like the user", "'user,item'"]),
    # JSON lines
    "not JSON": ("f.jsonl", b'{"user":1,"item":2}\n{user:1}\n', [], ["line 2", "not JSON"]),
    "JSON cut off": ("f.jsonl", b'{"user":1,"item":2}\n{"user":2,"it', [], ["line 2", "middle of this row"]),
    "JSON list": ("f.jsonl", b'{"user":1,"item":2}\n\n[1,2]\n', [], ["line 3", "list", "not an object"]),
    "JSON number": ("f.jsonl", b'{"user":1,"item":2}\n7\n', [], ["line 2", "not an object"]),
    "JSON without item": ("f.jsonl", b'{"user":1,"item":2}\n{"user":2}\n', [], ["line 2", "item", "empty"]),
    "JSON null id": ("f.jsonl", b'{"user":1,"item":2}\n{"user":null,"item":3}\n', [], ["line 2", "user", "empty"]),
    "JSON float id": ("f.jsonl", b'{"user":1,"item":2}\n{"user":1.5,"item":3}\n', [], ["line 2", "1.5", "strings"]),
    "JSON true as id": ("f.jsonl", b'{"user":true,"item":2}\n', [], ["line 1", "true"]),
    "JSON list as id": ("f.jsonl", b'{"user":[1],"item":2}\n', [], ["line 1", "[1]"]),
    "two objects a line": ("f.jsonl", b'{"user":1,"item":2}{"user":2,"item":3}\n', [], ["line 1", "not JSON"]),
    "JSON in Latin-1": ("f.jsonl", b'{"user":"\xe9","item":2}\n', [], ["line 1", "0xe9"]),
    "JSON true among strings": ("f.jsonl", b'{"user":"a","item":2}\n{"user": true,"item":2}\n', [], ["line 2", "true"]),
    "JSON float among strings": ("f.jsonl", b'{"user":"a","item":2}\n{"user":1.0,"item":2}\n', [], ["line 2", "1.0"]),
    "JSON huge integer": (
        "f.jsonl",
        b'{"user":1,"item":2}\n{"user":' + b"9" * 50 + b',"item":2}\n',
        [],
        ["line 2", "127 bits"],
    ),
    "JSON key twice": (
        *("f.jsonl", b'{"user":1,"item":2}\n{"user":1,"item":3,"user":2}\n', []),
        ["line 2", "key 'user' twice"],
    ),
    "JSON key twice beside a blank line": (
        *("f.jsonl", b'{"user":1,"item":2}\n \n{"user":1,"item":3,"user":2}\n', []),
        ["line 3", "key 'user' twice"],
    ),
    "JSON key twice beside a line without it": (
        *("f.jsonl", b'{"item":2}\n{"user":1,"item":3,"user":2}\n', []),
        ["line 1", "user"],
    ),
    "JSON name twice beside a line without it": (
        *("f.jsonl", b'{"user":1,"item":2}\n{"user":1,"item":3,"n":"a","n":"b"}\n', ["--item-name", "n"]),
        ["line 2", "key 'n' twice"],
    ),
    "JSON key twice by an escape": (
        *("f.jsonl", b'{"user":1,"item":2}\n{"user":1,"item":3,"us\\u0065r":2}\n', []),
        ["line 2", "key 'user' twice"],
    ),
    "JSON NaN": ("f.jsonl", b'{"user":1,"item":2}\n{"user":1,"item":3,"r":NaN}\n', [], ["line 2", "is not JSON"]),
    "JSON NUL in id": ("f.jsonl", b'{"user":"a","item":2}\n{"user":"b\\u0000","item":3}\n', [], ["line 2", "NUL"]),
    "JSON blank id": ("f.jsonl", b'{"user":"a","item":2}\n{"user":" ","item":3}\n', [], ["line 2", "is blank"]),
    "JSON list as rating": ("f.jsonl", b'{"user":1,"item":2,"rating":[5]}\n', RATED, ["'rating'", "List", "a number"]),
    "JSON with other keys": ("f.jsonl", b'{"a":1,"b":2}\n', [], ["looks like the user", "'a', 'b'"]),
    # Parquet
    "not Parquet": ("f.parquet", GOOD, [], ["f.parquet", "not a readable Parquet"]),
    "Parquet cut off": ("f.parquet", PARQUET[:-10], [], ["not a readable Parquet"]),
    "Parquet footer damaged": ("f.parquet", PARQUET[:-40] + b"\xff" * 32 + PARQUET[-8:], [], ["Parquet"]),
    "Parquet nested id": (
        "f.parquet",
        parquet({"user": [[1], [2]], "item": [1, 2]}),
        [],
        ["'user'", "List", "integer"],
    ),
    "Parquet float id": ("f.parquet", parquet({"user": [1.0, 2.0], "item": [1, 2]}), [], ["Float64", "cast"]),
    "Parquet null id": ("f.parquet", parquet({"user": [1, None], "item": [1, 2]}), [], ["row 2", "user is empty"]),
    "Parquet NaN rating": (
        *("f.parquet", parquet({"user": [1, 2], "item": [1, 2], "rating": [1.0, np.nan]}), RATED),
        ["row 2", "finite"],
    ),
    "Parquet without rows": (
        "f.parquet",
        parquet({"user": pa.array([], "int64"), "item": pa.array([], "int64")}),
        [],
        ["no rows"],
    ),
    "Parquet bomb": (
        *(
            "f.parquet",
            parquet({"user": pa.array(np.zeros(9_000_000, np.int8)), "item": pa.array(np.zeros(9_000_000, np.int8))}),
            [],
        ),
        ["9000000 rows in"],
    ),
    "Parquet repeats a long string": ("f.parquet", DICTIONARY_BOMB, [], ["decodes to more than 67.1 MB"]),
    "Parquet repeats a long prefix": ("f.parquet", DELTA_BOMB, [], ["decodes to more than 67.1 MB"]),
    "Parquet time overflows": (
        *("f.parquet", parquet({"user": [1], "item": [2], "time": pa.array([2**62], pa.timestamp("ms"))}), TIMED),
        ["not a readable Parquet", "would result in out of bounds timestamp"],
    ),
    "Parquet blank id": ("f.parquet", parquet({"user": ["a", " \t"], "item": [1, 2]}), [], ["row 2", "is blank"]),
    "Parquet page damaged": ("f.parquet", PARQUET[:4] + b"\xff" * 60 + PARQUET[64:], [], ["not a readable Parquet"]),
    "Parquet NUL in id": ("f.parquet", parquet({"user": ["b", "a\0"], "item": [1, 2]}), [], ["row 2", "NUL"]),
    # adjacency text
    "adjacency word": ("f.txt", b"0 1 2\n1 two 3\n", [], ["line 2", "'two'", "whole number"]),
    "adjacency negative": ("f.txt", b"0 1 2\n\n1 -2 3\n", [], ["line 3", "'-2'"]),
    "adjacency float": ("f.txt", b"0 7 1.5\n", [], ["line 1", "'1.5'", "--format csv, and --delimiter ' ' for"]),
    "adjacency too large": ("f.txt", b"0 1\n1 99999999999999999999\n", [], ["line 2", "'99999999999999999999'"]),
    "adjacency without items": ("f.txt", b"0\n1\n", [], ["no interactions"]),
    "adjacency of commas": ("f.txt", b"0,1,2\n", [], ["line 1", "'0,1,2'"]),
    "rows of ratings in .txt": (
        *("f.txt", b"1 17 4\n1 9 2\n2 17 5\n", []),
        ["f.txt looks like rows of user, item, rating", "--format csv --delimiter ' ' --columns user,item,rating`"],
    ),
    "rows of ratings and times in .txt": (
        *("f.txt", b"1\t17\t4\t100\r\n\r\n2\t9\t2\t300\r\n1\t9\t5\t200\r\n", []),
        ["rows of user, item, rating, timestamp: each line has 4", "--format adjacency if"],
    ),
    # options
    "a delimiter of a quote": ("f.csv", GOOD, ["--delimiter", ':"'], ["':\"' cannot be between fields", "such as ;"]),
    "its replacement": ("f.csv", b"user::item\na::x\nb\x1f::y\n", [], ["line 3", "0x1f"]),
    "a comma in no decimals": ("f.csv", GOOD, ["--decimal", ";"], ["--decimal ; is not . or ,", "use --decimal ,"]),
    "a column without a name": ("f.csv", GOOD, ["--columns", "user,,item"], ["--columns has an empty name", "use _"]),
    "columns of Parquet": ("f.parquet", PARQUET, ["--columns", "user,item"], ["column names of its own", "leave"]),
    "a delimiter of nothing": ("f.jsonl", b"{}\n", ["--delimiter", ";"], ["f.jsonl is read as jsonl", "leave"]),
    "unknown split": ("f.csv", GOOD, ["--split", "random"], ["no split 'random'", "leave-one-out"]),
    "two shares": ("f.csv", GOOD, ["--split", "ratio:0.8,0.2"], ["three shares"]),
    "shares over one": ("f.csv", GOOD, ["--split", "ratio:0.8,0.2,0.2"], ["sum to 1.2"]),
    "no training share": ("f.csv", GOOD, ["--split", "ratio:0,0.5,0.5"], ["training gets 0"]),
    "share is a word": ("f.csv", GOOD, ["--split", "ratio:most,0.1,0.1"], ["three shares"]),
    "negative core": ("f.csv", GOOD, ["--core", "-1"], ["--core -1"]),
    "core too high": ("f.csv", GOOD, ["--core", "10"], ["no interaction is left of 3", "10-core"]),
    "negative seed": ("f.csv", GOOD, ["--seed", "-1"], ["--seed -1"]),
    "one file for the parts": ("f.csv", GOOD, ["--split", "files"], ["two files", "three"]),
    "no timestamps in adjacency": ("f.txt", b"0 1 2\n", ["--split", "temporal:0.8,0.1,0.1"], ["timestamps"]),
}


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], folder: Path) -> str:
    """The one line of error of a command that must fail, after seeing that it changed nothing in the folder."""
    before = sorted(folder.rglob("*"))
    assert main(["data", "prepare", *arguments, "--out", str(folder / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
    return captured.err


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_with_place_and_fix(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, content, more, expected = CASES[case]
    (tmp_path / name).write_bytes(content)
    message = refused(capsys, [str(tmp_path / name), *more], tmp_path)
    for words in expected:
        assert words in message


def test_a_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("folder.csv", "folder"):
        (tmp_path / name).mkdir()
        assert "is a directory" in refused(capsys, [str(tmp_path / name)], tmp_path)
    assert "nowhere does not exist" in refused(capsys, [str(tmp_path / "nowhere")], tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refused(capsys, [str(tmp_path / "none.csv")], tmp_path)


def test_a_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not a regular file" in refused(capsys, ["/dev/null", "--format", "csv"], tmp_path)


def test_a_pair_in_two_parts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("train.txt", "0 1 2\n"), ("val.txt", "0 3\n"), ("test.txt", "0 2\n")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("train.txt", "val.txt", "test.txt")]
    message = refused(capsys, [*files, "--split", "files"], tmp_path)
    assert "user 0 with item 2 in train and test" in message


def test_timestamps_of_two_kinds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("user,item,time\na,x,12\n")
    (tmp_path / "b.csv").write_text("user,item,time\nb,x,2020-01-01\n")
    message = refused(capsys, [str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), *TIMED], tmp_path)
    assert "ISO dates" in message
    assert "whole numbers" in message


@pytest.mark.parametrize("content", ["id,name\nx,One\nx,Two\n", "id,name\n,One\n"])
def test_names_that_are_not_one_an_id_are_refused(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.csv").write_bytes(GOOD)
    (tmp_path / "names.csv").write_text(content)
    message = refused(capsys, [str(tmp_path / "f.csv"), "--item-names", str(tmp_path / "names.csv")], tmp_path)
    assert "names.csv has a duplicate or empty item id" in message


def test_names_of_other_ids_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f.csv").write_bytes(GOOD)
    (tmp_path / "names.csv").write_text("id,name\nX,One\nY,Two\n")
    message = refused(capsys, [str(tmp_path / "f.csv"), "--item-names", str(tmp_path / "names.csv")], tmp_path)
    assert "none of the 2 item names belongs to one of the 2 items" in message
    assert "such as 'x', not 'X'" in message


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("names.csv", "user,title\nx,One\n", ["names.csv", "'user', 'title'", "the header id,name"]),
        ("names.csv", "id,name,name\nx,One,Two\n", ["names.csv", "one of names", "the header id,name"]),
        ("names.jsonl", '{"id": "x", "about": "One"}\n', ["names.jsonl", "'id', 'about'", "the header id,name"]),
        ("names.txt", "0 1\n", ["names.txt has no columns", "the columns id and name"]),
    ],
)
def test_names_without_their_columns_are_refused(
    file: str, content: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.csv").write_bytes(GOOD)
    (tmp_path / file).write_text(content)
    message = refused(capsys, [str(tmp_path / "f.csv"), "--item-names", str(tmp_path / file)], tmp_path)
    assert all(word in message for word in words), message
    assert "--user" not in message


def test_what_stands_at_out_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f.csv").write_bytes(GOOD)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    assert "not a prepared directory" in refused(capsys, [str(tmp_path / "f.csv"), "--force"], tmp_path)


def test_an_out_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f.csv").write_bytes(GOOD)
    assert main(["data", "prepare", str(tmp_path / "f.csv"), "--out", str(tmp_path / "f.csv" / "out")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_error_of_a_json_command_is_on_standard_error_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.csv").write_bytes(b"user,item\n")
    refused(capsys, [str(tmp_path / "f.csv"), "--json"], tmp_path)
    (tmp_path / "f.csv").write_bytes(GOOD)
    assert main(["data", "prepare", str(tmp_path / "f.csv"), "--json", "--out", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out)["interactions"] == 3


def test_there_are_more_than_forty_kinds() -> None:
    assert len(CASES) > 40
