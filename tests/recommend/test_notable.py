"""Users worth a look, on lists that are known."""

from __future__ import annotations

import numpy as np
import oracles
import torch
from gated_run import small_data

from hmlet.ranking.scoring import FactorScorer
from hmlet.recommend.notable import LIST, notable


def test_hits_and_usualness_are_those_of_a_loop() -> None:
    data = small_data(40, 60)
    generator = torch.Generator().manual_seed(3)
    users, items = torch.randn(40, 4, generator=generator), torch.randn(60, 4, generator=generator)
    found = notable((users, FactorScorer(items)), data)
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
