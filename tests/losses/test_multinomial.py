"""The multinomial likelihood against a naive one in float64: its value, its gradient, and the mean over batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from threaded import on_two
from torch import Tensor

from hmlet.config import resolve
from hmlet.data import Csr
from hmlet.errors import ConfigError
from hmlet.graph import Sizes
from hmlet.graph.layers import Layers, Similarity
from hmlet.losses import LOSSES
from hmlet.losses.multinomial import Multinomial, UserSampler, Whole
from hmlet.losses.sampling import Draw
from hmlet.system.ranks import ALONE, Ranks
from hmlet.training.floor import step_parts
from hmlet.training.steps import steps_per_epoch

N_USERS, N_ITEMS, SIZE, TEMPERATURE = 5, 7, 4, 0.3
OWN = [[0, 3], [], [1, 2, 6], [4], list(range(7))]  # nobody can say what user 1 likes, and user 4 has everything
COUNTED = [0, 2, 3]
COUNTS = torch.bincount(torch.tensor([item for items in OWN for item in items]), minlength=N_ITEMS).double()


def loss_of(similarity: Similarity, **settings: Any) -> Multinomial:
    config: Any = LOSSES["multinomial"].Config(temperature=TEMPERATURE, similarity=similarity, **settings)
    loss = Multinomial(config).double()
    with torch.no_grad():
        loss.log_temperature.fill_(math.log(TEMPERATURE))
    return loss


def sampler_of(loss: Multinomial, draw: Draw) -> UserSampler:
    counts = [len(items) for items in OWN]
    train = Csr(
        np.concatenate([[0], np.cumsum(counts)]), np.array([item for items in OWN for item in items], dtype=np.int32)
    )
    sampler = loss.sampler(train, N_ITEMS, torch.device("cpu"), draw)
    whole = sampler.whole
    sampler.weight, sampler.whole = sampler.weight.double(), Whole(whole.pairs, whole.share_N.double(), whole.ends)
    return sampler


POWERS: dict[Draw, float] = {"user": 0.0, "root": 0.5, "interaction": 1.0}  # of how many items a user has


def table(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N_USERS + N_ITEMS, SIZE, generator=generator, dtype=torch.float64, requires_grad=True)


def naive_soft(factors: Tensor, draw: Draw, ratio: float, temperature: Tensor, added: Tensor | float = 0.0) -> Tensor:
    """The likelihood with BSL's mean of a user's own items, user by user; popularity adds to the scores."""
    factors = factors / factors.norm(dim=1, keepdim=True)
    scores = (factors[:N_USERS] @ factors[N_USERS:].T + added) / temperature
    own = {user: ratio * (scores[user, OWN[user]] / ratio).exp().mean().log() for user in COUNTED}
    counts = {user: len(OWN[user]) ** POWERS[draw] for user in COUNTED}
    each = [counts[user] * (scores[user].logsumexp(dim=0) - own[user]) for user in COUNTED]
    return torch.stack(each).sum() / sum(counts.values())


def naive(factors: Tensor, draw: Draw, similarity: Similarity, added: Tensor | float = 0.0) -> Tensor:
    if similarity == "cosine":
        factors = factors / factors.norm(dim=1, keepdim=True)
    logs = ((factors[:N_USERS] @ factors[N_USERS:].T + added) / TEMPERATURE).log_softmax(dim=1)
    counts = {user: len(OWN[user]) ** POWERS[draw] for user in COUNTED}
    each = [-counts[user] * logs[user, OWN[user]].mean() for user in COUNTED]
    return torch.stack(each).sum() / sum(counts.values())


@pytest.mark.parametrize("draw", POWERS)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_everyone_at_once_is_the_whole_likelihood(draw: Draw, similarity: Similarity) -> None:
    """Value and gradient; the weights of the graph are float32."""
    loss = loss_of(similarity)
    layers = [table(1), table(2)]
    everyone = sampler_of(loss, draw).sample(100, torch.Generator())
    found = loss(Layers(layers, layers[0], N_USERS, similarity=similarity), everyone).value
    right = naive((layers[0] + layers[1]) / 2, draw, similarity)
    assert found.item() == pytest.approx(right.item(), rel=1e-6)
    for ours, theirs in zip(torch.autograd.grad(found, layers), torch.autograd.grad(right, layers), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_popularity_is_part_of_every_score(similarity: Similarity) -> None:
    """Of the whole likelihood: value and gradient. The mean over batches of two of three users has the same value."""
    loss, layers = loss_of(similarity, popularity_weight=0.4), [table(1), table(2)]
    sampler, added = sampler_of(loss, "interaction"), (0.4 * COUNTS.log1p()).requires_grad_()
    inputs = [*layers, added]
    scored = Layers(layers, layers[0], N_USERS, similarity=similarity, popularity_I=added)
    found = loss(scored, sampler.sample(100, torch.Generator())).value
    right = naive((layers[0] + layers[1]) / 2, "interaction", similarity, added)
    assert found.item() == pytest.approx(right.item(), rel=1e-6)
    right_gradients = torch.autograd.grad(right, inputs)
    for ours, theirs in zip(torch.autograd.grad(found, inputs), right_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    generator = torch.Generator().manual_seed(1)
    drawn = {tuple(sorted(batch.user.tolist())): batch for batch in (sampler.sample(2, generator) for _ in range(50))}
    values = [loss(scored, batch).value for batch in drawn.values()]
    assert len(values) == 3
    mean = torch.stack(values).mean()
    assert mean.item() == pytest.approx(right.item(), rel=1e-6)
    torch.testing.assert_close(torch.autograd.grad(mean, added)[0], right_gradients[-1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("draw", POWERS)
def test_learned_popularity_explains_how_often_items_occur(draw: Draw) -> None:
    """At the optimum, every item is expected as often as it occurs, each user weighted as they are drawn."""
    loss, layers = loss_of("cosine"), [table(1).detach()]
    everyone = sampler_of(loss, draw).sample(100, torch.Generator())
    added = torch.zeros(N_ITEMS, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([added], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        optimizer.zero_grad()
        scored = Layers(layers, layers[0], N_USERS, similarity="cosine", popularity_I=added)
        found = loss(scored, everyone).value + 1e-4 * added.square().sum()  # nobody has some items
        found.backward()
        return found

    optimizer.step(value)  # type: ignore[no-untyped-call]
    factors = layers[0] / layers[0].norm(dim=1, keepdim=True)
    share = ((factors[:N_USERS] @ factors[N_USERS:].T + added.detach()) / TEMPERATURE).softmax(dim=1)
    weight = {user: len(OWN[user]) ** POWERS[draw] for user in COUNTED}
    expected, occurring = torch.zeros(N_ITEMS, dtype=torch.float64), torch.zeros(N_ITEMS, dtype=torch.float64)
    for user in COUNTED:
        own = weight[user] / sum(weight.values())
        expected += own * share[user]
        occurring[OWN[user]] += own / len(OWN[user])
    torch.testing.assert_close(expected, occurring, rtol=0.0, atol=1e-3)


def test_a_ratio_of_temperatures_sees_popularity() -> None:
    """Value, and the gradients of the layers, of a learned temperature and of what popularity adds."""
    loss = loss_of("cosine", temperature_ratio=0.5, temperature_learned=True, popularity_weight=0.4)
    layers, right_temperature = [table(1), table(2)], loss.log_temperature.detach().clone().requires_grad_()
    added = (0.4 * COUNTS.log1p()).requires_grad_()
    scored = Layers(layers, layers[0], N_USERS, similarity="cosine", popularity_I=added)
    found = loss(scored, sampler_of(loss, "user").sample(100, torch.Generator())).value
    right = naive_soft((layers[0] + layers[1]) / 2, "user", 0.5, right_temperature.exp(), added)
    assert found.item() == pytest.approx(right.item(), rel=1e-6)
    ours = torch.autograd.grad(found, [*layers, loss.log_temperature, added])
    theirs = torch.autograd.grad(right, [*layers, right_temperature, added])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("draw", ["user", "interaction"])
@pytest.mark.parametrize("ratio", [0.5, 4.0])
def test_a_ratio_of_temperatures_weighs_the_items_of_a_user(draw: Draw, ratio: float) -> None:
    """Value, and the gradients of the layers and of a learned temperature."""
    loss = loss_of("cosine", temperature_ratio=ratio, temperature_learned=True)
    layers, right_temperature = [table(1), table(2)], loss.log_temperature.detach().clone().requires_grad_()
    everyone = sampler_of(loss, draw).sample(100, torch.Generator())
    found = loss(Layers(layers, layers[0], N_USERS, similarity="cosine"), everyone).value
    right = naive_soft((layers[0] + layers[1]) / 2, draw, ratio, right_temperature.exp())
    assert found.item() == pytest.approx(right.item(), rel=1e-6)
    ours = torch.autograd.grad(found, [*layers, loss.log_temperature])
    theirs = torch.autograd.grad(right, [*layers, right_temperature])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("popularity", [0.0, 0.4])
@pytest.mark.parametrize("ratio", [None, 0.5])
def test_two_ranks_have_the_value_of_one(ratio: float | None, popularity: float) -> None:
    """Each has two of the four columns of every layer."""
    loss, whole = loss_of("cosine", temperature_ratio=ratio), [table(1).detach(), table(2).detach()]
    added = popularity * COUNTS.log1p() if popularity else None
    everyone = sampler_of(loss, "user").sample(100, torch.Generator())

    def value(ranks: Ranks) -> float:
        own = [ranks.own_columns(each) for each in whole]
        layers = Layers(own, own[0], N_USERS, similarity="cosine", popularity_I=added, ranks=ranks)
        return float(loss(layers, everyone).value)

    assert on_two(value) == pytest.approx([value(ALONE)] * 2, rel=1e-12)


def test_layers_of_few_digits_are_added_up_in_float32() -> None:
    """As on CUDA with train.precision = "bfloat16", for which float16 stands."""
    config: Any = LOSSES["multinomial"].Config(similarity="dot", temperature=1.0)
    loss, layers = Multinomial(config), [table(1).detach().half()]
    train = Csr(np.array([0, 2, 2, 5, 6, 13]), np.array([item for items in OWN for item in items], dtype=np.int32))
    everyone = loss.sampler(train, N_ITEMS, torch.device("cpu"), "user").sample(100, torch.Generator())
    found = loss(Layers(layers, layers[0].float(), N_USERS, similarity="dot"), everyone).value
    scores = (layers[0][:N_USERS].double() @ layers[0][N_USERS:].double().T).log_softmax(dim=1)
    right = -torch.stack([scores[user, OWN[user]].mean() for user in COUNTED]).mean()
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(right.item(), rel=1e-5)


def test_a_large_ratio_is_none() -> None:
    """As ρ grows, ρ τ log E exp(s / (ρ τ)) becomes the mean of s."""
    layers = Layers([table(3)], table(3), N_USERS, similarity="cosine")
    values = []
    for settings in ({"temperature_ratio": 1e4}, {}):
        loss = loss_of("cosine", **settings)
        everyone = sampler_of(loss, "user").sample(100, torch.Generator())
        values.append(loss(layers, everyone).value.item())
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_a_ratio_needs_cosines() -> None:
    with pytest.raises(ValueError, match="temperature_ratio"):
        loss_of("dot", temperature_ratio=2.0)


@pytest.mark.parametrize("draw", ["user", "interaction"])
def test_the_mean_over_batches_is_the_whole(draw: Draw) -> None:
    """Every pair of users is as likely as any other, so the mean over all three is that over many draws."""
    loss, layers, generator = loss_of("cosine"), [table(1)], torch.Generator().manual_seed(3)
    sampler = sampler_of(loss, draw)
    by_users: dict[frozenset[int], float] = {}
    while len(by_users) < 3:
        batch = sampler.sample(2, generator)
        value = loss(Layers(layers, layers[0], N_USERS, similarity="cosine"), batch).value.item()
        by_users.setdefault(frozenset(batch.user.tolist()), value)
        assert by_users[frozenset(batch.user.tolist())] == pytest.approx(value)
    right = naive(layers[0], draw, "cosine").item()
    assert sum(by_users.values()) / 3 == pytest.approx(right, rel=1e-6)


def test_a_sample_of_items_estimates_the_sum() -> None:
    """With one item drawn, Σ_j is I times its exponential: the loss of one user by hand."""
    loss, layers = loss_of("dot", negatives=1), [table(1)]
    batch = sampler_of(loss, "user").sample(100, torch.Generator().manual_seed(4))
    assert batch.others is not None
    drawn = int(batch.others)
    found = loss(Layers(layers, layers[0], N_USERS, similarity="dot"), batch).value.item()
    scores = layers[0][:N_USERS] @ layers[0][N_USERS:].T / TEMPERATURE
    right = [math.log(N_ITEMS) + scores[user, drawn] - scores[user, OWN[user]].mean() for user in COUNTED]
    assert found == pytest.approx(torch.stack(right).mean().item(), rel=1e-6)


def test_the_penalty_is_that_of_drawn_pairs() -> None:
    """Users by how much they count, and items by how often a drawn pair would have them."""
    loss, layers = loss_of("cosine"), [table(1)]
    for draw, pairs in (("user", [(0, 2), (2, 3), (3, 1)]), ("interaction", [(0, 2), (2, 3), (3, 1)])):
        batch = sampler_of(loss, draw).sample(100, torch.Generator())  # type: ignore[arg-type]
        norms = loss(Layers(layers, layers[0], N_USERS, similarity="cosine"), batch).norms.item()
        total = sum(count for _, count in pairs)
        right = 0.0
        for user, count in pairs:
            weight = 1 / len(pairs) if draw == "user" else count / total
            own = sum(layers[0][N_USERS + item].square().sum().item() for item in OWN[user]) / count
            right += weight * (layers[0][user].square().sum().item() + own)
        assert norms == pytest.approx(right, rel=1e-6)


def test_an_epoch_has_as_many_users_as_there_are() -> None:
    loss = loss_of("cosine")
    ends = [*range(0, 22, 2), 20]  # ten users with two items each, and one with nothing
    train = Csr(np.array(ends), np.tile(np.array([0, 1], dtype=np.int32), 10))
    assert [steps_per_epoch(loss, train, size) for size in (4, 5, 10, 1000)] == [3, 2, 1, 1]


def test_its_nodes_are_its_users_and_every_item() -> None:
    loss = loss_of("dot")
    nodes = sampler_of(loss, "user").sample(100, torch.Generator()).nodes(N_USERS)
    assert nodes.tolist() == [*COUNTED, *range(N_USERS, N_USERS + N_ITEMS)]


@pytest.mark.parametrize("settings", [{}, {"temperature_ratio": 2.0}])
def test_a_blank_batch_is_as_large_as_a_drawn_one(settings: dict[str, float]) -> None:
    """Ten users with two of three items each, so everyone counts."""
    loss = loss_of("cosine", negatives=4, **settings)
    train = Csr(np.arange(0, 22, 2), np.tile(np.array([0, 2], dtype=np.int32), 10))
    sampler = loss.sampler(train, 3, torch.device("cpu"), "user")
    whole = sampler.whole
    for size, users, everyone in ((9, 9, False), (10, 10, True), (11, 10, True)):
        blank, drawn = loss.blank(size, Sizes(10, 3, 20), "cpu"), sampler.sample(size, torch.Generator())
        for batch in (blank, drawn):
            assert (len(batch.user), len(batch.weight), batch.everyone) == (users, users, everyone)
            assert batch.others is not None
            assert (len(batch.others), len(batch.whole.share_N)) == (4, 13)
            assert (batch.whole.ends is None) == (not settings)
        assert len(set(drawn.user.tolist())) == users
        assert blank.whole.pairs.nbytes == whole.pairs.nbytes
        assert [each.shape for each in blank.whole.ends or ()] == [each.shape for each in whole.ends or ()]


def test_no_item_is_drawn_by_weight() -> None:
    with pytest.raises(ConfigError, match="draws none by weight"):
        sampler_of(loss_of("cosine"), "weight")


def test_its_floor_has_the_matrix_products() -> None:
    """Three products of 60 users with 40 items in 8 columns: a batch has no more users than there are."""
    overrides = ["model.embedding_size=8", "train.batch_size=100", "train.loss=multinomial"]
    parts = step_parts(resolve("lightgcn", overrides=overrides), 60, 40, 300)
    assert sum(part.operations for part in parts if part.name == "readout and loss") == 3 * 2 * 60 * 40 * 8
