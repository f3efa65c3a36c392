"""Comparisons against SciPy on plain arrays, hand-computed cases, and every degenerate pair that has an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats

from hmlet.errors import ConfigError, DataError
from hmlet.ranking import statistics as stats

Floats = npt.NDArray[np.float64]


@dataclass
class Scored:
    """An evaluation as a comparison sees it."""

    per_user: dict[str, Floats]
    users: npt.NDArray[np.int64] = field(default_factory=lambda: np.arange(0))
    split: str = "test"
    mask: str = "train"
    k: int = 20

    def __post_init__(self) -> None:
        if len(self.users) == 0:
            self.users = np.arange(len(next(iter(self.per_user.values()))))


def scored(*ndcg: float) -> Scored:
    values = np.array(ndcg)
    return Scored({"ndcg": values, "recall": values * 2, "precision": values / 2})


def noisy(seed: int, lift: float = 0.0, users: int = 400) -> Scored:
    rng = np.random.default_rng(seed)
    shared = np.random.default_rng(99).uniform(0, 0.4, users)
    return Scored({name: shared + lift + rng.normal(0, 0.05, users) for name in ("ndcg", "recall", "precision")})


def test_two_models_by_hand() -> None:
    # Differences 1, 2, 3, 2: mean 2, sample standard deviation sqrt(2/3); ranks all positive, 2 of 2^4 sign patterns.
    first, second = np.array([2.0, 4.0, 6.0, 3.0]), np.array([1.0, 2.0, 3.0, 1.0])
    paired = stats.compare({"a": [scored(*first)], "b": [scored(*second)]}).metrics["ndcg"].against["b"]
    assert paired.difference == 2.0
    assert paired.difference_percent == pytest.approx(100 * 2.0 / 1.75)
    assert paired.effect_size == pytest.approx(2.0 / np.sqrt(2.0 / 3.0))
    t = 2.0 / (np.sqrt(2.0 / 3.0) / 2.0)
    assert paired.t_test_p == pytest.approx(2 * scipy.stats.t.sf(t, df=3), rel=1e-12)


def test_seeds_are_compared_by_welchs_test() -> None:
    first, second = (0.1237, 0.1241, 0.1233), (0.1226, 0.1229, 0.1222, 0.1230)
    found = stats.welch_test(stats.spread(first), stats.spread(second))
    assert found == pytest.approx(scipy.stats.ttest_ind(first, second, equal_var=False).pvalue)
    flat = stats.spread([0.5, 0.5])
    assert stats.welch_test(flat, flat) == 1.0
    assert stats.welch_test(flat, stats.spread([0.25, 0.25])) == 0.0
    assert stats.welch_test(flat, stats.spread([0.25])) == 1.0  # one seed says nothing


def step_down(p_values: list[float], level: float) -> list[bool]:
    """Holm's procedure as he states it: go through the p-values in order, and stop at the first that is too large."""
    rejected = [False] * len(p_values)
    left = sorted(p_values)
    for done, p in enumerate(left):
        if p > level / (len(left) - done):
            break
        rejected[p_values.index(p)] = True
    return rejected


def test_holms_p_values_reject_what_his_procedure_rejects() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # by hand
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []
    rng = np.random.default_rng(5)
    for _ in range(50):
        p_values = list(rng.beta(0.4, 3.0, rng.integers(1, 12)))
        corrected = stats.holm(p_values)
        for level in (0.01, 0.05, 0.2):
            assert [p <= level for p in corrected] == step_down(p_values, level)


def test_the_signed_rank_test_by_hand() -> None:
    # |differences| 1..5 with signs +, +, -, +, +: the smaller rank sum is 3, and 5 of 32 sign patterns give 3 or less.
    difference = np.array([1.0, 2.0, -3.0, 4.0, 5.0])
    assert stats.signed_rank_test(difference, np.zeros(5)) == pytest.approx(2 * 5 / 32)


def test_tests_equal_scipys() -> None:
    first, second = noisy(1, 0.004).per_user["ndcg"], noisy(2).per_user["ndcg"]
    assert stats.t_test(first, second) == scipy.stats.ttest_rel(first, second).pvalue
    assert stats.signed_rank_test(first, second) == scipy.stats.wilcoxon(first, second).pvalue
    t = scipy.stats.ttest_rel(first, second).statistic
    assert stats.effect_size(first, second) == pytest.approx(t / np.sqrt(len(first)))


def test_users_without_a_difference_do_not_count_in_the_signed_rank_test() -> None:
    difference = np.array([0.0] * 50 + [1.0, 2.0, -3.0, 4.0, 5.0])
    without = np.array([1.0, 2.0, -3.0, 4.0, 5.0])
    assert stats.signed_rank_test(difference, np.zeros(55)) == pytest.approx(
        scipy.stats.wilcoxon(without, method="asymptotic").pvalue
    )


