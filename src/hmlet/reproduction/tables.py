"""Records to answers: each cell's number beside the paper's with a verdict, and the paper's claims one by one.

Nothing here knows whether a page or a Markdown file will show it, and nothing is filled in: a cell without a record is
"not run", and one with fewer seeds than wanted says how many it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from hmlet.analysis.gates import ClassSize, DegreeDecile
from hmlet.analysis.similarity import ClassCosine
from hmlet.analysis.verdict import FAILS, HOLDS, WEAK, Judgement
from hmlet.ranking.statistics import SIGNIFICANT, Paired, Spread, one_against_others, spread
from hmlet.reporting.paper import paper
from hmlet.reproduction.cells import CAMPAIGN, OURS, OURS_TITLE, TABLES, Cell, is_ours
from hmlet.reproduction.differences import HIGHER, NOT_RUN, BySeed, Difference, differences
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import TESTED, Record, Records, one_dataset
from hmlet.runs.choices import CLASSES

REACHED, BELOW, NO_NUMBER = "reached", "below", "–"
AHEAD, BEHIND, LEVEL = "ahead", "behind", "may be chance"
TEST_RESAMPLES = 2_000  # for the intervals; a tenth of a digit more is not worth a minute
NEAR = 10  # percentage points within which a share is the paper's


@dataclass(frozen=True)
class Row:
    """One cell of the plan and the records that fill it, in the order of their seeds."""

    cell: Cell
    records: tuple[Record, ...]
    paper: tuple[float, ...] | None = None  # NDCG, Recall, Precision as far as the paper has them

    @property
    def seeds(self) -> str:
        count, wanted = len(self.records), self.cell.seeds
        return f"{count}" if count == wanted else f"{count} of {wanted}"

    def spread(self, metric: str = "ndcg", mask: str = "train") -> Spread | None:
        """Mean and deviation over the seeds that were run."""
        values = [record.scores[mask][metric] for record in self.records if mask in record.scores]
        return spread(values) if values else None

    def by_seed(self, metric: str = "ndcg") -> BySeed:
        """The test metric of each seed that was run."""
        return {record.recipe.seed: record.scores["train"][metric] for record in self.records}

    def quoted(self, metric: str) -> float | None:
        """The paper's number."""
        at = TESTED.index(metric)
        return self.paper[at] if self.paper is not None and at < len(self.paper) else None

    def verdict(self, metric: str) -> str:
        """reached, below, not run, or – where the paper has no number; to the digits that the paper prints."""
        ours, theirs = self.spread(metric), self.quoted(metric)
        if ours is None:
            return NOT_RUN
        if theirs is None:
            return NO_NUMBER
        return REACHED if round(ours.mean, 4) >= theirs else BELOW

    def shortfall(self, metric: str) -> float | None:
        """Our mean over the paper's number, in percent of it."""
        ours, theirs = self.spread(metric), self.quoted(metric)
        return None if ours is None or theirs is None else 100.0 * (ours.mean / theirs - 1.0)


@dataclass(frozen=True)
class Claim:
    """Something that the paper says: what it says, what we found, and whether that agrees."""

    about: str
    paper: str
    ours: str
    verdict: str  # holds, holds so far, does not hold, too weak to say, not run


