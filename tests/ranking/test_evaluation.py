"""Evaluation against a naive full ranking with masks and ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import oracles
import planted
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hmlet.data import Dataset
from hmlet.errors import ConfigError, NothingHeldOut
from hmlet.ranking import evaluation
from hmlet.ranking.evaluation import (
    Evaluation,
    Membership,
    block_size,
    blocks_at_once,
    evaluate,
    mask_parts,
    rank_blocks,
)
from hmlet.system.ranks import Ranks

CASES = [("valid", "train"), ("test", "train"), ("test", "train+valid")]
N_USERS, N_ITEMS = 9, 40


def random_case(seed: int) -> tuple[Dataset, tuple[Tensor, Tensor]]:
    """Interactions in random parts, some users without any, and integer factors with many ties."""
    rng = np.random.default_rng(seed)
    parts: dict[str, list[tuple[int, int]]] = {"train": [], "valid": [], "test": []}
    for pair in planted.random_pairs(seed, N_USERS - 1, N_ITEMS, 0.3):
        parts[rng.choice(["train", "train", "valid", "test"])].append(pair)
    users_UF, items_IF = (rng.integers(-2, 3, (count, 3)).astype(np.float32) for count in (N_USERS, N_ITEMS))
    return planted.dataset(N_USERS, N_ITEMS, **parts), (torch.from_numpy(users_UF), torch.from_numpy(items_IF))


def check(data: Dataset, factors: tuple[Tensor, Tensor], split: str, mask: str, k: int) -> None:
    held_out, hidden = data.csr(split), [data.csr(part) for part in mask.split("+")]
    users, rows, covered = [], [], set()
    for user in range(data.n_users):
        relevant = set(held_out.row(user).tolist())
        if not relevant:
            continue
        hide = {item for part in hidden for item in part.row(user).tolist()}
        ranked = oracles.ranking(factors[0][user].numpy(), factors[1].numpy(), k, hide)
        users.append(user)
        covered |= set(ranked)
        rows.append(oracles.metrics(ranked, relevant, k))
    found = evaluate(factors, data, split, mask, k)
    assert found.users.tolist() == users
    for name, values in found.per_user.items():
        np.testing.assert_allclose(values, [row[name] for row in rows], rtol=1e-12, atol=1e-15)
        mean = sum(row[name] for row in rows) / len(rows) if rows else 0.0
        assert found.metrics[name] == pytest.approx(mean, rel=1e-12)
    assert found.coverage == found.metrics["coverage"] == pytest.approx(len(covered) / data.n_items)
    assert found.as_json() == {"split": split, "mask": mask, "k": k, "users": len(users), "metrics": found.metrics}


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(CASES), st.sampled_from([1, 3, 10, 60]))
def test_evaluation_equals_the_naive_loop(seed: int, case: tuple[str, str], k: int) -> None:
    check(*random_case(seed), *case, k)


@pytest.mark.parametrize(("split", "mask"), CASES)
def test_blocks_of_any_size_give_the_same(split: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, factors = random_case(3)
    whole = evaluate(factors, data, split, mask, 5)
    for users_at_once in (1, 4):
        monkeypatch.setitem(evaluation.BLOCK_BYTES, "cpu", users_at_once * 4 * N_ITEMS)
        blocks = evaluate(factors, data, split, mask, 5)
        assert all(np.array_equal(blocks.per_user[name], whole.per_user[name]) for name in whole.per_user)
        assert blocks.metrics == whole.metrics


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch with three threads, and blocks of one user."""
    monkeypatch.setitem(evaluation.BLOCK_BYTES, "cpu", 4 * N_ITEMS)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("joined", [1, 2, 2048])
