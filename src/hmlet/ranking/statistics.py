"""Which model is better, by how much, and is the difference significant? Paired tests over users.

Legend: U users, P differences (one per metric and pair of models), B resamples held at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.stats import ttest_ind_from_stats, ttest_rel, wilcoxon

from hmlet.errors import ConfigError, DataError
from hmlet.models import FLOOR
from hmlet.system.frames import Framed

Floats = npt.NDArray[np.float64]

TITLES = {
    "ndcg": "NDCG",
    "recall": "Recall",
    "precision": "Precision",
    "map": "MAP",
    "mrr": "MRR",
    "hit_rate": "Hit rate",
}
TABLE = ("ndcg", "recall", "precision")  # the columns of the paper's main table; JSON has every metric
FLOOR_LABEL = f"{FLOOR} (floor)"
SIGNIFICANT = 0.05
RESAMPLES = 10_000
BLOCK_BYTES = 2 << 20  # of drawn indices held at once: small enough to stay in the cache


class Evaluated(Protocol):
    """What a comparison needs of an evaluation."""

    @property
    def split(self) -> str: ...
    @property
    def mask(self) -> str: ...
    @property
    def k(self) -> int: ...
    @property
    def users(self) -> npt.NDArray[np.int64]: ...
    @property
    def per_user(self) -> Mapping[str, Floats]: ...


@dataclass(frozen=True)
class Spread:
    """One model's value of one metric over its runs; `std` (of a sample) is None for a single run."""

    mean: float
    std: float | None
    runs: tuple[float, ...]


@dataclass(frozen=True)
class Paired:
    """The paired difference of two models over the same users: the first minus the second."""

    difference: float
    difference_percent: float | None  # of the second's mean; None where that is 0
    t_test_p: float
    wilcoxon_p: float
    effect_size: float | None  # None where it has no bound: every user differs by the same amount
    interval: tuple[float, float]  # 95 %, bootstrap over users

    @property
    def interval_percent(self) -> tuple[float, float] | None:
        """The interval in percent of the second's mean; None without a difference or where that mean is 0."""
        if not self.difference or self.difference_percent is None:
            return None
        scale = self.difference_percent / self.difference
        return self.interval[0] * scale, self.interval[1] * scale


@dataclass(frozen=True)
class MetricComparison:
    """One metric: every model's spread, and the best model against each other one, best first."""

    models: dict[str, Spread]
    against: dict[str, Paired]

    @property
    def best(self) -> str:
        """The model with the highest mean; the first given where several have it."""
        return max(self.models, key=lambda label: self.models[label].mean)

    @property
    def baseline(self) -> str:
        """The best of the other models, which the best one is measured against."""
        return next(iter(self.against))

    def as_json(self) -> dict[str, Any]:
        return {
            "means": {label: spread.mean for label, spread in self.models.items()},
            "stds": {label: spread.std for label, spread in self.models.items()},
            "runs": {label: list(spread.runs) for label, spread in self.models.items()},
            "best": self.best,
            "baseline": self.baseline,
            **asdict(self.against[self.baseline]),
            "against": {label: asdict(paired) for label, paired in self.against.items()},
        }


@dataclass(frozen=True, repr=False)
class Comparison(Framed):
    """Models on the same users of the same data, metric by metric. As a frame: a row for each model, with its means."""

    split: str
    mask: str
    k: int
    users: int
    metrics: dict[str, MetricComparison]
    floor: dict[str, float] | None = None  # by metric: what every model has to beat; None if it is one of the models

    def __repr__(self) -> str:
        return f"<Comparison on {self.split}, {self.users:,} users: {self.conclusion()}>"

    def as_json(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "mask": self.mask,
            "k": self.k,
            "users": self.users,
            "metrics": {name: metric.as_json() for name, metric in self.metrics.items()},
            "floor": None if self.floor is None else {"model": FLOOR, "means": self.floor},
            "conclusion": self.conclusion(),
        }

    def to_arrow(self) -> pa.Table:
        means = {name: metric.models for name, metric in self.metrics.items()}
        labels = list(next(iter(means.values())))
        columns = {name: [models[label].mean for label in labels] for name, models in means.items()}
        return pa.table({"model": labels, **columns})

    def markdown(self, metrics: Sequence[str] = TABLE) -> str:
        """The paper's main table, with the best model in bold, the second in italics and the floor last; then the tests
        of the difference between the two."""
        shown = [self.metrics[name] for name in metrics]
        rows = [["", *(f"{TITLES.get(name, name)}@{self.k}" for name in metrics)]]
        rows += [[label, *(_cell(metric, label) for metric in shown)] for label in shown[0].models]
        if self.floor is not None:
            rows.append([FLOOR_LABEL, *(f"{self.floor[name]:.4f}" for name in metrics)])
        gaps = [metric.against[metric.baseline] for metric in shown]
        rows += [
            ["best against", *(metric.baseline for metric in shown)],
            ["%improvement", *(_percent(gap) for gap in gaps)],
            ["p (paired t-test)", *(f"{gap.t_test_p:.3g}" for gap in gaps)],
            ["p (Wilcoxon)", *(f"{gap.wilcoxon_p:.3g}" for gap in gaps)],
            ["effect size d", *(_effect(gap) for gap in gaps)],
            ["95 % interval", *(f"{gap.interval[0]:+.5f} … {gap.interval[1]:+.5f}" for gap in gaps)],
        ]
        return markdown_table(rows)

    def conclusion(self, name: str = "ndcg") -> str:
        """One plain sentence on the best model and the best other one, and one more if neither beats the floor."""
        return self._difference(name) + self._below_the_floor(name)

    def _below_the_floor(self, name: str) -> str:
        metric = self.metrics[name]
        if self.floor is None or metric.models[metric.best].mean > self.floor[name]:
            return ""
        return f" No model beats {FLOOR} ({self.floor[name]:.4f})."

    def _difference(self, name: str) -> str:
        metric, title = self.metrics[name], f"{TITLES.get(name, name)}@{self.k}"
        gap = metric.against[metric.baseline]
        if gap.difference == 0.0:
            return f"{metric.best} and {metric.baseline} are level in {title}."
        amount = f"{gap.difference:.5f}" if gap.difference_percent is None else f"{gap.difference_percent:.2f} %"
        chance = "" if gap.t_test_p < SIGNIFICANT else ", which may be chance"
        return (
            f"{metric.best} is ahead of {metric.baseline} by {amount} {title}{chance}; "
            f"p = {gap.t_test_p:.3g}, effect size d = {_effect(gap)} ({effect_word(gap.effect_size)})."
        )


