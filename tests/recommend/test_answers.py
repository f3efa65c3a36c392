"""Answers as frames, for everybody, for pairs and for batches: always the same numbers."""

from __future__ import annotations

import pickle
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from finished import finished
from planted import checkerboard

import hmlet
from hmlet import Dataset, Run
from hmlet.errors import ConfigError

KINDS = ("lightgcn", "itemknn")  # scores by factors, and by item-item weights


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(request.param, tmp_path_factory.mktemp("answers") / "run")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Run:
    frame = checkerboard().to_frame()
    items = frame["item"].unique().to_list()
    titles = pl.DataFrame({"id": items, "name": [f"Title <{item}>" for item in items]})
    data = Dataset.from_frame(frame, split="column:part", item_names=titles, name="titled")
    return finished("bpr", tmp_path_factory.mktemp("named") / "run", data=data)


def numbered(place: Path, **options: Any) -> Run:
    """A run whose ids are numbers."""
    frame = checkerboard().to_frame().with_columns(pl.col("user", "item").str.slice(1).cast(pl.Int64))
    return finished("bpr", place, data=Dataset.from_frame(frame, split="column:part", name="numbers", **options))


def test_a_frame_has_the_rows_of_the_lists(run: Run) -> None:
    answers = run.recommend(["u7", "u3"], 4)
    expected = [(each["user"], row["item"], rank, row["score"]) for each in answers
                for rank, row in enumerate(each["items"], 1)]  # fmt: skip
    frame = answers.to_frame()
    assert frame.columns == ["user", "item", "rank", "score"]
    assert frame.rows() == expected
    pandas = answers.to_frame("pandas")
    assert isinstance(pandas, pd.DataFrame)
    assert list(pandas.itertuples(index=False, name=None)) == expected
    assert answers.to_arrow().to_pylist()[0] == dict(zip(frame.columns, expected[0], strict=True))
    assert run.recommend_new([["i0"], ["i1"]], 2).to_frame()["newcomer"].to_list() == [0, 0, 1, 1]
    assert run.recommend(["u1"], 5, allow=["i0"], deny=["i0"]).to_frame().shape == (0, 4)
    with pytest.raises(ConfigError, match="use polars or pandas"):
        answers.to_frame("numpy")  # type: ignore[call-overload]


def test_everybody_gets_the_list_that_they_ask_for(run: Run, tmp_path: Path) -> None:
    everyone = run.recommend_all(3, deny=["i2"])
    asked = run.recommend(list(run.data.users), 3, deny=["i2"])
    assert list(everyone) == asked
    assert everyone.to_frame().equals(asked.to_frame())
    run.export(tmp_path / "all.parquet", 3, deny=["i2"])
    assert pl.read_parquet(tmp_path / "all.parquet").equals(everyone.to_frame())


def test_frames_of_one_run_fit_together(tmp_path: Path) -> None:
    """Full or empty, for some or for everybody: the same columns with the same types."""
    names = {"item_names": {n: f"Title {n}" for n in range(0, 24, 2)}}
    run = numbered(tmp_path / "run", **names)
    ids, kept = {"item": pl.Int64}, {"rank": pl.Int32, "score": pl.Float64, "name": pl.String}
    filled, nothing = run.recommend([1], 2), run.recommend([1], 2, allow=[])
    for each in (filled, nothing, run.recommend([]), run.recommend_all(2), run.recommend_all(2, allow=[])):
        assert dict(each.to_frame().schema) == {"user": pl.Int64, **ids, **kept}
    assert run.recommend_all(2).to_frame().head(2).equals(run.recommend([0], 2).to_frame())
    for new in (run.recommend_new([[1]], 2), run.recommend_new([]), run.recommend_new([[1]], allow=[])):
        assert dict(new.to_frame().schema) == {"newcomer": pl.Int64, **ids, **kept}
    for similar in (run.similar_items([1, 2], 2), run.similar_items([1], 2)):
        assert dict(similar.to_frame().schema) == {**ids, "similar": pl.Int64, **kept}
    assert dict(run.similar_items(1, 2).to_frame().schema) == {**ids, **kept}
    users = {"rank": pl.Int32, "score": pl.Float64}  # which have no names
    assert dict(run.similar_users([1], 2).to_frame().schema) == {"user": pl.Int64, "similar": pl.Int64, **users}
    run.export(tmp_path / "lists.parquet", 2)  # whose columns have no names
    assert pl.read_parquet(tmp_path / "lists.parquet").equals(run.recommend_all(2).to_frame().drop("name"))
    assert pickle.loads(pickle.dumps(filled)).to_frame().equals(filled.to_frame())  # noqa: S301 - our own


def test_predictions_are_the_scores_of_the_lists(run: Run) -> None:
    frame = run.recommend(["u1", "u2"], 24, "train").to_frame()
    expected = frame["score"].to_list()
    assert run.predict(frame.select("item", "user")).tolist() == expected
    assert run.predict(frame.select("user", "item").to_pandas()).tolist() == expected
    assert run.predict(frame.select("user", "item").rows()).tolist() == expected
    assert run.predict([]).shape == (0,)
    with pytest.raises(hmlet.HmletError, match="user 'u999' is not in the data set"):
        run.predict([("u999", "i1")])


