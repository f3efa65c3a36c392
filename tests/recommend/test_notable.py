"""Users worth a look, on lists that are known."""

from __future__ import annotations

import numpy as np
import oracles
import torch
from gated_run import small_data

from hmlet.ranking.scoring import HostFactorScorer
from hmlet.ranking.top_k import NO_ITEM
from hmlet.recommend.notable import LIST, Notable, notable


def test_hits_and_usualness_are_those_of_a_loop() -> None:
    data = small_data(40, 60)
    generator = torch.Generator().manual_seed(3)
    users, items = torch.randn(40, 4, generator=generator), torch.randn(60, 4, generator=generator)
    found = notable((users, HostFactorScorer(items)), data)
    train, everything = data.csr("train"), data.csr("train", "valid", "test")
    lists = [oracles.ranking(users[u].numpy(), items.numpy(), LIST, set(train.row(u).tolist())) for u in found.users]
    share = {item: sum(item in each for each in lists) / len(lists) for item in range(60)}
    for at, (user, ranked) in enumerate(zip(found.users.tolist(), lists, strict=True)):
        held_out = set(everything.row(user).tolist()) - set(train.row(user).tolist())
        assert found.hits[at] == len(held_out & set(ranked))
        assert found.held_out[at] == len(held_out)
        assert np.isclose(found.usual[at], np.mean([share[item] for item in ranked]))
    assert found.hits[found.most_hits(1)[0]] == found.hits.max()
    assert found.usual[found.most_typical(1)[0]] == found.usual.max()
    assert found.usual[found.most_surprising(1)[0]] == found.usual.min()


def test_the_most_surprising_are_not_one_family() -> None:
    family = np.array([[0, 1, 2, 3, 4, 5, 6, 7]] * 3)  # three users with the same list
    family[2, 6:] = NO_ITEM
    others = np.array([[6, 7, 10, 11, 12, 13, 14, 15], [5, 6, 7, 20, 21, 22, 23, 24]])  # a quarter in common, and more
    lists_UK = np.concatenate([family, others])
    none = np.zeros(5, dtype=np.int64)
    usual = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    histories = [np.array([user, user + 10, user + 20, user + 30]) for user in range(5)]
    found = Notable(np.arange(5), none, none, usual, lists_UK, histories)
    assert found.most_surprising(2) == [0, 3]
    assert found.most_surprising(4) == [0, 3, 1, 2]  # those who are alike come once nobody else is left
    assert found.most_surprising(9) == [0, 3, 1, 2, 4]
    histories[3] = np.array([0, 10])  # all of it in the history of the first
    assert Notable(np.arange(5), none, none, usual, lists_UK, histories).most_surprising(2) == [0, 1]
    histories[3] = np.array([0, 13, 23, 33])  # a quarter
    assert Notable(np.arange(5), none, none, usual, lists_UK, histories).most_surprising(2) == [0, 3]
    nothing = [np.empty(0, np.int64)] * 2
    empty = Notable(np.arange(2), none[:2], none[:2], np.zeros(2), np.full((2, 8), NO_ITEM), nothing)
    assert empty.most_surprising(2) == [0, 1]
