"""The one ranking function against rational arithmetic: ties, masks, near ties and block sizes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hmlet.errors import ConfigError
from hmlet.graph.kernels import multiplies_bfloat16
from hmlet.ranking import top_k as ranking
from hmlet.ranking.scoring import BriefScorer, FactorScorer, HostFactorScorer, Scorer
from hmlet.ranking.top_k import CROWD, GROUP, NO_ITEM, Lists, Ranked, Seen, allowed_items, similar

SCORERS = [FactorScorer, HostFactorScorer, *([BriefScorer] if multiplies_bfloat16(torch.device("cpu")) else [])]
Brief = SCORERS[-1]  # a processor may lack what it needs


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def top_k(users: Tensor, items: Tensor | Scorer, k: int, seen: Seen = None, allowed_I: Tensor | None = None) -> Ranked:
    """The lists as tensors, whichever library ranks."""
    return Ranked(*map(torch.as_tensor, ranking.top_k(users, items, k, seen, allowed_I)))


def own(hidden: list[set[int]]) -> list[np.ndarray]:
    """`seen` of top_k from each row's hidden items."""
    return [np.array(sorted(items), dtype=np.int64) for items in hidden]


def check(users_BF: Tensor, items_IF: Tensor, k: int, hidden: list[set[int]] | None = None) -> None:
    """Items as by rational arithmetic, scores as by float64: by every scorer, of users together and of each alone."""
    hidden = hidden or [set() for _ in users_BF]
    ranked = top_k(users_BF, items_IF, k, own(hidden))
    for scorer in (kind(items_IF) for kind in SCORERS):
        together = top_k(users_BF, scorer, k, own(hidden))
        alone = [top_k(users_BF[row : row + 1], scorer, k, own([hide])) for row, hide in enumerate(hidden)]
        assert torch.equal(torch.cat([each.items_BK for each in alone]), ranked.items_BK)
        assert torch.equal(torch.cat([each.scores_BK for each in alone]), together.scores_BK)
        assert torch.equal(together.items_BK, ranked.items_BK)
        np.testing.assert_allclose(together.scores_BK, ranked.scores_BK, rtol=1e-12, atol=1e-14)
    width = min(k, len(items_IF))
    assert ranked.items_BK.shape == ranked.scores_BK.shape == (len(users_BF), width)
    assert ranked.scores_BK.dtype == torch.float64
    for user_F, hide, found, score in zip(users_BF, hidden, ranked.items_BK, ranked.scores_BK, strict=True):
        expected = oracles.ranking(user_F.numpy(), items_IF.numpy(), k, hide)
        assert found.tolist() == expected + [NO_ITEM] * (width - len(expected))
        exact = items_IF[expected].double().numpy() @ user_F.double().numpy()
        np.testing.assert_allclose(score[: len(expected)], exact, rtol=1e-12, atol=1e-14)
        assert (score[len(expected) :] == -torch.inf).all()


