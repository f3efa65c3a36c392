"""The tables that only the project has: the ablation, the lead over LightGCN, noise when ranking, and summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hmlet.ranking.statistics import SIGNIFICANT, Spread, spread
from hmlet.reproduction.cells import OURS, OURS_TITLE, RIVAL, RIVAL_TITLE, title
from hmlet.reproduction.differences import FEW, HIGHER, LOWER, NOT_RUN, UNCLEAR, Difference
from hmlet.reproduction.sheets import MISSING, RECORDS_COLUMN, Links, Sheet, Value, Verdict, claims_sheet, maybe, number
from hmlet.reproduction.tables import AHEAD, BEHIND, Tables
from lab.ablation import CARRIERS, Ablation
from lab.noise import noise, stability

AS_IS = "as it is"  # an arm that changes nothing
P_COLUMNS = ("p, paired by seed", "p, Holm", "p, unpaired")
SEED_TESTS = (
    "Differences are over the seeds that both arms have. A difference is clear if the t-test of these differences, "
    "paired by seed, has p < 0.05 after Holm's correction for the number of comparisons in the table. The unpaired "
    "column is Welch's t-test without correction."
)


def all_claims_sheet(tables: Tables) -> Sheet:
    """The paper's claims, and what it does not say: whether another seed would put a node into the same class."""
    sheet, found = claims_sheet(tables), stability(tables)
    told, verdict = NOT_RUN, Verdict(NOT_RUN)
    if found is not None:
        chance = f"{100 * found.keep_by_chance:.1f} % by chance, κ = {found.kappa:.2f}"
        told, verdict = f"{100 * found.keep:.1f} % of nodes over {found.runs} seeds ({chance})", Verdict(MISSING)
    return replace(sheet, rows=[*sheet.rows, ["A node has one class whatever the seed", MISSING, told, verdict]])


def ablation_sheet(ablation: Ablation) -> Sheet:
    """Every arm of the ablation against the trained gate."""
    rows: list[list[Value]] = []
    group = ""
    for row, found in ablation.differences():
        part = row.cell.group if row.cell.group != group else ""
        group = row.cell.group
        about: list[Value] = [part, row.cell.label, row.seeds, number(row.spread())]
        judged = [MISSING, *[MISSING] * len(P_COLUMNS), Verdict(AS_IS)] if found is None else tested(found)
        rows.append([*about, *judged, Links(row.records)])
    epochs = {ablation.tables.choice.recipe(row.cell, 1).train.epochs for row in ablation.rows}
    return Sheet(
        "What carries the gain",
        f"{OURS_TITLE} with one thing changed, {RIVAL_TITLE} where it says so, against {OURS_TITLE} as it is "
        f"(gates: trained), for {', '.join(map(str, sorted(epochs)))} epochs each. {SEED_TESTS}",
        ["what is changed", "arm", "seeds", "NDCG@20", f"to {OURS_TITLE}", *P_COLUMNS, "verdict", RECORDS_COLUMN],
        rows,
    )


def leads_sheet(ablation: Ablation) -> Sheet:
    """HMLET(End) against LightGCN at every size and dropout that the ablation has of both."""
    rows: list[list[Value]] = []
    for ours, rival, found in ablation.leads():
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


def changed_sheet(ablations: Sequence[Ablation]) -> Sheet:
    """Where the unpaired, uncorrected test gives another verdict than the one that the tables use, and why."""
    rows: list[list[Value]] = []
    for each in ablations:
        arms = {
            f"{row.cell.group}: {row.cell.label}, to {OURS_TITLE}": found
            for row, found in each.differences()
            if found is not None
        }
        leads = {
            f"lead over {RIVAL_TITLE}, {ours.cell.group} {ours.cell.label}": found for ours, _, found in each.leads()
        }
        distinct = {found: about for about, found in reversed((arms | leads).items())}  # one run may be in two arms
        for found, about in reversed(distinct.items()):
            if found.verdict != found.unpaired_verdict:
                *numbers, verdict = tested(found)
                rows.append(
                    [title(each.tables.dataset), about, *numbers, found.unpaired_verdict, verdict, _reason(found)]
                )
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


def ranking_sheet(tables: Tables) -> Sheet:
    """What the authors' noisy gates and the mask do to the same trained models."""
    row = tables.main.get(OURS)
    records = row.records if row else ()
    noisy = [(record, found["metrics"]["ndcg"]) for record in records if (found := noise(record)) is not None]
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


def summary_sheet(tables: Sequence[Tables]) -> Sheet:
    """The two models of the title's question on every data set."""
    rows: list[list[Value]] = []
    for each in tables:
        ours, rival = each.main[OURS], each.main[RIVAL]
        quoted = [MISSING if row.quoted("ndcg") is None else f"{row.quoted('ndcg'):.4f}" for row in (ours, rival)]
        gap = each.tests.get("ndcg", {}).get(RIVAL)
        told = MISSING if gap is None or gap.difference_percent is None else f"{gap.difference_percent:+.2f} %"
        rows.append(
            [
                title(each.dataset),
                number(ours.spread()),
                ours.seeds,
                quoted[0],
                Verdict(ours.verdict("ndcg")),
                number(rival.spread()),
                rival.seeds,
                quoted[1],
                told if gap is not None else Verdict(NOT_RUN),
                MISSING if gap is None else maybe(each.seed_tests["ndcg"][RIVAL].paired_p),
            ]
        )
    ours_columns, rival_columns = [OURS_TITLE, "seeds", "paper", "verdict"], [RIVAL_TITLE, "seeds", "paper"]
    columns = ["test NDCG@20", *ours_columns, *rival_columns, "gain, paired", "p over seeds, uncorrected"]
    return Sheet("Summary", "", columns, rows, (3, 7))


def carriers_sheet(ablations: Sequence[Ablation]) -> Sheet:
    """The lead over LightGCN that each arm of the ablation leaves, in brackets where the seeds do not show one."""
    columns: list[list[str]] = []
    for each in ablations:
        leads = each.carriers().values()
        found = [(MISSING if lead.percent is None else f"{lead.percent:+.2f} %", lead) for lead in leads]
        columns.append([f"({told})" if lead.verdict in (UNCLEAR, FEW) else told for told, lead in found])
    rows = [[told, *told_leads] for told, *told_leads in zip(CARRIERS, *columns, strict=True)]
    return Sheet("", "", [f"lead over {RIVAL_TITLE}", *(title(each.tables.dataset) for each in ablations)], rows)
