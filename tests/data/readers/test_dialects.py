"""Files that do not explain themselves: no header, MovieLens, RecBole, decimal commas, day-first dates, bad rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import polars as pl
import pytest

from hmlet import Dataset
from hmlet.cli import main
from hmlet.errors import DataError

ROWS = [("1", "31", "2.5", "1260759144"), ("1", "1029", "3.0", "1260759179"), ("2", "31", "4.0", "835355493")]
EXPECTED = {(1, 31), (1, 1029), (2, 31)}


def pairs(data: Dataset) -> set[tuple[object, object]]:
    return {(data.users.id(int(u)), data.items.id(int(i))) for u, i in zip(data.user, data.item, strict=True)}


def written(path: Path, separator: str, header: str = "") -> Path:
    path.write_text(header + "".join(separator.join(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "separator", "header", "options"),
    [
        ("u.data", "\t", "", {}),
        ("ratings.dat", "::", "", {}),
        ("plain.csv", ",", "", {"columns": ["user", "item", "rating", "timestamp"]}),
        ("plain.csv", ",", "", {"columns": "user, item,rating,timestamp"}),
        ("plain.csv", "\t", "", {"columns": "user,item,_,_", "delimiter": "\\t"}),
        ("plain.csv", ",", "", {"columns": ["a", "b", "_", "_"], "user": "a", "item": "b"}),
        ("wide.csv", "::", "user::item::r::t\n", {}),
        ("odd.csv", "<>", "user<>item<>r<>t\n", {"delimiter": "<>"}),
        ("ml.inter", "\t", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n", {}),
        ("any.txt", " ", "", {"format": "csv", "delimiter": " ", "columns": ["user", "item", "rating", "at"]}),
    ],
)
def test_every_way_to_write_gives_the_same_pairs(
    tmp_path: Path, name: str, separator: str, header: str, options: dict[str, object]
) -> None:
    assert pairs(Dataset.from_file(written(tmp_path / name, separator, header), **options)) == EXPECTED


@pytest.mark.parametrize("first", ["x,time,,", "user,31,,", "1,b,5,"])
def test_a_first_row_with_one_word_of_a_header_is_data(first: str, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(f"{first}\nu,i,,\n")
    data = Dataset.from_file(tmp_path / "f.csv", columns="a,b,_,_", user="a", item="b")
    assert {(str(user), str(item)) for user, item in pairs(data)} == {tuple(first.split(",")[:2]), ("u", "i")}


@pytest.mark.parametrize(
    ("first", "separator"),
    [("a::b,c", "::"), ("a,b::c", ","), ("a::b;c", "::"), ("a;b::c", ";"), ("a::b|c|d|e", "::"), ("a::b\tc", "\t")],
)
def test_the_first_separator_counts_unless_it_is_the_usual_one(first: str, separator: str, tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text(f"{first}\n1{separator}2\n")
    user, item = first.split(separator)
    data = Dataset.from_file(tmp_path / "f.tsv", user=user, item=item, delimiter="," if separator == "," else None)
    assert pairs(data) == {(1, 2)}


@pytest.mark.parametrize("options", [{"format": "csv"}, {"delimiter": ";"}, {"columns": ["user", "item"]}])
def test_options_of_files_are_refused_with_a_frame(options: dict[str, object]) -> None:
    frame = pl.DataFrame({"user": [9], "item": [31]})
    (name,) = options
    with pytest.raises(DataError, match=f"`{name}` is for files, .*: leave `{name}` out"):
        Dataset.from_frame(frame, **options)


def test_a_frame_and_a_file_are_parts_with_the_options_of_the_file(tmp_path: Path) -> None:
    frame, file = pl.DataFrame({"user": [9], "item": [31]}), written(tmp_path / "f.csv", "~", "user~item~r~t\n")
    assert pairs(Dataset.from_parts(train=frame, test=file, delimiter="~")) == {(9, 31), *EXPECTED}


def test_ratings_and_times_of_files_without_a_header_are_used(tmp_path: Path) -> None:
    path = written(tmp_path / "u.data", "\t")
    data = Dataset.from_file(path, rating="rating", min_rating=3, split="temporal:0.5,0,0.5")
    assert pairs(data) == {(1, 1029), (2, 31)}
    assert data.item[data.slice("test")].tolist() == [data.items.indices([1029])[0]]  # the newest
    path.write_text(path.read_text() + "3\t4\n")
    with pytest.raises(DataError, match=r"line 4: has 2 fields, and 4 columns are named"):
        Dataset.from_file(path)


def test_names_come_from_another_file(tmp_path: Path) -> None:
    ratings = written(tmp_path / "ratings.dat", "::")
    movies = tmp_path / "movies.dat"
    genres = "Drama|Children|Comedy|Romance"
    movies.write_text(f"31::Dangerous Minds (1995)::{genres}\n1029::Dumbo, The (1941)::{genres}\n", encoding="utf-8")
    titles = tmp_path / "movies.csv"
    titles.write_text("movieId,title,genres\n31,Dangerous Minds (1995),Drama\n", encoding="utf-8")
    atomic = tmp_path / "ml.item"
    atomic.write_text("item_id:token\tmovie_title:token_seq\n31\tDangerous Minds (1995)\n", encoding="utf-8")
    for names in (movies, titles, atomic, {31: "Dangerous Minds (1995)"}):
        data = Dataset.from_file(ratings, item_names=names)
        assert data.items.name(int(data.items.indices([31])[0])) == "Dangerous Minds (1995)"
    with pytest.raises(DataError, match="has not one column of user ids and one of names"):
        Dataset.from_file(ratings, user_names=titles)


def test_decimal_commas_and_days_first(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("user;item;rating;date\na;x;4,5;31/12/2023\na;y;2,0;01.02.2024 10:30\nb;x;5;02-01-2024\n")
    options = {"rating": "rating", "timestamp": "date", "min_rating": 4.0}
    data = Dataset.from_file(path, decimal=",", day_first=True, split="temporal:0.5,0,0.5", **options)
    assert pairs(data) == {("a", "x"), ("b", "x")}
    assert data.timestamp.tolist() == [1703980800 * 10**6, 1704153600 * 10**6]
    with pytest.raises(DataError, match=r"line 2, column 'rating': the rating '4,5' is not .* pass decimal=\",\""):
        Dataset.from_file(path, day_first=True, **options)
    with pytest.raises(DataError, match=r"if the day comes first, pass day_first=True"):
        Dataset.from_file(path, decimal=",", **options)


BAD = """\
user,item,rating,at
a,x,5,2024-01-01
a,y
b,,3,2024-01-02