@settings(max_examples=60)
@given(
    n_items=st.integers(1, 60),
    k=st.integers(1, 25),
    values=st.sampled_from([1, 2, 1000]),  # so few distinct numbers give many ties
    hide=st.sampled_from([0.0, 0.3, 0.95]),
    seed=st.integers(0, 2**32),
)
def test_items_and_scores_are_exact(n_items: int, k: int, values: int, hide: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    users_BF = torch.from_numpy(rng.integers(-values, values + 1, (3, 4)).astype(np.float32))
    items_IF = torch.from_numpy(rng.integers(-values, values + 1, (n_items, 4)).astype(np.float32))
    hidden = [set(np.flatnonzero(rng.random(n_items) < hide).tolist()) for _ in range(3)]
    check(users_BF, items_IF, k, hidden)


@pytest.mark.parametrize("k", [1, 5])
def test_k_far_below_the_catalogue_with_seen_items_on_top(k: int) -> None:
    users_BF, items_IF = normal(1, 4, 16), normal(2, 800, 16)
    best = [set(oracles.ranking(user_F.numpy(), items_IF.numpy(), 100)) for user_F in users_BF]
    check(users_BF, items_IF, k)
    check(users_BF, items_IF, k, best)


@pytest.mark.parametrize("n_items", [2047, 2048, 2063, 3000])
def test_long_rows_are_bounded_by_the_best_of_groups(n_items: int) -> None:
    """With the best items in one group, in the rest behind the groups, and hidden."""
    users_BF, items_IF = normal(11, 3, 4), normal(12, n_items, 4)
    groups = n_items // GROUP
    items_IF[5 : groups * GROUP : groups] = 3 * users_BF[0]  # all of group 5
    items_IF[-1], items_IF[groups * GROUP - 1] = 4 * users_BF[0], 5 * users_BF[1]
    assert groups > 4 * 5, "the case has groups"
    check(users_BF, items_IF, 5)
    check(users_BF, items_IF, 5, [{n_items - 1, 5, 5 + groups}, {groups * GROUP - 1}, set(range(n_items - 3))])


def test_equal_items_and_a_zero_user_are_ranked_by_index() -> None:
    items_IF = normal(3, 1, 8).expand(500, 8).clone()
    users_BF = torch.cat([normal(4, 2, 8), torch.zeros(1, 8)])
    assert top_k(users_BF, items_IF, 5).items_BK.tolist() == [[0, 1, 2, 3, 4]] * 3
    hidden = [{0, 2}, set(), {1, 499}]
    assert top_k(users_BF, items_IF, 3, own(hidden)).items_BK.tolist() == [[1, 3, 4], [0, 1, 2], [0, 2, 3]]
    check(torch.zeros(2, 8), normal(5, 300, 8), 7, [{0, 1}, {299}])


def test_duplicated_items_stand_together_the_smaller_first() -> None:
    once = normal(6, 150, 8)
    check(normal(7, 3, 8), torch.cat([once, once]), 9)


def test_near_ties_that_float32_cannot_tell_apart() -> None:
    """600 items whose scores differ by parts in ten million: float32's order of them is mostly wrong."""
    rng = np.random.default_rng(8)
    base_F = rng.normal(size=32)
    items_IF = torch.from_numpy((base_F * (1 + 1e-7 * rng.random((600, 32)))).astype(np.float32))
    users_BF = torch.from_numpy(np.stack([base_F, rng.normal(size=32)]).astype(np.float32))
    rough = (users_BF @ items_IF.T).sort(dim=1, descending=True, stable=True).indices[:, :5].tolist()
    exact = [oracles.ranking(user_F.numpy(), items_IF.numpy(), 5) for user_F in users_BF]
    assert rough != exact, "the case is as hard as it should be"
    check(users_BF, items_IF, 5)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e15])
def test_tiny_and_huge_factors(scale: float) -> None:
    """Products of tiny float32 factors vanish in float32; float64 still tells them apart."""
    check(normal(9, 2, 4) * scale, normal(10, 400, 4) * scale, 5)
    check(normal(9, 2, 4) * scale, normal(10, 400, 4) / scale, 5)


def test_fewer_items_than_asked_for() -> None:
    ranked = top_k(torch.ones(2, 1), torch.tensor([[1.0], [3.0], [2.0]]), 5, own([{1}, {0, 1, 2}]))
    assert ranked.items_BK.tolist() == [[2, 0, NO_ITEM], [NO_ITEM] * 3]
    assert ranked.scores_BK.tolist() == [[2.0, 1.0, -torch.inf], [-torch.inf] * 3]
    many = top_k(torch.ones(1, 1), normal(1, 300, 1), 5, own([set(range(2, 300))]))
    assert sorted(many.items_BK[0, :2].tolist()) == [0, 1]
    assert many.items_BK[0, 2:].tolist() == [NO_ITEM] * 3


@pytest.mark.parametrize("k", [0, -1, 2**63])
def test_a_length_that_no_list_has_is_refused(k: int) -> None:
    with pytest.raises(ConfigError, match=f"k = {k} is not the length of a list: use k=20"):
        top_k(normal(0, 2, 3), normal(1, 4, 3), k)


def test_only_allowed_items_come_back() -> None:
    users_BF, items_IF = normal(1, 3, 8), normal(2, 400, 8)
    allowed_I = torch.zeros(400, dtype=torch.bool)
    allowed_I[::7] = True
    hidden = [{0, 7}, set(), {399, 14}]
    ranked = top_k(users_BF, items_IF, 6, own(hidden), allowed_I)
    refused = set(range(400)) - set(range(0, 400, 7))
    for user_F, hide, found in zip(users_BF, hidden, ranked.items_BK, strict=True):
        assert found.tolist() == oracles.ranking(user_F.numpy(), items_IF.numpy(), 6, hide | refused)