class Tables:
    """Every table of one data set, from the records that a choice's recipes find."""

    def __init__(self, choice: Choice, records: Records) -> None:
        self.choice, self._records = choice, records
        self._rows: dict[str, list[Row]] = {}
        one_dataset([record for table in ("main", "variants") for row in self.rows(table) for record in row.records])

    @property
    def dataset(self) -> str:
        return self.choice.dataset

    def rows(self, table: str) -> list[Row]:
        """A table's rows, whether or not they were run."""
        if table not in self._rows:
            self._rows[table] = [self.row(cell) for cell in self.choice.cells([table])]
        return self._rows[table]

    def row(self, cell: Cell) -> Row:
        """A cell with its records."""
        return Row(cell, self._found(cell), self._quoted(cell))

    def _found(self, cell: Cell) -> tuple[Record, ...]:
        recipes = (self.choice.recipe(cell, seed) for seed in range(1, cell.seeds + 1))
        return tuple(found for recipe in recipes if (found := self._records.find(self.dataset, recipe)) is not None)

    def _quoted(self, cell: Cell) -> tuple[float, ...] | None:
        if cell.table == "main":
            return paper().main_table.get(self.dataset, {}).get(cell.model)
        if cell.table == "variants":
            value = paper().variants_ndcg.get(self.dataset, {}).get(CAMPAIGN.variant(cell.model))
            return None if value is None else (value,)
        return None

    @cached_property
    def main(self) -> dict[str, Row]:
        """The main table by model."""
        return {row.cell.model: row for row in self.rows("main")}

    @cached_property
    def tests(self) -> dict[str, dict[str, Paired]]:
        """HMLET(End) minus each other model, over users: metric -> model -> tests. Empty before both were run."""
        models = {
            name: [record.paired for record in row.records if record.paired is not None]
            for name, row in self.main.items()
        }
        some = {name: runs for name, runs in models.items() if runs}
        return one_against_others(OURS, some, resamples=TEST_RESAMPLES) if OURS in some and len(some) > 1 else {}

    @cached_property
    def seed_tests(self) -> dict[str, dict[str, Difference]]:
        """HMLET(End) minus each other model that was run, over seeds: metric -> model -> tests, a family per metric."""
        ours = self.main.get(OURS)
        others = {name: row for name, row in self.main.items() if name != OURS and row.records}
        if ours is None or not ours.records:
            return {}
        return {
            metric: dict(
                zip(
                    others,
                    differences([(ours.by_seed(metric), row.by_seed(metric)) for row in others.values()]),
                    strict=True,
                )
            )
            for metric in TESTED
        }

    def best_baseline(self, metric: str = "ndcg") -> Row | None:
        """The best model of the main table that is no HMLET."""
        rows = [row for row in self.main.values() if not is_ours(row.cell.model) and row.records]
        return max(rows, key=lambda row: _mean(row, metric), default=None)

    @cached_property
    def analysed(self) -> list[Record]:
        """HMLET(End)'s runs whose gates were analysed, by seed."""
        row = self.main.get(OURS)
        return [record for record in row.records if record.analysis] if row else []

    def cost(self, more: Sequence[Row] = ()) -> list[tuple[str, int, float]]:
        """Device, runs and minutes of every record behind a table, and behind more rows, each run once."""
        rows = [*(row for table in TABLES for row in self.rows(table)), *more]
        records = {record.path: record for row in rows for record in row.records}
        devices = sorted({record.device for record in records.values()})
        return [
            (device, len(own), sum(record.seconds for record in own) / 60)
            for device in devices
            for own in [[record for record in records.values() if record.device == device]]
        ]

    # -- the paper's claims ---------------------------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        """What the paper's tables and figures say, in their order, and whether it holds here."""
        return [
            self._numbers_claim(),
            self._gain_claim(),
            self._variants_claim(),
            *self._gate_claims(),
        ]

    def _numbers_claim(self) -> Claim:
        row = self.main.get(OURS)
        quoted = None if row is None else row.paper
        says = "–" if quoted is None else " / ".join(f"{value:.4f}" for value in quoted)
        about = f"{OURS_TITLE}: NDCG, Recall and Precision@20"
        if row is None or not row.records:
            return Claim(about, says, NOT_RUN, NOT_RUN)
        means = " / ".join(f"{_mean(row, metric):.4f}" for metric in TESTED)
        if quoted is None:
            return Claim(about, says, means, NO_NUMBER)
        return Claim(about, says, means, HOLDS if all(row.verdict(each) == REACHED for each in TESTED) else FAILS)

    def _gain_claim(self) -> Claim:
        """Ahead of every baseline that was run, over users and, with several seeds of both, over seeds too."""
        theirs = paper().improvement_percent.get(self.dataset)
        says = "yes" if theirs is None else f"yes, by {theirs[0]:.2f} % NDCG"
        about, best = f"{OURS_TITLE} beats every baseline", self.best_baseline()
        wanted = [row.cell.model for row in self.main.values() if not is_ours(row.cell.model)]
        gaps = {model: gap for model, gap in self.tests.get("ndcg", {}).items() if model in wanted}
        if best is None or best.cell.model not in gaps:
            return Claim(about, says, NOT_RUN, NOT_RUN)
        seeds = self.seed_tests["ndcg"]
        gap, over_seeds = gaps[best.cell.model], seeds[best.cell.model].holm_p
        amount = "level" if gap.difference_percent is None else f"{gap.difference_percent:+.2f} %"
        told = "one seed" if over_seeds is None else f"{p_text(over_seeds)} over seeds (Holm)"
        ours = (
            f"{amount} over {best.cell.label}, p = {p_text(gap.t_test_p)} over users, {told} "
            f"({len(gaps)} of {len(wanted)} baselines run)"
        )
        verdicts = {chance(each, seeds[model].holm_p) for model, each in gaps.items()}
        if BEHIND in verdicts:
            return Claim(about, says, ours, FAILS)
        if LEVEL in verdicts:
            return Claim(about, says, ours, WEAK)
        return Claim(about, says, ours, HOLDS if len(gaps) == len(wanted) else f"{HOLDS} so far")

    def _variants_claim(self) -> Claim:
        rows = sorted((row for row in self.rows("variants") if row.records), key=lambda row: -_mean(row))
        about, says = "End is the best place for the gates", "yes"
        wanted = len(CAMPAIGN.variants.models)
        if len(rows) < wanted:
            return Claim(about, says, NOT_RUN if not rows else f"{len(rows)} of {wanted} variants run", NOT_RUN)
        ours = f"{rows[0].cell.label} {_mean(rows[0]):.4f}, {rows[1].cell.label} {_mean(rows[1]):.4f}"
        if rows[0].cell.model != OURS:
            return Claim(about, says, ours, FAILS)
        leads = differences([(rows[0].by_seed(), other.by_seed()) for other in rows[1:]])
        return Claim(about, says, ours, HOLDS if all(lead.verdict == HIGHER for lead in leads) else WEAK)

    def _gate_claims(self) -> list[Claim]:
        sizes = paper().class_size_percent.get(self.dataset)
        says = "FL is the smallest class" if sizes is None else _sizes({name: sizes[name] / 100 for name in CLASSES})
        names = {"pagerank": "PageRank", "betweenness": "Betweenness", "closeness": "Closeness"}
        chosen = paper().gate_share_percent[CAMPAIGN.variant(OURS)][2:]
        abouts = [
            ("Non-linear choices at layers 3 / 4", f"{chosen[0]:.1f} % / {chosen[1]:.1f} % (Amazon-Book)"),
            (f"Class sizes FNL / PNL / FL, each within {NEAR} points", says),
            ("FNL's share grows with the degree, FL's falls", "yes (Amazon-Book)"),
            *((f"{name} falls from FNL over PNL to FL", "yes (Amazon-Book)") for name in names.values()),
            ("FNL's neighbours are the most varied: lowest mean cosine, highest variance", "yes (Amazon-Book)"),
        ]
        found = self.analysed[0].analysis if self.analysed else None
        if found is None:
            return [Claim(about, said, NOT_RUN, NOT_RUN) for about, said in abouts]
        answers = [
            self._share_answer(found.gate_share, chosen),
            _size_answer(found.class_size, sizes),
            _decile_answer(found.degree_deciles),
            *(_centrality_answer(found.verdict.get(name), found.class_size) for name in names),
            _cosine_answer(found.neighbour_cosine),
        ]
        return [Claim(about, said, *answer) for (about, said), answer in zip(abouts, answers, strict=True)]

    def _share_answer(self, found: Mapping[str, float], theirs: Sequence[float]) -> tuple[str, str]:
        """Near the paper's shares on its own set; on another one there is nothing to compare with."""
        ours = [100 * share for share in found.values()]
        text = " / ".join(f"{share:.1f} %" for share in ours)
        if self.dataset != paper().gates_data:
            return text, NO_NUMBER
        near = len(ours) == len(theirs) and all(abs(a - b) <= NEAR for a, b in zip(ours, theirs, strict=True))
        return text, HOLDS if near else FAILS


