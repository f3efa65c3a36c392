"""The tables as rows of text, made once for the page and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmlet.ranking.statistics import SIGNIFICANT, TITLES, Spread, spread
from hmlet.reproduction.cells import OURS, OURS_TITLE, RIVAL_TITLE
from hmlet.reproduction.differences import HIGHER, LOWER, NOT_RUN, Difference
from hmlet.reproduction.records import TESTED, Record
from hmlet.reproduction.tables import AHEAD, BEHIND, BELOW, Row, Tables, chance, p_text

MISSING = "–"
AS_IS = "as it is"  # an arm that changes nothing
P_COLUMNS = ("p, paired by seed", "p, Holm", "p, unpaired")
RECORDS_COLUMN = "records"  # the column that leads to the runs
SEED_TESTS = (
    "Differences are over the seeds that both arms have. A difference is clear if the t-test of these differences, "
    "paired by seed, has p < 0.05 after Holm's correction for the number of comparisons in the table. The unpaired "
    "column is Welch's t-test without correction."
)


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


def ablation_sheet(tables: Tables) -> Sheet:
    """Every arm of the ablation against the trained gate."""
    rows: list[list[Value]] = []
    group = ""
    for row, found in tables.arm_differences():
        part = row.cell.group if row.cell.group != group else ""
        group = row.cell.group
        about: list[Value] = [part, row.cell.label, row.seeds, number(row.spread())]
        judged = [MISSING, *[MISSING] * len(P_COLUMNS), Verdict(AS_IS)] if found is None else tested(found)
        rows.append([*about, *judged, Links(row.records)])
    epochs = {tables.choice.recipe(row.cell, 1).train.epochs for row in tables.rows("ablation")}
    return Sheet(
        "What carries the gain",
        f"{OURS_TITLE} with one thing changed, {RIVAL_TITLE} where it says so, against {OURS_TITLE} as it is "
        f"(gates: trained), for {', '.join(map(str, sorted(epochs)))} epochs each. {SEED_TESTS}",
        ["what is changed", "arm", "seeds", "NDCG@20", f"to {OURS_TITLE}", *P_COLUMNS, "verdict", RECORDS_COLUMN],
        rows,
    )


def leads_sheet(tables: Tables) -> Sheet:
    """HMLET(End) against LightGCN at every size and dropout that the ablation has of both."""
    rows: list[list[Value]] = []
    for ours, rival, found in tables.leads():
        *numbers, _ = tested(found)
        told = Verdict({HIGHER: AHEAD, LOWER: BEHIND}.get(found.verdict, found.verdict))
        means = number(ours.spread()), number(rival.spread())
        rows.append([f"{ours.cell.group} {ours.cell.label}", *means, *numbers, told])
    return Sheet(
        f"The lead over {RIVAL_TITLE}, like against like",
        f"The arms above that both models have, each with the rest of its own recipe. {SEED_TESTS}",
        ["both with", OURS_TITLE, RIVAL_TITLE, "difference", *P_COLUMNS, f"{OURS_TITLE} is"],
        rows,
        wide=True,
    )


def changed_sheet(tables: Sequence[Tables], names: Sequence[str]) -> Sheet:
    """Where the unpaired, uncorrected test gives another verdict than the one that the tables use, and why."""
    rows: list[list[Value]] = []
    for name, each in zip(names, tables, strict=True):
        arms = {
            f"{row.cell.group}: {row.cell.label}, to {OURS_TITLE}": found
            for row, found in each.arm_differences()
            if found is not None
        }
        leads = {
            f"lead over {RIVAL_TITLE}, {ours.cell.group} {ours.cell.label}": found for ours, _, found in each.leads()
        }
        distinct = {found: about for about, found in reversed((arms | leads).items())}  # one run may be in two arms
        for found, about in reversed(distinct.items()):
            if found.verdict != found.unpaired_verdict:
                *numbers, verdict = tested(found)
                rows.append([name, about, *numbers, found.unpaired_verdict, verdict, _reason(found)])
    return Sheet(
        "What changed in our verdicts",
        "",
        ["data set", "comparison", "difference", *P_COLUMNS, "was", "is", "why"],
        rows,
    )


def _reason(found: Difference) -> str:
    """Why the verdict is another one than the unpaired test's."""
    assert found.paired_p is not None
    if found.verdict in (HIGHER, LOWER):
        return "the seeds agree on the difference"
    return "the correction" if found.paired_p < SIGNIFICANT else "the seeds disagree on the difference"


def tested(found: Difference) -> list[Value]:
    """A difference, its p-values and its verdict."""
    percent = MISSING if found.percent is None else f"{found.percent:+.2f} %"
    values = (found.paired_p, found.holm_p, found.unpaired_p)
    return [percent, *map(maybe, values), Verdict(found.verdict)]


def maybe(p: float | None) -> str:
    """A p-value, if there is one."""
    return MISSING if p is None else p_text(p)


def ranking_sheet(tables: Tables) -> Sheet:
    """What the authors' noisy gates and the mask do to the same trained models."""
    row = tables.main.get(OURS)
    records = row.records if row else ()
    noisy = [(record, record.noisy["metrics"]["ndcg"]) for record in records if record.noisy]
    draws = [value for _, values in noisy for value in values]
    within = [spread(values).std for _, values in noisy]
    plain, strict = (row.spread("ndcg", mask) if row else None for mask in ("train", "train+valid"))
    same = spread([record.scores["train"]["ndcg"] for record, _ in noisy]) if noisy else None
    widest = max((std for std in within if std is not None), default=None)
    rows: list[list[Value]] = [
        ["gates by argmax, training items hidden", number(plain), MISSING, MISSING],
        [
            "gates with fresh noise, training items hidden",
            number(spread(draws) if draws else None),
            moved(spread(draws) if draws else None, same),
            MISSING if widest is None else f"{widest:.5f}",
        ],
        ["gates by argmax, validation items hidden too", number(strict), moved(strict, plain), MISSING],
    ]
    return Sheet(
        "Noise when ranking, and the mask",
        f"The same trained {OURS_TITLE}, ranked in other ways. The authors' program draws fresh noise at every "
        "ranking; the last column is the largest standard deviation of one model's draws.",
        ["ranked by", "NDCG@20", "change", "std of draws"],
        rows,
        wide=True,
    )


def moved(ours: Spread | None, base: Spread | None) -> str:
    """The difference of two means, in percent of the second."""
    return MISSING if ours is None or base is None else f"{100 * (ours.mean / base.mean - 1):+.2f} %"


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


def cost_sheet(tables: Sequence[Tables], names: Sequence[str]) -> Sheet:
    """Runs and device minutes by data set."""
    rows = [
        [name, device, f"{runs}", f"{minutes:.1f}"]
        for name, each in zip(names, tables, strict=True)
        for device, runs, minutes in each.cost()
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
        "ablation": ablation_sheet(tables),
        "leads": leads_sheet(tables),
        "ranking": ranking_sheet(tables),
    }
    return {name: sheet for name, sheet in made.items() if sheet.rows}
