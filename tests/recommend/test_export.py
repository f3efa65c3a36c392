"""Export is evaluation's ranking in the users' own ids: its file gives the same metrics to an independent loop."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from finished import finished
from planted import dataset, random_pairs

from hmlet.api import Run
from hmlet.data import Dataset, Interactions, Vocabulary
from hmlet.errors import ConfigError, UnknownId
from hmlet.ranking import evaluation
from hmlet.ranking import top_k as ranking
from hmlet.recommend import export
from hmlet.system.progress import Advance


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished("hmlet-end", tmp_path_factory.mktemp("run") / "run")


def rows(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return [
        {**row, "rank": int(row["rank"]), "score": float(row["score"])} for row in csv.DictReader(text.splitlines())
    ]


class Planted:
    """A data set and factors, as an export asks of a run."""

    def __init__(self, data: Dataset, factors: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.data, self.factors, self.scored = data, factors, factors


def many() -> Planted:
    """Random pairs in three parts, so that users have several held-out items or none, and random factors."""
    pairs = random_pairs(0, 40, 30, 0.5)
    part = np.random.default_rng(1).choice(["train", "valid", "test"], len(pairs), p=[0.5, 0.2, 0.3])
    of = {
        name: [pair for pair, own in zip(pairs, part, strict=True) if own == name]
        for name in ("train", "valid", "test")
    }
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(41, 6, generator=generator), torch.randn(30, 6, generator=generator)
    return Planted(dataset(41, 30, **of), factors)  # the last user has nothing


@pytest.mark.parametrize("mask", ["train", "train+valid"])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_metrics_of_the_exported_file_are_those_of_evaluate(suffix: str, mask: str, tmp_path: Path) -> None:
    run, path, k = many(), tmp_path / f"topn{suffix}", 5
    assert export.export(run, path, k, mask=mask) == len(rows(path))
    lists: dict[object, list[object]] = {}
    for row in rows(path):
        assert row["rank"] == len(lists.setdefault(row["user"], [])) + 1
        lists[row["user"]].append(row["item"])
    held: dict[str, set[str]] = {}
    where = run.data.slice("test")
    for user, item in zip(run.data.user[where], run.data.item[where], strict=True):
        held.setdefault(f"u{user}", set()).add(f"i{item}")
    assert max(map(len, held.values())) > k > min(map(len, held.values()))
    ndcg, recall, precision = [], [], []
    for user, items in held.items():
        hits = [item in items for item in lists[user]]
        gain = sum(1 / math.log2(place + 2) for place, hit in enumerate(hits) if hit)
        ndcg.append(gain / sum(1 / math.log2(place + 2) for place in range(min(k, len(items)))))
        recall.append(sum(hits) / len(items))
        precision.append(sum(hits) / k)
    metrics = evaluation.evaluate(run.factors, run.data, "test", mask, k).metrics
    for name, values in (("ndcg", ndcg), ("recall", recall), ("precision", precision)):
        assert metrics[name] == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_export_of_a_trained_run_has_every_user(run: Run, tmp_path: Path) -> None:
    assert run.export(tmp_path / "topn.parquet", 5) == run.data.n_users * 5
    assert set(pq.read_table(tmp_path / "topn.parquet")["user"].to_pylist()) == {f"u{at}" for at in range(48)}


def test_export_says_what_recommend_says(run: Run, tmp_path: Path) -> None:
    """Without a word about the mask, too: nobody is offered what he has."""
    run.export(tmp_path / "two.jsonl", 4, ["u7", "u3"], allow=["i1", "i3", "i5", "i7"], deny=["i3"])
    answers = run.recommend(["u7", "u3"], 4, allow=["i1", "i3", "i5", "i7"], deny=["i3"])
    expected = [
        {"user": answer["user"], "item": each["item"], "rank": rank, "score": each["score"]}
        for answer in answers
        for rank, each in enumerate(answer["items"], 1)
    ]
    assert rows(tmp_path / "two.jsonl") == expected
    assert {row["item"] for row in expected} <= {"i1", "i5", "i7"}
    export.export(run, tmp_path / "all.jsonl", run.data.n_items)
    known = {
        (f"u{user}", f"i{item}")
        for part in ("train", "valid", "test")
        for user, item in zip(run.data.user[run.data.slice(part)], run.data.item[run.data.slice(part)], strict=True)
    }
    exported = {(row["user"], row["item"]) for row in rows(tmp_path / "all.jsonl")}
    assert exported == {(f"u{user}", f"i{item}") for user in range(48) for item in range(24)} - known


def numbered() -> Planted:
    """Integer ids, and factors whose order is plain to see."""
    interactions = Interactions(
        np.array([0, 1], dtype=np.int32),
        np.array([2, 0], dtype=np.int32),
        Vocabulary("user", pa.array([70, 80])),
        Vocabulary("item", pa.array([100, 200, 300])),
    )
    data = Dataset("planted", interactions, np.zeros(2, dtype=np.uint8))
    return Planted(data, (torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0], [2.0], [3.0]])))


def test_ids_keep_their_type_and_short_lists_stay_short(tmp_path: Path) -> None:
    export.export(numbered(), tmp_path / "topn.parquet", k=5)
    table = pq.read_table(tmp_path / "topn.parquet")
    assert table.schema.field("user").type == table.schema.field("item").type == pa.int64()
    assert table.to_pylist() == [
        {"user": 70, "item": 200, "rank": 1, "score": 2.0},
        {"user": 70, "item": 100, "rank": 2, "score": 1.0},
        {"user": 80, "item": 200, "rank": 1, "score": -2.0},
        {"user": 80, "item": 300, "rank": 2, "score": -3.0},
    ]


def test_blocks_do_not_show(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float | None]] = []
    run.export(tmp_path / "whole.csv", 3)
    monkeypatch.setitem(evaluation.BLOCK_BYTES, "cpu", 4 * run.data.n_items * 10)

    @contextmanager
    def progress(title: str) -> Iterator[Advance]:
        yield lambda done, total=None, text="": seen.append((done, total))

    run.export(tmp_path / "blocks.csv", 3, progress=progress)
    assert (tmp_path / "whole.csv").read_bytes() == (tmp_path / "blocks.csv").read_bytes()
    assert seen == [(done, 48) for done in (0, 10, 20, 30, 40, 48)]


def test_a_failure_leaves_the_old_file_and_nothing_else(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "topn.csv"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "ranked_table", full)
    with pytest.raises(ConfigError, match=r"cannot write .*topn\.csv: No space left"):
        run.export(path, 3)
    assert [each.name for each in tmp_path.iterdir()] == ["topn.csv"]
    assert path.read_text() == "old"


def test_mistakes_are_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"topn\.xlsx does not end in \.parquet, \.csv, \.jsonl"):
        run.export(tmp_path / "topn.xlsx")
    with pytest.raises(ConfigError, match="k = 0 is not the length of a list"):
        run.export(tmp_path / "topn.csv", 0)
    for ask in (
        lambda: run.recommend(["u1"], 0),
        lambda: run.recommend_new([["i1"]], 0),
        lambda: run.similar_items("i1", 0),
    ):
        with pytest.raises(ConfigError, match="k = 0 is not the length of a list"):
            ask()
    with pytest.raises(ConfigError, match="there is no mask 'everything'"):
        run.export(tmp_path / "topn.csv", mask="everything")
    with pytest.raises(UnknownId, match="item 'i77'"):
        run.export(tmp_path / "topn.csv", deny=["i77"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "whose"),
    [("ids.parquet", "run"), ("data/interactions.parquet", "data set"), ("data/users.parquet", "data set")],
)
def test_a_file_that_a_record_names_is_not_replaced(run: Run, name: str, whose: str) -> None:
    path = run.directory.path / name
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=rf"{path} is a file of the {whose} in .*: choose another `out`"):
        run.export(path)
    assert path.read_bytes() == before


def test_a_file_beside_a_record_is_replaced(run: Run) -> None:
    for place in (run.directory.path, run.directory.path / "data"):
        (place / "topn.csv").write_text("old")
        assert run.export(place / "topn.csv") == len(rows(place / "topn.csv"))
        (place / "topn.csv").unlink()


def test_similar_is_the_largest_cosine_without_oneself(run: Run) -> None:
    for ask, factors, kind in (
        (run.similar_items, run.factors[1], "item"),
        (run.similar_users, run.factors[0], "user"),
    ):
        x = factors.double().numpy()
        cosine = (x @ x[2]) / np.linalg.norm(x, axis=1) / np.linalg.norm(x[2])
        cosine[2] = -2
        found = ask(f"{kind[0]}2", 4)
        assert [each[kind] for each in found] == [f"{kind[0]}{at}" for at in np.argsort(-cosine, kind="stable")[:4]]
        assert [each["score"] for each in found] == pytest.approx(np.sort(cosine)[::-1][:4].tolist(), abs=1e-6)


def test_allow_and_deny() -> None:
    one, two = np.array([1, 2]), np.array([2])
    assert ranking.allowed_items(4) is None
    assert ranking.allowed_items(4, one).tolist() == [False, True, True, False]  # type: ignore[union-attr]
    assert ranking.allowed_items(4, None, two).tolist() == [True, True, False, True]  # type: ignore[union-attr]
    assert ranking.allowed_items(4, one, two).tolist() == [False, True, False, False]  # type: ignore[union-attr]
    assert ranking.allowed_items(2, np.empty(0, np.int64)).tolist() == [False, False]  # type: ignore[union-attr]