def test_identical_models_are_level() -> None:
    comparison = stats.compare({"a": [noisy(1)], "b": [noisy(1)]})
    for metric in comparison.metrics.values():
        paired = metric.against["b"]
        assert (metric.best, metric.baseline) == ("a", "b")
        assert (paired.difference, paired.difference_percent, paired.effect_size) == (0.0, 0.0, 0.0)
        assert (paired.t_test_p, paired.wilcoxon_p, paired.interval) == (1.0, 1.0, (0.0, 0.0))
    assert comparison.conclusion() == "a and b are level in NDCG@20."
    json.dumps(comparison.as_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("first", "second", "p", "size"),
    [
        ([0.5], [0.25], 1.0, None),  # one user says nothing
        ([0.75, 0.5, 0.25], [0.5, 0.25, 0.0], 0.0, None),  # every user by the same amount
        ([0.0, 0.0], [0.0, 0.0], 1.0, 0.0),
    ],
)
def test_degenerate_pairs_have_an_answer(first: list[float], second: list[float], p: float, size: float | None) -> None:
    comparison = stats.compare({"a": [scored(*first)], "b": [scored(*second)]})
    paired = comparison.metrics["ndcg"].against["b"]
    assert paired.t_test_p == p
    assert paired.effect_size == size
    assert 0.0 <= paired.wilcoxon_p <= 1.0
    json.dumps(comparison.as_json(), allow_nan=False)
    assert comparison.markdown()


def test_a_baseline_that_finds_nothing_has_no_percentage() -> None:
    comparison = stats.compare({"a": [scored(0.5, 0.25)], "b": [scored(0.0, 0.0)]})
    assert comparison.metrics["ndcg"].against["b"].difference_percent is None
    assert "by 0.37500 NDCG@20" in comparison.conclusion()


def test_seeds_are_averaged_before_they_are_paired() -> None:
    seeds = [noisy(seed, 0.01) for seed in (1, 2, 3)]
    other = noisy(4)
    metric = stats.compare({"a": seeds, "b": [other]}).metrics["ndcg"]
    means = [run.per_user["ndcg"].mean() for run in seeds]
    assert metric.models["a"].mean == pytest.approx(sum(means) / 3)
    variance = sum((value - sum(means) / 3) ** 2 for value in means) / 2
    assert metric.models["a"].std == pytest.approx(np.sqrt(variance))
    assert metric.models["b"].std is None
    averaged = sum(run.per_user["ndcg"] for run in seeds) / 3
    expected = scipy.stats.ttest_rel(averaged, other.per_user["ndcg"]).pvalue
    assert metric.against["b"].t_test_p == pytest.approx(expected)


def test_the_baseline_is_the_best_other_model_metric_by_metric() -> None:
    def model(ndcg: float, recall: float) -> Scored:
        steps = np.array([0.0, 0.1, 0.3]) * (1 + ndcg)
        return Scored({"ndcg": ndcg + steps, "recall": recall + steps, "precision": steps * ndcg})

    metrics = stats.compare({"x": [model(0.1, 0.3)], "y": [model(0.3, 0.1)], "z": [model(0.2, 0.2)]}).metrics
    assert (metrics["ndcg"].best, list(metrics["ndcg"].against)) == ("y", ["z", "x"])
    assert (metrics["recall"].best, list(metrics["recall"].against)) == ("x", ["z", "y"])
    assert metrics["ndcg"].baseline == "z"


def test_the_table_reads_as_the_papers() -> None:
    table = stats.compare(
        {"bpr": [scored(0.1, 0.2, 0.1)], "lightgcn": [scored(0.2, 0.4, 0.3)], "hmlet-end": [scored(0.4, 0.5, 0.6)]}
    ).markdown()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows[0] == ["", "NDCG@20", "Recall@20", "Precision@20"]
    assert [row[0] for row in rows[2:6]] == ["bpr", "lightgcn", "hmlet-end", "best against"]
    assert [row[1] for row in rows[2:7]] == ["0.1333", "*0.3000*", "**0.5000**", "lightgcn", "66.67 %"]
    assert len({len(line) for line in table.splitlines()}) == 1  # columns line up


def test_the_conclusion_says_if_no_model_beats_the_floor() -> None:
    comparison = stats.compare({"a": [scored(0.3, 0.2)], "b": [scored(0.1, 0.2)]})
    above = replace(comparison, floor={"ndcg": 0.25, "recall": 0.1, "precision": 0.1})
    assert above.conclusion() == f"{comparison.conclusion()} No model beats popularity (0.2500)."
    assert replace(above, floor={"ndcg": 0.24}).conclusion() == comparison.conclusion()