def chance(gap: Paired, over_seeds: float | None) -> str:
    """Whether a model is ahead, behind, or close enough for chance: p ≥ 0.05 over users, or over seeds.

    `over_seeds` is None where two models share fewer than two seeds; users alone decide then.
    """
    if gap.t_test_p >= SIGNIFICANT or (over_seeds is not None and over_seeds >= SIGNIFICANT):
        return LEVEL
    return AHEAD if gap.difference > 0 else BEHIND


def p_text(value: float) -> str:
    return "< 1e-300" if value < 1e-300 else f"{value:.3g}"


def _mean(row: Row, metric: str = "ndcg") -> float:
    found = row.spread(metric)
    return float("-inf") if found is None else found.mean


def _sizes(shares: Mapping[str, float]) -> str:
    return " / ".join(f"{100 * shares[name]:.1f} %" for name in CLASSES)


def _size_answer(found: Mapping[str, ClassSize], theirs: Mapping[str, float] | None) -> tuple[str, str]:
    """Agrees where every class is near the paper's size; without numbers of this set, where FL is the smallest."""
    shares = {name: found[name].share for name in CLASSES}
    if theirs is None:
        return _sizes(shares), HOLDS if min(shares, key=lambda name: shares[name]) == "fl" else FAILS
    near = all(abs(100 * shares[name] - theirs[name]) <= NEAR for name in CLASSES)
    return _sizes(shares), HOLDS if near else FAILS


