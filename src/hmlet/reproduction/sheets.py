"""The tables as rows of text, made once for the page and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmlet.ranking.statistics import TITLES, Spread
from hmlet.reproduction.cells import OURS, OURS_TITLE
from hmlet.reproduction.differences import NOT_RUN
from hmlet.reproduction.records import TESTED, Record
from hmlet.reproduction.tables import BELOW, Row, Tables, chance, p_text

MISSING = "–"
RECORDS_COLUMN = "records"  # the column that leads to the runs


class Verdict(str):
    """A cell that judges; the page marks it."""


class Links(tuple[Record, ...]):
    """A cell that leads to records."""


Value = str | Links


@dataclass(frozen=True)
class Sheet:
    """One table: `see` says what to look for, `quoted` names the columns that are the paper's."""

    title: str
    see: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    quoted: Sequence[int] = ()
    words: bool = False  # whether the cells are sentences
    wide: bool = False  # whether few columns need the page's width all the same


def number(found: Spread | None) -> str:
    """Mean ± standard deviation, a single run's value, or "not run"."""
    if found is None:
        return Verdict(NOT_RUN)
    return f"{found.mean:.4f}" if found.std is None else f"{found.mean:.4f} ± {found.std:.4f}"


def _judged(row: Row, metric: str) -> list[Value]:
    """Ours, the paper's, and the verdict; "below" says by how much."""
    theirs, short = row.quoted(metric), row.shortfall(metric)
    verdict = row.verdict(metric)
    told = f"{verdict} ({short:+.1f} %)" if verdict == BELOW and short is not None else verdict
    return [number(row.spread(metric)), MISSING if theirs is None else f"{theirs:.4f}", Verdict(told)]


def main_sheet(tables: Tables) -> Sheet:
    """Every model beside the paper's row, under the paper's mask and the strict one."""
    rows: list[list[Value]] = []
    for row in tables.main.values():
        judged = [value for metric in TESTED for value in _judged(row, metric)]
        strict = row.spread("ndcg", "train+valid")
        told = Verdict(NOT_RUN) if strict is None else f"{strict.mean:.4f}"
        rows.append([row.cell.label, row.seeds, *judged, told, Links(row.records)])
    names = [f"{TITLES[metric]}@20" for metric in TESTED]
    columns = ["model", "seeds", *(each for name in names for each in (name, "paper", "verdict"))]
    return Sheet(
        "The main table",
        "Test part, full ranking, mean ± standard deviation over seeds. The paper's mask hides training items; the "
        "strict one hides validation items too.",
        [*columns, "strict NDCG", RECORDS_COLUMN],
        rows,
        (3, 6, 9),
    )


def tests_sheet(tables: Tables) -> Sheet:
    """HMLET(End) against each other model, user by user."""
    rows: list[list[Value]] = []
    for model, row in tables.main.items():
        if model == OURS:
            continue
        for metric in TESTED:
            gap = tables.tests.get(metric, {}).get(model)
            label = row.cell.label if metric == TESTED[0] else ""
            if gap is None:
                rows += [[label, MISSING, Verdict(NOT_RUN), *[MISSING] * 6]] if label else []
                continue
            percent = MISSING if gap.difference_percent is None else f"{gap.difference_percent:+.2f} %"
            effect = MISSING if gap.effect_size is None else f"{gap.effect_size:+.3f}"
            low, high = gap.interval
            over_seeds = tables.seed_tests[metric][model].holm_p
            told = [percent, p_text(gap.t_test_p), p_text(gap.wilcoxon_p), effect, f"{low:+.5f} … {high:+.5f}"]
            rows.append([label, f"{TITLES[metric]}@20", Verdict(chance(gap, over_seeds)), *told, maybe(over_seeds)])
    return Sheet(
        f"{OURS_TITLE} against each model",
        "Paired over users, each user's value averaged over the seeds that were run, not corrected for the number of "
        "models. The last column pairs the means of the seeds that both models have, with Holm's correction for the "
        "number of models: it says whether other seeds would agree. A model is ahead if both have p < 0.05; with one "
        "seed the users decide alone.",
        [
            "against",
            "metric",
            f"{OURS_TITLE} is",
            "difference",
            "p (t-test)",
            "p (Wilcoxon)",
            "effect size d",
            "95 % interval",
            "p over seeds (Holm)",
        ],
        rows,
    )


def variants_sheet(tables: Tables) -> Sheet:
    """The four places for the gates, by NDCG."""
    rows = [[row.cell.label, row.seeds, *_judged(row, "ndcg"), Links(row.records)] for row in tables.rows("variants")]
    return Sheet(
        "Where to put the gates",
        "The paper's figure of variants. It finds End best on every set.",
        ["variant", "seeds", "NDCG@20", "paper", "verdict", RECORDS_COLUMN],
        rows,
        (3,),
    )


def maybe(p: float | None) -> str:
    """A p-value, if there is one."""
    return MISSING if p is None else p_text(p)


def claims_sheet(tables: Tables) -> Sheet:
    """The paper's claims, one per row."""
    rows = [[claim.about, claim.paper, claim.ours, Verdict(claim.verdict)] for claim in tables.claims()]
    return Sheet(
        "What the paper says, and what we find",
        f"One row for each table and figure; the gates are those of {OURS_TITLE}'s first analysed seed.",
        ["", "paper", "ours", "verdict"],
        rows,
        (1,),
        words=True,
    )


def cost_sheet(tables: Sequence[Tables], names: Sequence[str], more: Sequence[Sequence[Row]] | None = None) -> Sheet:
    """Runs and device minutes by data set; `more` has rows of other tables for each of them."""
    rows = [
        [name, device, f"{runs}", f"{minutes:.1f}"]
        for name, each, others in zip(names, tables, more or [()] * len(tables), strict=True)
        for device, runs, minutes in each.cost(others)
    ]
    empty: list[list[Value]] = [[Verdict(NOT_RUN), MISSING, "0", "0.0"]]
    return Sheet(
        "What it cost",
        "Every run that stands in a table above, once, from its start to its last file; searches are counted apart.",
        ["data set", "device", "runs", "minutes"],
        rows or empty,
    )


def sheets(tables: Tables) -> dict[str, Sheet]:
    """Every sheet of a data set by a short name, in the page's order; one whose models were not chosen is left out."""
    made = {
        "claims": claims_sheet(tables),
        "main": main_sheet(tables),
        "tests": tests_sheet(tables),
        "variants": variants_sheet(tables),
    }
    return {name: sheet for name, sheet in made.items() if sheet.rows}