def test_embeddings_give_the_scores(run: Run) -> None:
    if run.record.model == "itemknn":
        with pytest.raises(ConfigError, match="itemknn scores by item-item weights"):
            run.embeddings()
        return
    found = run.embeddings()
    pairs = [("u0", "i0"), ("u5", "i3")]
    at = [(list(run.data.users).index(user), list(run.data.items).index(item)) for user, item in pairs]
    scores = [found.users[user].astype(float) @ found.items[item].astype(float) for user, item in at]
    assert run.predict(pairs) == pytest.approx(scores)
    frame = found.to_frame()
    assert frame["id"].to_list() == [*run.data.users, *run.data.items]
    row = frame.filter(pl.col("side") == "item", pl.col("id") == "i3")["embedding"][0].to_list()
    assert row == found.items[at[1][1]].tolist()


def test_a_batch_of_similar_ones_has_the_single_answers(run: Run) -> None:
    batch = run.similar_items(["i0", "i3"], 2)
    assert [each["items"] for each in batch] == [run.similar_items(item, 2) for item in ("i0", "i3")]
    assert batch.to_frame().columns == ["item", "similar", "rank", "score"]
    assert batch.to_frame()["item"].to_list() == ["i0", "i0", "i3", "i3"]
    users = run.similar_users(["u0", "u9"], 2)
    assert [each["users"] for each in users] == [run.similar_users(user, 2) for user in ("u0", "u9")]
    assert run.similar_users("u0", 2).to_frame().columns == ["user", "rank", "score"]


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    run: Any = numbered(tmp_path / "run")
    two = np.int64(2)
    assert run.similar_items(two, two) == run.similar_items(2, 2)
    assert run.similar_users(two, two) == run.similar_users(2, 2)
    assert len(run.similar_items(np.array([2, 3]), 2)) == 2
    assert run.recommend([two], two) == run.recommend([2], 2)
    for evaluate in (run.evaluate, partial(hmlet.evaluate, run)):
        assert evaluate(k=two).metrics == run.evaluate(k=2).metrics
        assert [each.k for each in evaluate(k=np.array([3, 2]))] == [3, 2]


@pytest.mark.parametrize("k", [2.0, "2", None, [2]], ids=repr)
def test_a_length_that_is_no_whole_number_is_refused(run: Any, k: object, tmp_path: Path) -> None:
    calls = [partial(run.recommend, ["u1"]), partial(run.recommend_new, [["i1"]]), run.recommend_all,
             partial(run.similar_items, "i1"), partial(run.similar_users, "u1"),
             partial(run.export, tmp_path / "lists.csv")]  # fmt: skip
    for call in calls:
        with pytest.raises(ConfigError, match=r"k = .* is not the length of a list: use `?k=20"):
            call(k=k)
    for lengths in ([], [k]):
        with pytest.raises(ConfigError, match="length of a list"):
            run.evaluate(k=lengths)


def test_several_lengths_are_evaluated_at_once(run: Run) -> None:
    both = run.evaluate(k=[3, 7])
    assert [each.k for each in both] == [3, 7]
    for each in both:
        alone = hmlet.ranking.evaluation.evaluate(run.scored, run.data, "test", "train", each.k)
        assert each.metrics == alone.metrics
        assert all(np.array_equal(each.per_user[name], alone.per_user[name]) for name in alone.per_user)
    assert hmlet.evaluate(run, k=[7, 3]).to_frame()["recall"].to_list() == [
        both[1].metrics["recall"], both[0].metrics["recall"]
    ]  # fmt: skip
    assert both[0].to_frame()["ndcg"].to_list() == [both[0].metrics["ndcg"]]


class Cells(HTMLParser):
    """The text of a table's cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def test_notebooks_show_tables_with_names(named: Run) -> None:
    answers = named.recommend(["u1"], 2)
    best = answers[0]["items"][0]
    assert best["name"] == f"Title <{best['item']}>"
    cells = Cells(answers._repr_html_()).cells
    assert cells[:6] == ["<Recommendations for 1 users, 2 rows>", "user", "item", "rank", "score", "name"]
    assert cells[6:11] == ["u1", best["item"], "1", f"{best['score']:.4g}", best["name"]]
    assert "and 28 more rows" in named.recommend_all(1)._repr_html_()
    assert Cells(named.data._repr_html_()).cells[1:3] == ["users", "items"]
    assert "best epoch" in Cells(named._repr_html_()).cells
    assert "ndcg" in Cells(named.evaluate()._repr_html_()).cells
    assert "model" in Cells(hmlet.compare(named, named.directory.path)._repr_html_()).cells


def test_a_path_opens_a_run_and_vocabularies_iterate(named: Run) -> None:
    again = Run(named.directory.path)
    assert repr(again) == repr(Run.open(str(named.directory.path)))
    assert list(again.data.users)[:2] == ["u0", "u1"]
    assert repr(again.data.items) == "<Vocabulary of 24 items: 'i0', 'i1', 'i10', …>"
    assert again.data.to_frame().height == len(again.data)
