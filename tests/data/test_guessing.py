"""Guessed columns of small files whose right answer is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hmlet.data import Columns
from hmlet.data.guessing import BY_NAME, BY_ORDER, BY_VALUES, GIVEN, SampledColumn
from hmlet.data.preparation import guess_file
from hmlet.errors import DataError

ROWS = 40
USERS = [f"u{at % 8}" for at in range(ROWS)]
NUMBERS = [str(100 + at % 8) for at in range(ROWS)]
ITEMS = [f"i{at * 7 % 13}" for at in range(ROWS)]
CODES = [str(5000 + at * 7 % 13) for at in range(ROWS)]
TITLES = [f"The story of {at * 7 % 13}" for at in range(ROWS)]
STARS = [str(1 + at % 5) for at in range(ROWS)]
HALVES = [str(0.5 + at % 10 / 2) for at in range(ROWS)]
SECONDS = [str(1_500_000_000 + 977 * at) for at in range(ROWS)]
DATES = [f"2024-01-{1 + at % 28:02d}T10:00:00" for at in range(ROWS)]
COUNTER = [str(at) for at in range(ROWS)]
REVIEWS = [f"I liked it {at} times" for at in range(ROWS)]
COUNTRY = [["it", "fr"][at % 2] for at in range(ROWS)]

# name -> the columns of a file, and which of them are which
FILES: dict[str, tuple[dict[str, Sequence[str]], dict[str, str]]] = {
    "plain": ({"user": USERS, "item": ITEMS}, {"user": "user", "item": "item"}),
    "swapped": ({"item_id": ITEMS, "user_id": USERS}, {"user": "user_id", "item": "item_id"}),
    "movielens": (
        {"userId": NUMBERS, "movieId": CODES, "rating": HALVES, "timestamp": SECONDS},
        {"user": "userId", "item": "movieId", "rating": "rating", "timestamp": "timestamp"},
    ),
    "amazon": (
        {"reviewerID": USERS, "asin": ITEMS, "overall": STARS, "unixReviewTime": SECONDS, "reviewText": REVIEWS},
        {"user": "reviewerID", "item": "asin", "rating": "overall", "timestamp": "unixReviewTime"},
    ),
    "shop": (
        {"order": COUNTER, "customer_key": NUMBERS, "SKU": CODES, "order_date": DATES},
        {"user": "customer_key", "item": "SKU", "timestamp": "order_date"},
    ),
    "titled": (
        {"listener": USERS, "track_id": CODES, "track_name": TITLES},
        {"user": "listener", "item": "track_id", "item_name": "track_name"},
    ),
    "one known": ({"who": USERS, "book": ITEMS, "land": COUNTRY}, {"user": "who", "item": "book"}),
    "unnamed": (
        {"a": NUMBERS, "b": CODES, "c": STARS, "d": SECONDS},
        {"user": "a", "item": "b", "rating": "c", "timestamp": "d"},
    ),
    "numbered rows": ({"": COUNTER, "x": USERS, "y": ITEMS}, {"user": "x", "item": "y"}),
    "dates": ({"x": USERS, "y": ITEMS, "z": DATES}, {"user": "x", "item": "y", "timestamp": "z"}),
    "basic dates": (
        {"x": USERS, "y": ITEMS, "z": [f" {date.replace('-', '').replace(':', '')}Z" for date in DATES]},
        {"user": "x", "item": "y", "timestamp": "z"},
    ),
    "time by name only": ({"user": USERS, "item": ITEMS, "time": TITLES}, {"user": "user", "item": "item"}),
    "free text": ({"member": USERS, "comment": REVIEWS, "what": ITEMS}, {"user": "member", "item": "what"}),
    "two large numbers": (
        {"x": [str(1_600_000_000 + at % 8) for at in range(ROWS)], "y": CODES},
        {"user": "x", "item": "y"},
    ),
}


def write_csv(path: Path, columns: dict[str, Sequence[str]], separator: str = ",") -> Path:
    lines = [separator.join(columns), *(separator.join(row) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FILES)
def test_the_right_columns_are_guessed(name: str, tmp_path: Path) -> None:
    columns, expected = FILES[name]
    assert guess_file(write_csv(tmp_path / "file.csv", columns), Columns()).chosen() == expected


@pytest.mark.parametrize("format", ["tsv", "jsonl", "parquet", "semicolon"])
def test_every_format_is_guessed_alike(format: str, tmp_path: Path) -> None:
    columns, expected = FILES["movielens"]
    typed = {name: [json.loads(value) for value in values] for name, values in columns.items()}
    path = tmp_path / f"file.{format}"
    if format == "parquet":
        pq.write_table(pa.table({**typed, "tags": [["a", "b"]] * ROWS}), path)
    elif format == "jsonl":
        rows = [dict(zip(typed, row, strict=True)) for row in zip(*typed.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif format == "tsv":
        write_csv(path, columns, "\t")
    else:
        path = write_csv(tmp_path / "file.csv", columns, ";")
    assert guess_file(path, Columns()).chosen() == expected


def test_the_reason_is_told_and_what_is_given_is_not_guessed(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "file.csv", {"a": USERS, "book": ITEMS, "c": STARS})
    assert guess_file(path, Columns()).reasons == {"item": BY_NAME, "user": BY_VALUES, "rating": BY_VALUES}
    assert guess_file(path, Columns(user="book", item="a")).reasons == {
        "user": GIVEN,
        "item": GIVEN,
        "rating": BY_VALUES,
    }
    unnamed = write_csv(tmp_path / "unnamed.csv", {"x": USERS, "y": ITEMS})
    assert guess_file(unnamed, Columns()).reasons == {"user": BY_ORDER, "item": BY_ORDER}


def test_a_name_belongs_to_one_item(tmp_path: Path) -> None:
    """A title that differs from row to row is not the item's."""
    path = write_csv(tmp_path / "file.csv", {"user": USERS, "item": ITEMS, "title": REVIEWS})
    assert "item_name" not in guess_file(path, Columns()).chosen()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("196,242,3,881250949\n186,302,3,891717742\n", r"line 1: '196,242,3,881250949' looks like data"),
        ("ann,jazz\nann,pop\nbob,jazz\n", r"line 1: 'ann,jazz' looks like data"),
        ("user\nann\nbob\n", r"has no column that looks like the item; its columns are 'user'"),
        ("price,weight\n1.5,2.5\n2.5,3.5\n", r"has no column that looks like the item"),
    ],
)
def test_a_file_without_an_answer_says_what_to_do(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=problem) as caught:
        guess_file(path, Columns())
    assert caught.value.hint


def test_adjacency_text_has_nothing_to_guess(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("0 1 2\n1 2\n", encoding="utf-8")
    assert guess_file(path, Columns()).chosen() == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("userIds", {"user"}),
        ("Customer_ID", {"customer"}),
        ("movieid", {"movie"}),
        ("iid", {"iid"}),
        ("TrackName", {"track", "name"}),
    ],
)
def test_the_words_of_a_name(name: str, words: set[str]) -> None:
    assert words <= SampledColumn(name, []).tokens