def compare(
    models: Mapping[str, Sequence[Evaluated]], *, resamples: int = RESAMPLES, rng: np.random.Generator | None = None
) -> Comparison:
    """Models against each other, from the evaluations of each one's runs (several seeds, say).

    A model's per-user values are averaged over its runs before they are paired, so that a test's sample is the users
    and not the seeds. For each metric the model with the highest mean is tested against each other one. p-values are
    two-sided and not corrected for the number of models.
    """
    if len(models) < 2:
        raise ConfigError(f"only {', '.join(models) or 'nothing'} to compare", "name runs of at least two models")
    first = _same_setting(models)
    averaged = _averaged(models)
    pairs: list[tuple[str, str, str]] = []  # metric, the best model, another one
    spreads: dict[str, dict[str, Spread]] = {}
    for name in first.per_user:
        spreads[name] = {
            label: spread([float(run.per_user[name].mean()) for run in runs]) for label, runs in models.items()
        }
        best, *others = sorted(spreads[name], key=lambda label: -spreads[name][label].mean)
        pairs += [(name, best, other) for other in others]
    against = _test(averaged, pairs, resamples, rng)
    metrics = {name: MetricComparison(spreads[name], against[name]) for name in first.per_user}
    return Comparison(first.split, first.mask, first.k, len(first.users), metrics)


def one_against_others(
    label: str,
    models: Mapping[str, Sequence[Evaluated]],
    *,
    resamples: int = RESAMPLES,
    rng: np.random.Generator | None = None,
) -> dict[str, dict[str, Paired]]:
    """One model against each other one, ahead or not: metric -> other model -> the model minus the other."""
    first = _same_setting(models)
    pairs = [(name, label, other) for name in first.per_user for other in models if other != label]
    return _test(_averaged(models), pairs, resamples, rng)


def _averaged(models: Mapping[str, Sequence[Evaluated]]) -> dict[str, dict[str, Floats]]:
    """Each model's values by user, averaged over its runs: model -> metric -> values."""
    return {
        label: {name: np.mean([run.per_user[name] for run in runs], axis=0) for name in runs[0].per_user}
        for label, runs in models.items()
    }


def _test(
    averaged: Mapping[str, Mapping[str, Floats]],
    pairs: Sequence[tuple[str, str, str]],
    resamples: int,
    rng: np.random.Generator | None,
) -> dict[str, dict[str, Paired]]:
    """The tests of pairs (metric, model, other model): metric -> other model -> what they say."""
    found: dict[str, dict[str, Paired]] = {name: {} for name, _, _ in pairs}
    if not pairs:
        return found
    differences_UP = np.stack([averaged[one][name] - averaged[other][name] for name, one, other in pairs], axis=1)
    intervals_2P = bootstrap_interval(differences_UP, resamples, rng or np.random.default_rng(0))
    for at, (name, one, other) in enumerate(pairs):
        interval = (float(intervals_2P[0, at]), float(intervals_2P[1, at]))
        found[name][other] = _paired(averaged[one][name], averaged[other][name], interval)
    return found


def t_test(first: Floats, second: Floats) -> float:
    """The two-sided p of the paired t-test; 1 if nothing differs or there is only one user."""
    difference = first - second
    if len(difference) < 2 or not difference.any():
        return 1.0
    if np.ptp(difference) == 0.0:
        return 0.0  # the statistic has no bound
    return float(ttest_rel(first, second).pvalue)


