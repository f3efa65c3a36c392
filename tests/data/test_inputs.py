"""What people have becomes the same data set: frames, matrices, files, own parts; and weights reach the models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch

import hmlet
from hmlet import Dataset
from hmlet.data import Csr
from hmlet.data.inputs import as_dataset, as_pairs
from hmlet.errors import ConfigError, DataError
from hmlet.graph import Graph
from hmlet.losses.sampling import PairSampler, TripletSampler
from hmlet.models import MODELS

PLAYS = {"user": [0, 0, 1, 1, 2, 2], "item": [0, 1, 1, 2, 2, 0], "plays": [5, 1, 2, 2, 1, 9]}
MATRIX = sp.csr_matrix((PLAYS["plays"], (PLAYS["user"], PLAYS["item"])), shape=(4, 3))  # the fourth user has nothing


def pairs(data: Dataset, part: str) -> set[tuple[object, object]]:
    where = data.slice(part)
    return {
        (data.users.id(int(u)), data.items.id(int(i))) for u, i in zip(data.user[where], data.item[where], strict=True)
    }


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.table])
def test_every_frame_is_the_same_data_set(make: Any, tmp_path: Path) -> None:
    expected = Dataset.from_frame(pl.DataFrame(PLAYS))
    assert as_dataset(make(PLAYS)).fingerprint == expected.fingerprint
    pl.DataFrame(PLAYS).write_csv(tmp_path / "plays.csv")
    assert as_dataset(str(tmp_path / "plays.csv")).fingerprint == expected.fingerprint
    assert as_dataset(expected) is expected


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csr_array, sp.coo_matrix, sp.csc_array])
def test_a_matrix_keeps_its_rows_columns_and_values(make: Any) -> None:
    data = as_dataset(make(MATRIX))
    assert (list(data.users), list(data.items)) == ([0, 1, 2, 3], [0, 1, 2])
    seen = {(int(u), int(i)): float(w) for u, i, w in zip(data.user, data.item, data.weight, strict=True)}
    assert seen == {(u, i): w for u, i, w in zip(*PLAYS.values(), strict=True)}
    plain = as_dataset(make(MATRIX != 0))
    assert plain.weight is None
    named = Dataset.from_matrix(make(MATRIX), users=["a", "b", "c", "d"], items=[7, 8, 9], split="ratio:1,0,0")
    assert ("a", 7) in pairs(named, "train")


def test_matrices_that_are_no_interactions_are_refused() -> None:
    with pytest.raises(DataError, match="negative or not finite"):
        as_dataset(-MATRIX)
    with pytest.raises(DataError, match="no interactions"):
        as_dataset(sp.csr_matrix((3, 3)))
    with pytest.raises(DataError, match="`items` has 2 ids, 2 of them distinct, and the matrix has 3 items"):
        Dataset.from_matrix(MATRIX, items=["x", "y"])
    with pytest.raises(DataError, match="cannot read interactions from a list"):
        as_dataset([("ann", "So What")])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the matrix is a ndarray, and not one of SciPy's sparse ones: convert"):
        Dataset.from_matrix(MATRIX.toarray())
    with pytest.raises(DataError, match=r"a DataFrame is not the path of a file: use `Dataset.from_frame`"):
        Dataset.from_file(pd.DataFrame(PLAYS))  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [np.arange(3.0), [0.5, 1.5, 2.5], ["a", None, "b"]], ids=["whole", "broken", "missing"])
def test_ids_of_a_matrix_are_integers_or_text(ids: Any) -> None:
    with pytest.raises(DataError, match=r"`items` has the id .*: make every id an integer or text"):
        Dataset.from_matrix(MATRIX, items=ids)
    large = [2**70, 2**70 + 1, 7]
    assert list(Dataset.from_matrix(MATRIX, items=large).items) == [*map(str, large)]  # as in a file


def test_own_parts_stay_what_they_are(tmp_path: Path) -> None:
    rows = pl.DataFrame({"user": ["a", "a", "b"], "item": ["x", "y", "x"], "fold": ["train", "Test", "val"]})
    by_column = Dataset.from_frame(rows, split="column:fold")
    parts = {part: rows.filter(pl.col("fold") == word) for part, word in
             (("train", "train"), ("valid", "val"), ("test", "Test"))}  # fmt: skip
    parts["test"].write_csv(tmp_path / "test.csv")
    given = Dataset.from_parts(parts["train"].to_pandas(), valid=parts["valid"].to_arrow(), test=tmp_path / "test.csv")
    for data in (by_column, given):
        found = {part: pairs(data, part) for part in ("train", "valid", "test")}
        assert found == {"train": {("a", "x")}, "valid": {("b", "x")}, "test": {("a", "y")}}
    assert given.fingerprint == by_column.fingerprint
    split = [sp.csr_matrix(each) for each in ([[1, 0], [0, 3]], [[0, 1], [0, 0]])]
    matrices = Dataset.from_parts(train=split[0], test=split[1])
    assert (pairs(matrices, "train"), pairs(matrices, "test")) == ({(0, 0), (1, 1)}, {(0, 1)})
    assert matrices.csr("train").weights is not None
    with pytest.raises(DataError, match="1 interactions are in more than one part, such as user 'a' with item 'x'"):
        Dataset.from_parts(train=parts["train"], test=parts["train"])
    with pytest.raises(DataError, match="'fold': 'x' is not a part: use train, valid or test"):
        Dataset.from_frame(rows.with_columns(fold=pl.lit("x")), split="column:fold")
    with pytest.raises(ConfigError, match="there is no option `usr`: did you mean `user`"):
        Dataset.from_frame(rows, usr="user")  # type: ignore[call-arg]


def test_pairs_of_every_kind() -> None:
    expected = (["a", "b"], [1, 2])
    assert as_pairs([("a", 1), ("b", 2)]) == expected
    assert as_pairs(pd.DataFrame({"item": [1, 2], "user": ["a", "b"]})) == expected
    assert as_pairs(np.array([["a", 1], ["b", 2]], dtype=object)) == expected
    for wrong in ([("a", 1, 5)], ("u1", 101), ("u1", "i1"), "u1", 3):
        with pytest.raises(DataError, match="a user and an item: give a list of two values each"):
            as_pairs(wrong)


# -- weights ------------------------------------------------------------------------------------------------------


def test_weights_of_duplicates_add_up_and_survive_a_save(tmp_path: Path) -> None:
    twice = pl.DataFrame({"user": ["a", "b", "a"], "item": ["x", "x", "x"], "plays": ["1,5", "2", "2"]})
    data = Dataset.from_frame(twice, weight="plays", decimal=",", split="ratio:1,0,0")
    assert data.weight.tolist() == [3.5, 2.0]
    again = Dataset.load(data.save(tmp_path / "plays"))
    assert again.weight.tolist() == [3.5, 2.0]
    assert again.fingerprint == data.fingerprint != Dataset.from_frame(twice, split="ratio:1,0,0").fingerprint
    for bad in (0, -1, float("nan"), 1e-50, 1e39):
        with pytest.raises(DataError, match=r"'plays': the weight .* is not a positive 32-bit float"):
            Dataset.from_frame(pl.DataFrame({"user": [1], "item": [2], "plays": [bad]}), weight="plays")


def test_weights_beyond_32_bits_are_refused_with_their_row(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("user,item,plays\na,x,1e-40\na,y,1e-50\nb,y,3e38\nb,x,2\n")
    with pytest.raises(DataError, match=r"line 3, .* the weight '1e-50' is not a positive 32-bit float"):
        Dataset.from_file(tmp_path / "f.csv", weight="plays")
    kept = Dataset.from_file(tmp_path / "f.csv", weight="plays", skip_bad=True)
    assert np.allclose(sorted(kept.weight), [1e-40, 2, 3e38])
    with pytest.raises(DataError, match=r"the weight 6e\+38, with its duplicate rows added up, .* scale the weights"):
        Dataset.from_file(tmp_path / "f.csv", tmp_path / "f.csv", weight="plays", skip_bad=True)
    with pytest.raises(DataError, match=r"the weight 5e-50, .* scale the weights"):
        as_dataset(MATRIX * 1e-50)


@pytest.mark.parametrize("sampler", [partial(PairSampler, positives=1, others=0), TripletSampler])
def test_a_draw_by_weight_has_the_weights_as_frequencies(sampler: Any) -> None:
    train = Csr(np.array([0, 2, 4, 7]), np.array([0, 1, 1, 2, 0, 1, 2], np.int32), np.float32([1, 3, 2, 2, 9, 9, 9]))
    batch = sampler(train, 3, draw="weight").sample(40_000, torch.Generator().manual_seed(1))
    drawn = np.stack([batch.user.numpy(), batch.positive.numpy().reshape(-1)], axis=1)
    found, counts = np.unique(drawn, axis=0, return_counts=True)
    assert found.tolist() == [[0, 0], [0, 1], [1, 1], [1, 2]]  # the third user has every item, and no negative
    assert counts / len(drawn) == pytest.approx(np.array([1, 3, 2, 2]) / 8, abs=0.01)


def test_drawing_by_weight_needs_weights(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="draw = weight needs weights"):
        hmlet.fit(MATRIX != 0, "bpr", tmp_path / "run", device="cpu", draw="weight", epochs=1)


def test_wrmf_takes_weights_as_confidence() -> None:
    """One solution of the users against c = 1 + α r, in NumPy."""
    train = Dataset.from_matrix(MATRIX, split="ratio:1,0,0").csr("train")
    config = MODELS["wrmf"].Config(embedding_size=2, alpha=2.0)
    model = MODELS["wrmf"](config, Graph.from_csr(train, 3), torch.Generator().manual_seed(1))
    items_ID = model.embedding[4:].detach().double().numpy()
    model.solve(train)
    solved_UD = model.embedding[:4].numpy()
    dense_UI = MATRIX.toarray()
    for user in range(3):
        confidence = np.diag(np.where(dense_UI[user] > 0, 1 + 2.0 * dense_UI[user], 1.0))
        left = items_ID.T @ confidence @ items_ID + config.regularization * np.eye(2)
        expected = np.linalg.solve(left, items_ID.T @ confidence @ (dense_UI[user] > 0))
        assert solved_UD[user] == pytest.approx(expected, rel=1e-5)