def _decile_answer(rows: Sequence[DegreeDecile]) -> tuple[str, str]:
    """Compares the lowest decile with the highest; where no node is FL, half of the claim cannot be tested."""
    some = [(row.fnl, row.fl) for row in rows if row.fnl is not None and row.fl is not None]
    if len(some) < 2:
        return "too few degrees", WEAK
    (low_fnl, low_fl), (high_fnl, high_fl) = some[0], some[-1]
    text = f"lowest to highest decile: FNL {low_fnl:.1%} → {high_fnl:.1%}; FL {low_fl:.1%} → {high_fl:.1%}"
    if high_fnl <= low_fnl:
        return text, FAILS
    if all(fl == 0 for _, fl in some):
        return text, WEAK
    return text, HOLDS if high_fl < low_fl else FAILS


def _centrality_answer(found: Judgement | None, sizes: Mapping[str, ClassSize]) -> tuple[str, str]:
    """The analysis' verdict; where a class is empty, half of the claimed order cannot be tested."""
    if found is None:
        return NOT_RUN, NOT_RUN
    rho = found.spearman.rho
    text = "–" if rho is None else f"Spearman's ρ = {rho:.2f}"
    empty = [name.upper() for name in CLASSES if sizes[name].nodes == 0]
    if not empty:
        return text, found.verdict
    return f"{text}; no node is {' or '.join(empty)}", FAILS if found.verdict == FAILS else WEAK


def _cosine_answer(found: Mapping[str, ClassCosine]) -> tuple[str, str]:
    present = [
        (name, each.mean, each.variance)
        for name in CLASSES
        if (each := found[name]).mean is not None and each.variance is not None
    ]
    if len(present) < 2:
        return "fewer than two classes", WEAK
    means, variances = [mean for _, mean, _ in present], [variance for _, _, variance in present]
    text = ", ".join(f"{name.upper()} {mean:.3f} ({variance:.4f})" for name, mean, variance in present)
    holds = all(a < b for a, b in pairwise(means)) and variances[0] == max(variances)
    return f"mean (variance): {text}", HOLDS if holds else FAILS