def welch_test(first: Spread, second: Spread) -> float:
    """The two-sided p of Welch's t-test of two models over their seeds, unpaired; 1 if a model has one seed."""
    a, b = first, second
    if a.std is None or b.std is None:
        return 1.0
    if a.std == b.std == 0.0:  # the statistic has no bound
        return float(a.mean == b.mean)
    found = ttest_ind_from_stats(a.mean, a.std, len(a.runs), b.mean, b.std, len(b.runs), equal_var=False)
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected by Holm's step-down method, in the order given.

    The k-th smallest of m is multiplied by m - k + 1, capped at 1, and never falls below the one before. Rejecting
    those under α keeps the chance of any false rejection among the m tests at α or less.
    """
    count, largest = len(p_values), 0.0
    corrected = [0.0] * count
    for rank, at in enumerate(sorted(range(count), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (count - rank) * p_values[at]))
        corrected[at] = largest
    return corrected


def signed_rank_test(first: Floats, second: Floats) -> float:
    """The two-sided p of Wilcoxon's signed-rank test; users without a difference are left out, 1 where all are."""
    difference = first - second
    return float(wilcoxon(difference).pvalue) if difference.any() else 1.0


def effect_size(first: Floats, second: Floats) -> float | None:
    """Cohen's d of paired samples: the mean difference over the standard deviation of the differences.

    0 if nothing differs; None if all users differ by the same amount or there is only one user.
    """
    difference = first - second
    if not difference.any():
        return 0.0
    if len(difference) < 2 or np.ptp(difference) == 0.0:
        return None
    return float(difference.mean() / difference.std(ddof=1))


def effect_word(size: float | None) -> str:
    """Cohen's word for an effect size, and "tiny" below "small"."""
    if size is None:
        return "without bound"
    limits = ((0.2, "tiny"), (0.5, "small"), (0.8, "medium"))
    return next((word for limit, word in limits if abs(size) < limit), "large")


def bootstrap_interval(values_UP: Floats, resamples: int, rng: np.random.Generator, level: float = 0.95) -> Floats:
    """The percentile interval of each column's mean when users are drawn again with replacement: 2 × P.

    All columns share the draws. A resample's mean is (how often each user was drawn) · values / U, so a block of
    resamples is one matrix product, and the block's size bounds the memory whatever the number of resamples.
    """
    count = len(values_UP)
    if count == 0:
        return np.zeros((2, values_UP.shape[1]))
    size = max(1, BLOCK_BYTES // (8 * count))
    means_BP = []
    for start in range(0, resamples, size):
        rows = min(size, resamples - start)
        drawn = rng.integers(0, count, size=(rows, count)) + count * np.arange(rows)[:, None]
        times_BU = np.bincount(drawn.reshape(-1), minlength=rows * count).reshape(rows, count)
        means_BP.append(times_BU.astype(np.float64) @ values_UP / count)
    tail = (1.0 - level) / 2.0
    interval: Floats = np.quantile(np.concatenate(means_BP), [tail, 1.0 - tail], axis=0)
    return interval


def _paired(first: Floats, second: Floats, interval: tuple[float, float]) -> Paired:
    difference = float((first - second).mean()) if len(first) else 0.0
    base = float(second.mean()) if len(second) else 0.0
    return Paired(
        difference=difference,
        difference_percent=100.0 * difference / base if base else None,
        t_test_p=t_test(first, second),
        wilcoxon_p=signed_rank_test(first, second),
        effect_size=effect_size(first, second),
        interval=interval,
    )


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation of a metric over runs."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), std, tuple(values))


def _same_setting(models: Mapping[str, Sequence[Evaluated]]) -> Evaluated:
    """The first evaluation, after checking that all have the same split, mask, k and users."""
    labelled = [(label, run) for label, runs in models.items() for run in runs]
    first_label, first = labelled[0]
    for label, run in labelled[1:]:
        for key in ("split", "mask", "k"):
            if getattr(run, key) != getattr(first, key):
                here, there = getattr(first, key), getattr(run, key)
                raise ConfigError(
                    f"{first_label} was evaluated with {key} = {here} and {label} with {there}",
                    "use the same setting for both",
                )
        differing = np.setxor1d(first.users, run.users)
        if len(differing):
            user = differing[0]
            has, lacks = (first_label, label) if user in first.users else (label, first_label)
            raise DataError(
                f"the users differ: user {user} (by index) was evaluated for {has} and not for {lacks}",
                "compare runs on one data set",
            )
    if len(first.users) == 0:
        raise DataError(f"no user has a held-out item in the {first.split} part", "use a part with held-out items")
    return first


def _cell(metric: MetricComparison, label: str) -> str:
    spread = metric.models[label]
    text = f"{spread.mean:.4f}" if spread.std is None else f"{spread.mean:.4f} ± {spread.std:.4f}"
    if label == metric.best:
        return f"**{text}**"
    return f"*{text}*" if label == metric.baseline else text


def _percent(gap: Paired) -> str:
    return "–" if gap.difference_percent is None else f"{gap.difference_percent:.2f} %"


def _effect(gap: Paired) -> str:
    return "–" if gap.effect_size is None else f"{gap.effect_size:.3f}"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up as plain text: the first to the left, the others to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 1) + ":" if at else "-" * (width + 2) for at, width in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