def test_the_conclusion_says_who_by_how_much_and_whether_by_chance() -> None:
    clear = stats.compare({"a": [noisy(1, 0.05)], "b": [noisy(2)]}).conclusion()
    assert clear.startswith("a is ahead of b by ")
    assert "chance" not in clear
    quarter = stats.compare({"a": [scored(0.5, 0.41)], "b": [scored(0.4, 0.49)]})
    assert "by 2.25 % NDCG@20" in quarter.conclusion()  # to the digits of the table's %improvement
    assert "2.25 %" in quarter.markdown()
    unclear = stats.compare({"a": [scored(0.3, 0.1, 0.2)], "b": [scored(0.1, 0.2, 0.2)]}).conclusion()
    assert "which may be chance" in unclear


@pytest.mark.parametrize(
    ("size", "word"), [(0.0, "tiny"), (-0.19, "tiny"), (0.2, "small"), (-0.6, "medium"), (0.8, "large")]
)
def test_effect_sizes_have_cohens_words(size: float, word: str) -> None:
    assert stats.effect_word(size) == word


def test_an_effect_without_a_bound_is_said_to_be_one() -> None:
    assert stats.effect_word(None) == "without bound"
    comparison = stats.compare({"a": [scored(0.75, 0.5)], "b": [scored(0.5, 0.25)]})
    assert comparison.conclusion().endswith("p = 0, effect size d = – (without bound).")


def test_other_users_are_refused_by_name() -> None:
    values = np.array([0.1, 0.2, 0.3])
    a = Scored({"ndcg": values}, users=np.array([1, 2, 5]))
    b = Scored({"ndcg": values}, users=np.array([1, 3, 5]))
    with pytest.raises(DataError, match=r"user 2 \(by index\) was evaluated for a and not for b"):
        stats.compare({"a": [a], "b": [b]})


@pytest.mark.parametrize(("key", "value"), [("split", "valid"), ("mask", "train+valid"), ("k", 10)])
def test_other_settings_are_refused(key: str, value: object) -> None:
    other = scored(0.1, 0.2)
    setattr(other, key, value)
    with pytest.raises(ConfigError, match=f"with {key} = "):
        stats.compare({"a": [scored(0.1, 0.2)], "b": [other]})


def test_one_model_or_no_user_is_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, match="only a to compare"):
        stats.compare({"a": [scored(0.1)]})
    with pytest.raises(DataError, match="no user has a held-out item"):
        stats.compare({"a": [scored()], "b": [scored()]})


def naive_bootstrap(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Resample by resample, with the draws in the same order."""
    means = [values[rng.integers(0, len(values), size=len(values))].mean() for _ in range(resamples)]
    return np.quantile(means, [0.025, 0.975])


@pytest.mark.parametrize("block_bytes", [1, 8 * 30 * 7, 1 << 20], ids=["one by one", "uneven blocks", "one block"])
def test_the_bootstrap_equals_the_naive_loop_whatever_the_block(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(stats, "BLOCK_BYTES", block_bytes)
    values = np.random.default_rng(3).normal(size=30)
    ours = stats.bootstrap_interval(values[:, None], 100, np.random.default_rng(7))[:, 0]
    np.testing.assert_allclose(ours, naive_bootstrap(values, 100, np.random.default_rng(7)), rtol=1e-12)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    samples_UP = rng.normal(0.3, 1.0, size=(80, 600))  # 600 experiments at once, whose true mean is 0.3
    low, high = stats.bootstrap_interval(samples_UP, 800, rng)
    covered = np.mean((low <= 0.3) & (high >= 0.3))
    assert 0.92 <= covered <= 0.97  # a percentile interval of 80 users covers a little less than 95 %


def test_the_same_runs_give_the_same_comparison() -> None:
    models = {"a": [noisy(1, 0.01)], "b": [noisy(2)], "c": [noisy(3)]}
    assert stats.compare(models).as_json() == stats.compare(models).as_json()


def test_an_interval_is_of_ten_thousand_resamples_from_a_fixed_seed() -> None:
    a, b = noisy(1, 0.01).per_user["ndcg"][:50], noisy(2).per_user["ndcg"][:50]
    found = stats.compare({"a": [Scored({"ndcg": a})], "b": [Scored({"ndcg": b})]}).metrics["ndcg"].against["b"]
    low, high = naive_bootstrap(a - b, 10_000, np.random.default_rng(0))
    assert found.interval == pytest.approx((low, high), rel=1e-9)