def test_blocks_side_by_side(joined: int, three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users stay in order whichever thread is done first, and however many share a computation of metrics."""
    monkeypatch.setattr(evaluation, "JOINED", joined)
    for seed in range(5):
        check(*random_case(seed), "test", "train", 5)
        assert torch.get_num_threads() == 3


def test_threads_are_as_before_when_ranking_is_left_early_or_fails(three_threads: None) -> None:
    data, (users_UF, items_IF) = random_case(1)
    every = np.arange(N_USERS)
    blocks = rank_blocks(users_UF, items_IF, every, 5, data.csr("train"))
    first, _ = next(blocks)
    assert first.tolist() == [0]
    blocks.close()  # type: ignore[attr-defined]
    assert torch.get_num_threads() == 3
    with pytest.raises(ValueError, match="matmul"):
        list(rank_blocks(users_UF[:, :2], items_IF, every, 5, None))  # factors of two sizes
    assert torch.get_num_threads() == 3


def test_a_perfect_model_on_the_checkerboard() -> None:
    """Factors that know each block: with train and valid masked, the one item left of the block is the test item."""
    data = planted.checkerboard(blocks=3, users=10, items=6)
    users_UF = torch.eye(3)[torch.arange(data.n_users) % 3]
    items_IF = torch.eye(3)[torch.arange(data.n_items) % 3]
    best = evaluate((users_UF, items_IF), data, "test", "train+valid", 1)
    assert set(best.metrics.values()) == {1.0}
    both = evaluate((users_UF, items_IF), data, "valid", "train", 2)
    assert both.metrics["recall"] == 1.0
    assert evaluate((-users_UF, items_IF), data, "test", "train+valid", 1).metrics["recall"] == 0.0


def test_the_checkerboard_holds_what_it_says() -> None:
    data = planted.checkerboard(blocks=2, users=24, items=12)
    assert (data.n_users, data.n_items) == (48, 24)
    train, valid, test = (data.csr(part) for part in ("train", "valid", "test"))
    assert set(train.counts) == {10}
    assert set(valid.counts) == set(test.counts) == {1}
    for user in range(48):
        own = np.concatenate([part.row(user) for part in (train, valid, test)])
        assert sorted(own.tolist()) == list(range(user % 2, 24, 2))
    assert set(np.bincount(train.items)) == {20}, "no item is special"


def test_progress_counts_users_up_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    data, factors = random_case(3)
    monkeypatch.setitem(evaluation.BLOCK_BYTES, "cpu", 4 * N_ITEMS)
    monkeypatch.setattr(evaluation, "JOINED", 2)
    told: list[tuple[float, float | None]] = []
    found = evaluate(factors, data, "test", advance=lambda done, total=None, text="": told.append((done, total)))
    users = len(found.users)
    assert told == [(min(done, users), users) for done in range(2, users + 2, 2)]


def test_nobody_to_evaluate() -> None:
    factors = torch.ones(2, 2), torch.ones(3, 2)
    data = planted.dataset(2, 3, train=[(0, 0), (1, 1)])
    with pytest.raises(NothingHeldOut, match="no user of planted has a held-out item in the test part: prepare it"):
        evaluate(factors, data, "test")
    data = planted.dataset(2, 3, train=[(0, 0), (1, 1)], valid=[(0, 1)])
    with pytest.raises(NothingHeldOut, match='in the test part: use split="valid"'):
        evaluate(factors, data, "test")


def test_membership() -> None:
    held = Membership(planted.csr([(0, 2), (2, 0), (2, 3)], 3), 4, torch.device("cpu"))
    items_BK = torch.tensor([[2, 3, -1, 0], [0, 1, 2, -1], [3, 0, 1, -1]])
    assert held(torch.arange(3), items_BK).int().tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("split", "mask", "k", "words"),
    [
        ("valid", "train+valid", 20, ["train+valid", "valid", 'mask="train"']),
        ("test", "all", 20, ["all", "test", 'mask="train"']),
        ("test", "everything", 20, ["everything", "train or train+valid"]),
        ("train", "train", 20, ["train", "valid or test"]),
        ("test", "train", 0, ["k = 0", "k=20"]),
    ],
)
def test_mistakes_are_named_with_their_fix(split: str, mask: str, k: int, words: list[str]) -> None:
    data, factors = random_case(1)
    with pytest.raises(ConfigError) as error:
        evaluate(factors, data, split, mask, k)
    assert all(word in str(error.value) for word in words)


def test_mask_parts() -> None:
    assert mask_parts("test", "train+valid") == ("train", "valid")
    assert mask_parts("valid", "train") == ("train",)


@pytest.mark.parametrize(("split", "fix"), [("test", "use train or train+valid"), ("valid", "use train")])
def test_an_unknown_mask_is_answered_with_those_that_fit_the_split(split: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        mask_parts(split, "foo")
    assert str(refused.value) == f"there is no mask 'foo': {fix}"


def test_a_model_is_evaluated_as_it_is_selected_unless_told_otherwise() -> None:
    generator, data = torch.Generator().manual_seed(1), planted.checkerboard()
    factors = (torch.randn(48, 3, generator=generator), torch.randn(24, 3, generator=generator))
    found = evaluate(factors, data)
    assert (found.split, found.mask, found.k) == ("valid", "train", 20)


def test_an_evaluation_is_shown_in_one_line() -> None:
    found = Evaluation("test", "train", 20, np.arange(1200), {"ndcg": np.full(1200, 0.25), "mrr": np.ones(1200)}, 0.5)
    assert repr(found) == "<Evaluation on test, 1,200 users, @20: ndcg 0.2500>"


@dataclass(frozen=True)
class FirstOfTwo(Ranks):
    """A rank with some columns of the users' factors; it knows the others for this test."""

    other_UF: Tensor | None = None

    def own_whole(self, x_NF: Tensor, width: int) -> Tensor:
        assert self.other_UF is not None
        assert x_NF.shape == (len(self.other_UF), width)
        return torch.cat([x_NF, self.other_UF], dim=1)


def test_users_columns_are_exchanged_before_they_are_ranked() -> None:
    generator = torch.Generator().manual_seed(3)
    users_UF, items_IF = torch.randn(6, 4, generator=generator), torch.randn(15, 4, generator=generator)
    ranks, everyone = FirstOfTwo(other_UF=users_UF[:, 3:]), np.arange(6)
    ((block, found),) = rank_blocks(users_UF[:, :3], items_IF, everyone, 5, None, ranks=ranks, width=3)
    assert block.tolist() == everyone.tolist()
    expected = (users_UF.double() @ items_IF.double().T).sort(dim=1, descending=True)
    assert torch.equal(found.items_BK, expected.indices[:, :5])


def test_blocks_are_as_large_as_their_memory_and_as_many_as_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluation.BLOCK_BYTES, "cpu", 4 * 1000 * 7)
    assert [block_size(n_items, "cpu") for n_items in (1000, 3500, 10_000)] == [7, 2, 1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [blocks_at_once(users, 10, "cpu") for users in (0, 10, 11, 100)] == [1, 1, 2, 4]
    assert blocks_at_once(100, 10, "cuda") == blocks_at_once(100, 10, "cpu", Ranks(size=2)) == 1