b,x,many,2024-01-03
b,y,4,yesterday
c,x,1,2024-01-04,9
c,y,2,2024-01-05
"""
REASONS = [
    ("line 3", "has 2 fields, and the header has 4"),
    ("line 8", "has 5 fields, and the header has 4"),
    ("line 4", "column 'item': the item is empty"),
    ("line 6", "column 'rating': the rating 'many' is not a finite number"),
    ("line 7", "column 'at': the timestamp 'yesterday' is not one of the column's ISO dates"),
]


def test_bad_rows_are_skipped_counted_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "bad.csv", tmp_path / "out"
    path.write_text(BAD)
    command = ["data", "prepare", str(path), "--rating", "rating", "--timestamp", "at", "--out", str(out)]
    assert main([*command, "--json"]) == 2
    assert "line 3: has 2 fields" in (said := capsys.readouterr().err)
    assert "--skip-bad to leave such rows out" in said
    assert main([*command, "--skip-bad"]) == 0
    shown = capsys.readouterr()
    assert "skipped                           -5" in shown.out
    assert "skipped.csv lists what was skipped" in shown.out
    with (out / "skipped.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["file", "place", "reason"], *([str(path), *each] for each in REASONS)]
    data = Dataset.load(out)
    assert pairs(data) == {("a", "x"), ("c", "y")}
    assert (data.provenance.skipped, data.provenance.rows) == (5, 2)


def test_bad_lines_of_json_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    good = [json.dumps({"user": "a", "item": 1}), json.dumps({"user": "b", "item": 2})]
    path.write_text("\n".join([good[0], "{", json.dumps({"user": "c"}), json.dumps({"user": 1.5, "item": 3}), good[1]]))
    data = Dataset.from_file(path, skip_bad=True)
    assert pairs(data) == {("a", 1), ("b", 2)}
    assert [row.place for row in data.skipped] == ["line 2", "line 3", "line 4"]