@pytest.mark.parametrize("size", [1, 3, 8, 64, 65, 200, 513])
@pytest.mark.parametrize("n_items", [7, 900, 2100])
def test_one_user_and_a_block_give_the_same_bits(size: int, n_items: int) -> None:
    users_BF, items_IF = normal(1, 33, size), normal(2, n_items, size)
    items_IF[n_items // 2] = items_IF[0]
    hidden = [{row % n_items, (row * 5) % n_items} for row in range(33)]
    block = top_k(users_BF, items_IF, 10, own(hidden))
    scorer = Brief(items_IF)
    assert torch.equal(top_k(users_BF, scorer, 10, own(hidden)).scores_BK, block.scores_BK)
    for row in range(33):
        alone = top_k(users_BF[row : row + 1], scorer, 10, own([hidden[row]]))
        assert torch.equal(alone.items_BK[0], block.items_BK[row])
        assert torch.equal(alone.scores_BK[0], block.scores_BK[row])


def test_scores_do_not_depend_on_how_many_candidates_there_are() -> None:
    """Ties make every item a candidate, in pieces: the scores are those of a few candidates."""
    user_F, items_IF = normal(1, 1, 200), normal(2, 1, 200).expand(9000, 200).clone()
    all_but_few = own([set(range(10, 9000))])
    among_all = top_k(user_F, items_IF, 5).scores_BK
    among_few = top_k(user_F, items_IF, 5, all_but_few).scores_BK
    assert torch.equal(among_all, among_few)


def test_factors_that_want_gradients_are_ranked_without() -> None:
    users_BF, items_IF = normal(1, 3, 4), normal(2, 2100, 4)
    usual = top_k(users_BF, items_IF, 5)
    found = top_k(users_BF.requires_grad_(), items_IF.requires_grad_(), 5)
    assert torch.equal(found.items_BK, usual.items_BK)
    assert not found.scores_BK.requires_grad


@pytest.mark.parametrize("users", [0, 2])
def test_no_items(users: int) -> None:
    ranked = top_k(normal(1, users, 4), torch.empty(0, 4), 3)
    assert ranked.items_BK.shape == ranked.scores_BK.shape == (users, 0)


def test_no_users_and_inputs_stay_as_they_were() -> None:
    users_BF, items_IF = normal(1, 2, 4), normal(2, 9, 4)
    before = users_BF.clone(), items_IF.clone()
    assert top_k(users_BF[:0], items_IF, 3).items_BK.shape == (0, 3)
    top_k(users_BF, items_IF, 3, own([{1}, {2}]))
    assert torch.equal(users_BF, before[0])
    assert torch.equal(items_IF, before[1])


def test_items_that_may_be_recommended() -> None:
    allow, deny = np.array([0, 2, 3]), np.array([3, 4])
    assert allowed_items(5) is None
    for found, expected in (
        (allowed_items(5, allow), [True, False, True, True, False]),
        (allowed_items(5, deny=deny), [True, True, True, False, False]),
        (allowed_items(5, allow, deny), [True, False, True, False, False]),
    ):
        assert found is not None
        assert found.tolist() == expected


def test_similar_rows_have_the_largest_cosines_and_are_others() -> None:
    factors, rows = normal(7, 9, 3), torch.tensor([4, 0])
    found = Ranked(*map(torch.as_tensor, similar(factors, rows, 9)))
    for place, row in enumerate(rows.tolist()):
        cosines = {
            other: float(factors[row] @ factors[other] / (factors[row].norm() * factors[other].norm()))
            for other in range(9)
            if other != row
        }
        order = sorted(cosines, key=lambda other: -cosines[other])
        assert found.items_BK[place].tolist() == [*order, -1]  # there are eight others
        assert found.scores_BK[place, :8].tolist() == pytest.approx([cosines[other] for other in order], abs=1e-6)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_the_bound_on_rounding_holds_and_is_tight_enough_to_be_of_use(count: int) -> None:
    users, items = normal(1, count, 32), normal(2, 400, 32)
    for scorer in (kind(items) for kind in SCORERS):
        rough, bound = (torch.as_tensor(each) for each in scorer.rough(users.numpy() if scorer.on_host else users))
        error = (rough.double() - users.double() @ items.double().T).abs()
        assert (error.amax(dim=1) <= bound).all()
        assert (bound < (0.7 if rough.dtype == torch.bfloat16 else 0.01)).all()  # scores are about 6


@pytest.mark.parametrize(("size", "most"), [(64, 60), (512, 200)])
def test_rough_scores_leave_few_candidates(size: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    users, items = normal(1, 200, size), normal(2, 40_000, size)
    pairs: list[int] = []
    scorer = Brief(items)
    exact = scorer.exact

    def counted(users: np.ndarray, *of: np.ndarray) -> np.ndarray:
        pairs.append(len(of[0]))
        return exact(users, *of)

    monkeypatch.setattr(scorer, "exact", counted)
    top_k(users, scorer, 20)
    assert sum(pairs) <= most * len(users)


@pytest.mark.parametrize("scale", [3.4e38, 1e-40])
def test_factors_at_the_edge_of_the_types(scale: float) -> None:
    """The largest float32 numbers become infinite in bfloat16, and the smallest vanish."""
    items = torch.eye(3, 4).repeat(40, 1) * torch.linspace(0.5, 1, 120)[:, None] * scale
    check(torch.eye(2, 4) * torch.tensor([[1.0], [2.0**-10]]), items, 5)
    check(torch.eye(2, 4) * scale, items / scale * 1e-20, 5)


def test_lists_without_the_places_that_no_item_fills() -> None:
    ranked = Ranked(
        torch.tensor([[4, 2], [7, NO_ITEM], [NO_ITEM] * 2]),
        torch.tensor([[2.0, 1.0], [3.0, -torch.inf], [-torch.inf] * 2]),
    )
    lists = ranked.filled()
    assert (lists.lengths.tolist(), lists.items.tolist(), lists.scores.tolist()) == (
        [2, 1, 0],
        [4, 2, 7],
        [2.0, 1.0, 3.0],
    )
    assert list(lists.each()) == [([4, 2], [2.0, 1.0]), ([7], [3.0]), ([], [])]
    assert list(Lists.joined([lists, lists]).each()) == 2 * list(lists.each())
    assert list(Lists.joined([]).each()) == []
    assert list(Ranked(torch.empty(2, 0).long(), torch.empty(2, 0).double()).filled().each()) == [([], [])] * 2


def near_ties(rng: np.random.Generator, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of about 8 that differ by parts in a billion."""
    users_BF, items_IF = np.ones((users, 8)), np.ones((items, 8))
    items_IF[:, 7] = 1e-8 * rng.random(items)
    return users_BF + 1e-3 * rng.random((users, 1)), items_IF


def norms_of_all_sizes(rng: np.random.Generator, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    sizes = 10.0 ** rng.uniform(-12, 6, (users + items, 1))
    factors_NF = rng.normal(size=(users + items, 8)) * sizes
    return factors_NF[:users], factors_NF[users:]


def cancellation(rng: np.random.Generator, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Large products that add up to nearly nothing."""
    half = 1e4 * rng.normal(size=(items, 4))
    return np.ones((users, 8)), np.concatenate([half, 1e-3 * rng.normal(size=(items, 4)) - half], axis=1)


def subnormal(rng: np.random.Generator, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    return 1e-3 * rng.normal(size=(users, 8)), 1e-39 * rng.normal(size=(items, 8))


def a_huge_item(rng: np.random.Generator, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    items_IF = 1e-3 * rng.normal(size=(items, 8))
    items_IF[items // 2] *= 1e9
    return rng.normal(size=(users, 8)), items_IF


def midpoints(rng: np.random.Generator, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers between two of bfloat16, some of them a little beside the middle."""
    whole = rng.integers(128, 256, (users + items, 8)) + 0.5
    factors_NF = whole + rng.choice([-(2.0**-12), 0.0, 2.0**-12], whole.shape)
    return factors_NF[:users] * rng.choice([-1, 1], (users, 8)), factors_NF[users:]


def all_equal(rng: np.random.Generator, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(users, 8)), np.tile(rng.normal(size=(1, 8)), (items, 1))


def few_numbers(rng: np.random.Generator, users: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Users of whom a quarter has no length."""
    factors_NF = rng.integers(-1, 2, (users + items, 8)).astype(np.float64)
    factors_NF[: users // 4] = 0.0
    return factors_NF[:users], factors_NF[users:]


ADVERSE = [near_ties, norms_of_all_sizes, cancellation, subnormal, a_huge_item, midpoints, all_equal, few_numbers]


@pytest.mark.parametrize("factors", ADVERSE)
@pytest.mark.parametrize(("n_items", "lengths"), [(6, (1, 5, 6, 9)), (700, (20, 699)), (2500, (1, 20, 500))])
def test_adverse_factors_are_ranked_as_in_float64(
    factors: Callable[..., tuple[np.ndarray, np.ndarray]], n_items: int, lengths: tuple[int, ...]
) -> None:
    """The bits of a naive float64 product, sorted: of a user alone and in company, by each library."""
    rng = np.random.default_rng(n_items)
    users_BF, items_IF = (torch.from_numpy(each.astype(np.float32)) for each in factors(rng, 64, n_items))
    seen = [rng.choice(n_items, rng.integers(0, 4), replace=False) for _ in range(63)] + [np.arange(n_items - 2)]
    allowed_I = torch.from_numpy(rng.random(n_items) < 0.7)
    products_BIF = users_BF.double()[:, None, :] * items_IF.double()
    for scorer in (kind(items_IF) for kind in SCORERS):
        sums_BI = torch.from_numpy(products_BIF.numpy().sum(axis=2)) if scorer.on_host else products_BIF.sum(dim=2)
        for k, allowed in ((lengths[0], None), *((k, allowed_I) for k in lengths)):
            left_BI = sums_BI.clone()
            for row, own_items in enumerate(seen):
                left_BI[row, own_items] = -torch.inf
            if allowed is not None:
                left_BI[:, ~allowed] = -torch.inf
            scores_BK, items_BK = (each[:, :k] for each in left_BI.sort(dim=1, descending=True, stable=True))
            items_BK = items_BK.masked_fill(scores_BK == -torch.inf, NO_ITEM)
            for size in (1, 2, 3, 4, 5, 16, 64):
                blocks = [slice(start, start + size) for start in range(0, 64, size)]
                found = [top_k(users_BF[rows], scorer, k, seen[rows], allowed) for rows in blocks]
                assert torch.equal(torch.cat([each.items_BK for each in found]), items_BK)
                assert torch.equal(torch.cat([each.scores_BK for each in found]), scores_BK)


@pytest.mark.parametrize("scorer", SCORERS)
def test_users_with_many_candidates_do_not_disturb_others(scorer: type[FactorScorer]) -> None:
    """Users for whom all items are equal, among others."""
    items_IF = normal(1, CROWD + 300, 4)
    items_IF[:, 0] = 1.0
    users_BF = normal(2, 11, 4)
    users_BF[[0, 4, 5]] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    found = top_k(users_BF, scorer(items_IF), 5)
    for row in range(11):
        alone = top_k(users_BF[row : row + 1], scorer(items_IF), 5)
        assert torch.equal(found.items_BK[row], alone.items_BK[0])
        assert torch.equal(found.scores_BK[row], alone.scores_BK[0])
    assert found.items_BK[4].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_come_first_and_spoil_no_other_list(scorer: type[FactorScorer], bad: float) -> None:
    users_BF, items_IF = normal(1, 6, 4).abs(), normal(2, 300, 4)
    usual = top_k(users_BF, scorer(items_IF), 5)
    users_BF[2, 1] = bad
    found = top_k(users_BF, scorer(items_IF), 5)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(found.items_BK[others], usual.items_BK[others])
    assert torch.equal(found.scores_BK[others], usual.scores_BK[others])
    items_IF[7, 1] = torch.nan
    assert top_k(users_BF, scorer(items_IF), 1).items_BK[others].tolist() == [[7]] * 5


def test_threads_rank_beside_each_other() -> None:
    """A scorer has nothing that a call writes and another reads."""
    users_BF, items_IF = normal(1, 40, 16), normal(2, 3000, 16)
    expected, scorer = top_k(users_BF, items_IF, 10), Brief(items_IF)
    sizes = [1, 2, 7, 40] * 10
    with ThreadPoolExecutor(4) as pool:
        for size, found in zip(sizes, pool.map(lambda size: top_k(users_BF[:size], scorer, 10), sizes), strict=True):
            assert torch.equal(found.items_BK, expected.items_BK[:size])
            assert torch.equal(found.scores_BK, expected.scores_BK[:size])
