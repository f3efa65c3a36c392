"""Fold-in against what training stored: an existing node, folded in with what it has, is itself again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from finished import NAMES, finished
from planted import dataset

from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.errors import ConfigError, DataError, UnknownId
from hmlet.recommend.foldin import FoldIn
from hmlet.runs.directory import RunDirectory
from hmlet.runs.locking import locked

ALL = ["hmlet-all", *(name for name in NAMES if name != "hmlet-all")]


@pytest.fixture(scope="module", params=ALL)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(request.param, tmp_path_factory.mktemp("run") / "run")


def neighbours(fold: FoldIn, node: int) -> np.ndarray:
    """A node's neighbours as indices of their own side."""
    bounds = fold.graph.indptr[node : node + 2]
    nodes = fold.graph.neighbours[bounds[0] : bounds[1]]
    return nodes - fold.graph.n_users if node < fold.graph.n_users else nodes


@pytest.mark.parametrize("side", ["user", "item"])
def test_existing_nodes_with_their_own_embedding_get_their_stored_factors(run: Run, side: str) -> None:
    fold = run.fold_in
    start, end = (0, fold.graph.n_users) if side == "user" else (fold.graph.n_users, fold.graph.n_nodes)
    lists = fold.lists_of(side, [neighbours(fold, node) for node in range(start, end)])  # type: ignore[arg-type]
    found = fold.propagate(lists, fold.inputs[0][start:end])
    torch.testing.assert_close(found, run.factors[side == "item"], rtol=1e-6, atol=1e-6)


def test_an_edited_user_with_its_own_items_is_itself(run: Run) -> None:
    fold = run.fold_in
    for user in (0, 7, 30):
        own = fold.own_items(user)
        found = fold.edited_user(user, [own, own[::-1]])
        torch.testing.assert_close(found, run.factors[0][user].expand(2, -1), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(fold.user_with(user, []), run.factors[0][user], rtol=1e-6, atol=1e-6)
        assert not torch.allclose(fold.user_with(user, [(own[0] + 1) % 24]), run.factors[0][user], atol=1e-4)


def test_a_batch_is_its_members(run: Run) -> None:
    fold = run.fold_in
    lists = [[0, 2, 4], [1], [2, 2, 0, 4, 0]]
    together = fold.users(lists)
    assert together.shape == (3, run.factors[0].shape[1])
    for at, each in enumerate(lists):
        torch.testing.assert_close(together[at], fold.users([each])[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(together[0], fold.users([[4, 0, 2]])[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fold.users([[2, 0, 4]])[0], together[2], rtol=1e-6, atol=1e-6)
    assert fold.users([]).shape == (0, run.factors[0].shape[1])
    assert fold.items([[0, 1, 2]]).shape == (1, run.factors[1].shape[1])
    assert torch.isfinite(together).all()


def test_nobody_and_unknown_items_are_refused(run: Run) -> None:
    with pytest.raises(DataError, match=r"new user 2 has no items"):
        run.fold_in.users([[0], []])
    with pytest.raises(DataError, match=r"new item 1 has no users"):
        run.fold_in.items([[]])
    with pytest.raises(UnknownId, match=r"item 'i99' is not in the data set"):
        run.recommend_new([["i1", "i99"]])


@pytest.mark.parametrize("model", ["hmlet-end", "lightgcn", "bpr", "wrmf"])
def test_a_newcomer_of_a_block_gets_the_rest_of_it(model: str, tmp_path: Path) -> None:
    """The board is learnt, so someone with half of a block's items is shown the other half, and nothing else."""
    run = finished(model, tmp_path / "run", "train.epochs=40")
    for block in (0, 1):
        own = [f"i{block + 2 * index}" for index in range(6)]
        (answer,) = run.recommend_new([own], 6)
        assert {each["item"] for each in answer["items"]} == {f"i{block + 2 * index}" for index in range(6, 12)}
    new_item = run.fold_in.items([range(0, 48, 2)])[0]
    scores = run.factors[0] @ new_item
    assert scores[0::2].min() > scores[1::2].max()


def test_items_that_no_one_had_say_nothing_of_a_newcomer(tmp_path: Path) -> None:
    board = dataset(2, 3, train=[(0, 0), (1, 1)], valid=[], test=[(0, 2)])
    run = fit(board, resolve("lightgcn", overrides=["train.epochs=1"]), tmp_path / "run", device="cpu")
    with pytest.raises(DataError, match="new user 1 has no trained items"):
        run.fold_in.users([[2]])


def test_random_gates_and_missing_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gates\.3\.choice_N2 has numbers for trained ones alone"):
        _ = finished("hmlet-end", tmp_path / "random", 'model.gate_choice="random"').fold_in
    with pytest.raises(ConfigError, match=r"no layers\.safetensors"):
        _ = finished("hmlet-end", tmp_path / "bare", "train.save_layers=false").fold_in


def test_layers_that_were_propagated_in_bfloat16_are_stored_so_and_followed(tmp_path: Path) -> None:
    run = finished("lightgcn", tmp_path / "run")
    expected = run.fold_in.users([[0, 2, 4]])
    directory, name = RunDirectory.open(tmp_path / "run"), "layers.safetensors"
    layers = directory.read_tensors(name)
    narrow = {at: each if at == "0" else each.bfloat16() for at, each in layers.items()}
    with locked(directory.path):
        directory.write_tensors(name, narrow)
        directory.write_record()
    found = Run.open(tmp_path / "run").fold_in.users([[0, 2, 4]])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("readout", ["mean", "layerwise"])
@pytest.mark.parametrize("ranking", ["argmax", "soft"])
def test_other_readouts_and_soft_gates_are_followed(readout: str, ranking: str, tmp_path: Path) -> None:
    choices = [f'model.readout="{readout}"', f'model.gate_ranking="{ranking}"', 'model.nonlinear_input="gated"']
    run = finished("hmlet-all", tmp_path / "run", *choices)
    found = run.fold_in.edited_user(3, [run.fold_in.own_items(3)])[0]
    torch.testing.assert_close(found, run.factors[0][3], rtol=1e-6, atol=1e-6)
