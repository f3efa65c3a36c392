"""`hmlet recommend`, `similar`, `explain` and `export`: the contract of CLI.md on standard output and the disk."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
import ranked
from finished import finished

from hmlet.api import Run, fit
from hmlet.cli import main
from hmlet.config import resolve
from hmlet.data import Dataset


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished("hmlet-end", tmp_path_factory.mktemp("run") / "run").directory.path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The standard output of a command that must succeed and say nothing else."""
    assert main([*map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a user's mistake."""
    assert main([*map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_recommend_users(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = json.loads(call(capsys, "recommend", run, "--user", "u1", "--user", "u2", "-k", 3, "--json"))
    assert [answer["user"] for answer in answers] == ["u1", "u2"]
    assert all(len(answer["items"]) == 3 and set(answer["items"][0]) == {"item", "score"} for answer in answers)
    text = call(capsys, "recommend", run, "--user", "u1", "-k", 3)
    assert [line.split()[0] for line in text.splitlines()[3:]] == [each["item"] for each in answers[0]["items"]]


def test_without_ids_a_few_users_are_shown_as_a_sample(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first, the last and one between them; the note is not in the way of a pipe."""
    assert main(["recommend", str(run), "-k", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [answer["user"] for answer in json.loads(out)] == ["u0", "u24", "u47"]
    assert err == "3 of 48 users, as a sample; choose others with --user\n"


def test_small_scores_keep_three_digits(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [123.4, 0.02196, 0.0215, -0.0000120]
    answer = {"user": "u1", "items": [{"item": f"i{at}", "score": score} for at, score in enumerate(scores)]}
    monkeypatch.setattr(Run, "recommend", lambda *arguments, **options: [answer])
    lines = call(capsys, "recommend", run, "--user", "u1").splitlines()[3:]
    assert [line.split()[1] for line in lines] == ["123", "0.0220", "0.0215", "-1.20e-05"]


def test_recommend_a_newcomer(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = json.loads(call(capsys, "recommend", run, "--items", "i1,i3,i5", "-k", 4, "--json"))
    assert len(answer["items"]) == 4
    assert not {"i1", "i3", "i5"} & {each["item"] for each in answer["items"]}
    assert call(capsys, "recommend", run, "--items", "i1", "-k", 1).startswith("someone with i1\n")


def test_a_newcomers_items_are_a_line_of_csv(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = call(capsys, "recommend", run, "--items", "i1,i3", "-k", 4, "--json")
    assert call(capsys, "recommend", run, "--items", 'i1,"i3",', "-k", 4, "--json") == plain
    assert "item 'i1, i3' is not" in fails(capsys, "recommend", run, "--items", '"i1, i3",i5')
    assert "not a line of CSV" in fails(capsys, "recommend", run, "--items", '"i1,i3')
    assert "--mask needs --user" in fails(capsys, "recommend", run, "--items", "i1", "--mask", "nonsense")


def test_lists_of_items_come_from_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "allow").write_text("i1\n\r\ni3\r\ni5\ni7\n")
    (tmp_path / "deny").write_text("i5\n")
    lists = ["--allow", tmp_path / "allow", "--deny", tmp_path / "deny"]
    (answer,) = json.loads(call(capsys, "recommend", run, "--items", "i1", *lists, "--json"))
    assert {each["item"] for each in answer["items"]} == {"i3", "i7"}
    none = call(capsys, "recommend", run, "--items", "i1", "--allow", tmp_path / "deny", "--deny", tmp_path / "deny")
    assert none == "someone with i1\nno item left to recommend\n"


def test_similar(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(call(capsys, "similar", run, "--item", "i4", "-k", 2, "--json"))
    assert (found["item"], len(found["items"])) == ("i4", 2)
    assert "users most like u4" in call(capsys, "similar", run, "--user", "u4", "-k", 2)


def test_ids_that_are_numbers_come_out_as_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.DataFrame({"user": [1, 1, 2, 2, 3], "item": [7, 8, 7, 9, 8]})
    fit(frame, "popularity", tmp_path / "run", progress=False)
    for side, wanted in (("item", 7), ("user", 1)):
        found = json.loads(call(capsys, "similar", tmp_path / "run", f"--{side}", wanted, "-k", 1, "--json"))
        assert list(found) == [side, f"{side}s"]
        assert found[side] == wanted
        assert isinstance(found[f"{side}s"][0][side], int)


def test_explain(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = json.loads(call(capsys, "explain", run, "--user", "u3", "--item", "i1", "--json"))
    assert {"user", "item", "score", "layers", "gates", "carried_by", "remainder", "sentence"} <= set(parts)
    assert sum(layer["contribution"] for layer in parts["layers"]) == pytest.approx(parts["score"], abs=1e-5)
    assert call(capsys, "explain", run, "--user", "u3", "--item", "i1").startswith(parts["sentence"])


def test_explain_says_what_popularity_adds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = "train.loss=multinomial", "loss.popularity_weight=0.3"
    run = finished("lightgcn", tmp_path / "run", *settings, data=ranked.data()).directory.path
    told = call(capsys, "explain", run, "--user", "u3", "--item", "i1")
    parts = json.loads(call(capsys, "explain", run, "--user", "u3", "--item", "i1", "--json"))
    assert f"how popular the item is {parts['from_popularity']:+.3g}, score" in told


def test_export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "users").write_text("u5\nu1\n")
    out = tmp_path / "topn.parquet"
    said = json.loads(call(capsys, "export", run, "--out", out, "-k", 2, "--users", tmp_path / "users", "--json"))
    assert said == {"out": str(out), "rows": 4, "k": 2, "mask": "all"}
    table = pq.read_table(out)
    assert table.column_names == ["user", "item", "rank", "score"]
    assert table["user"].to_pylist() == ["u5", "u5", "u1", "u1"]
    answers = json.loads(call(capsys, "recommend", run, "--user", "u5", "--user", "u1", "-k", 2, "--json"))
    assert table["item"].to_pylist() == [each["item"] for answer in answers for each in answer["items"]]
    assert "96 rows" in call(capsys, "export", run, "--out", out, "-k", 2)


def test_explain_shows_the_items_that_the_sentence_names_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = json.loads(call(capsys, "explain", run, "--user", "u3", "--item", "i1", "--json"))
    sizes = [abs(each["contribution"]) for each in parts["carried_by"]]
    assert sizes == sorted(sizes, reverse=True)
    named = re.findall(r"(i\d+) \([+-]", parts["sentence"])
    sign = 1 if parts["score"] > 0 else -1
    agreeing = [each["item"] for each in parts["carried_by"] if sign * each["contribution"] > 0]
    assert named == agreeing[:3]
    assert set(named) <= {each["item"] for each in parts["carried_by"][:10]}


def test_mistakes_take_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "recommend takes either --user or --items" in fails(
        capsys, "recommend", run, "--user", "u1", "--items", "i1"
    )
    assert "new user 1 has no items" in fails(capsys, "recommend", run, "--items", ",")
    assert "user 'u99' is not in the data set" in fails(capsys, "recommend", run, "--user", "u99")
    assert "similar takes either --item or --user" in fails(capsys, "similar", run)
    assert "item 'x' is not in the data set" in fails(capsys, "explain", run, "--user", "u1", "--item", "x")
    missing = tmp_path / "missing"
    assert f"cannot read {missing}" in fails(capsys, "export", run, "--out", tmp_path / "a.csv", "--users", missing)
    assert "does not exist" in fails(capsys, "export", missing, "--out", tmp_path / "a.csv")


def test_a_space_at_the_edge_of_an_id_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """` lead` and `lead` are two items: neither option nor file takes one for the other."""
    rows = [(f"u{n}", item) for n in range(12) for item in (" lead", "lead", "tail ", "other") if (n + len(item)) % 3]
    data = Dataset.from_frame(pl.DataFrame(rows, schema=["user", "item"], orient="row"), split="ratio:1,0,0")
    out = tmp_path / "run"
    fit(data, resolve("popularity"), out, device="cpu")
    for wanted, option in ((" lead", '" lead"'), ("lead", "lead"), ("tail ", "tail ")):
        (answer,) = json.loads(call(capsys, "recommend", out, "--items", option, "--json"))
        assert {each["item"] for each in answer["items"]} == {" lead", "lead", "tail ", "other"} - {wanted}
        (tmp_path / "allow").write_text(f"{wanted}\n")
        (only,) = json.loads(
            call(capsys, "recommend", out, "--items", "other", "--allow", tmp_path / "allow", "--json")
        )
        assert [each["item"] for each in only["items"]] == [wanted]
    assert "did you mean 'tail '?" in fails(capsys, "recommend", out, "--items", "tail")
