"""The plots of the documents, as small SVG files made from the records: `python -m lab.figures` (`make docs`).

tests/lab/test_figures.py compares docs/pictures with what the records make, as for the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import sqrt
from pathlib import Path

from scipy.stats import t as student

from hmlet.reproduction.cells import CAMPAIGN, OURS, RIVAL, TABLES, title
from hmlet.reproduction.differences import HIGHER, LOWER
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import Records
from hmlet.reproduction.tables import Row, Tables
from lab.ablation import Ablation
from lab.board.board import read_board
from lab.board.variants import load_variants

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
DATASETS = ("gowalla", "yelp2018", "amazon-book-29k", "debian")
ABLATED = ("gowalla", "yelp2018", "debian")
WIDTH, LEFT, RIGHT, ROW_HEIGHT, HEAD, FOOT = 760, 280, 90, 24, 44, 40
# The panel has its own ground, so it can be read on any page, light or dark.
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600;font-size:14px}.m{fill:#57606a}"
    ".p{fill:#fff;stroke:#d0d7de}.g{stroke:#d8dee4}.z{stroke:#57606a}.a{fill:#3f51b5;stroke:#3f51b5}"
    ".b{fill:#57606a;stroke:#57606a}.o{fill:#fff}.c0{stroke:#3f51b5;fill:#3f51b5}.c1{stroke:#b4501f;fill:#b4501f}"
    ".c2{stroke:#1a7f5a;fill:#1a7f5a}.c3{stroke:#8250a0;fill:#8250a0}.l{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.m{fill:#9da7b1}.p{fill:#161b22;stroke:#30363d}.g{stroke:#2b323a}"
    ".z{stroke:#9da7b1}.a{fill:#93a4f4;stroke:#93a4f4}.b{fill:#9da7b1;stroke:#9da7b1}.o{fill:#161b22}"
    ".c0{stroke:#93a4f4;fill:#93a4f4}.c1{stroke:#f0a07a;fill:#f0a07a}.c2{stroke:#5fd0a5;fill:#5fd0a5}"
    ".c3{stroke:#cda3ea;fill:#cda3ea}.l{fill:none}}"
)


@dataclass(frozen=True)
class Point:
    """A row of a dot plot: a value with an interval, a mark of the paper's, and whether it is clear and ours."""

    label: str
    value: float | None
    told: str
    low: float | None = None
    high: float | None = None
    paper: float | None = None
    filled: bool = True
    ours: bool = True


def picture(height: float, about: str, body: Sequence[str]) -> str:
    """One SVG file; `about` is read to those who cannot see it."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">'
    head += f"<title>{escape(about)}</title>"
    panel = f'<rect class="p" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:g}" rx="6"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", panel, *body, "</svg>\n"])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers between two."""
    for step in (unit * 10.0**power for power in range(-5, 3) for unit in (1, 2, 5)):
        if (high - low) / step <= 7:
            break
    first = round(low / step)
    return [each * step for each in range(first, round(high / step) + 1) if low <= each * step <= high]


def dots(heading: str, points: Sequence[Point], axis: str, note: str, *, zero: bool = False) -> str:
    """A dot plot: a row for each point, its value in words at the right."""
    known = [each for point in points for each in (point.value, point.low, point.high, point.paper) if each is not None]
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)

    def across(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    bottom = HEAD + ROW_HEIGHT * len(points)
    body = [text(14, 24, heading, "t")]
    for each in ticks(low, high):
        kind = "z" if zero and abs(each) < 1e-12 else "g"
        body.append(f'<path class="{kind}" d="M{across(each):.1f} {HEAD - 8}V{bottom}"/>')
        body.append(text(across(each), bottom + 15, f"{each:g}", "m", "middle"))
    body.append(text(LEFT, bottom + 32, axis, "m"))
    body.append(text(WIDTH - 14, bottom + 32, note, "m", "end"))
    for at, point in enumerate(points):
        y = HEAD + ROW_HEIGHT * (at + 0.5)
        body.append(text(14, y + 4, point.label, "" if point.ours else "m"))
        body.append(text(WIDTH - 14, y + 4, point.told, "m", "end"))
        if point.value is None:
            continue
        kind = "a" if point.ours else "b"
        if point.low is not None and point.high is not None:
            body.append(
                f'<path class="{kind}" stroke-width="2" d="M{across(point.low):.1f} {y}H{across(point.high):.1f}"/>'
            )
        if point.paper is not None:
            body.append(f'<path class="z" stroke-width="2" d="M{across(point.paper):.1f} {y - 7}v14"/>')
        inside = kind if point.filled else f"{kind} o"
        body.append(f'<circle class="{inside}" stroke-width="2" cx="{across(point.value):.1f}" cy="{y}" r="5"/>')
    return picture(bottom + FOOT, heading, body)


def lead(tables: Mapping[str, Tables]) -> str:
    """How far HMLET(End) is ahead of LightGCN, with the 95 % interval of the difference paired by seed."""
    points = []
    for each in tables.values():
        ours, rival = each.main[OURS].by_seed(), each.main[RIVAL].by_seed()
        shared = sorted(set(ours) & set(rival))
        base = sum(rival[seed] for seed in shared) / len(shared)
        gaps = [100 * (ours[seed] - rival[seed]) / base for seed in shared]
        mean = sum(gaps) / len(gaps)
        error = sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1) / len(gaps))
        half = float(student.ppf(0.975, len(gaps) - 1)) * error
        clear = abs(mean) > half
        points.append(Point(title(each.dataset), mean, f"{mean:+.2f} %", mean - half, mean + half, filled=clear))
    heading = "Lead of HMLET(End) over LightGCN; filled: clear over seeds"
    return dots(heading, points, "lead in test NDCG@20, %", "95 % interval over five seeds", zero=True)


def carriers(each: Tables) -> str:
    """The lead that each arm of the ablation leaves."""
    points = [
        Point(
            label,
            gap.percent,
            "not run" if gap.percent is None else f"{gap.percent:+.2f} %",
            filled=gap.verdict in (HIGHER, LOWER),
        )
        for label, gap in Ablation(each).carriers().items()
    ]
    axis = "lead over LightGCN in test NDCG@20, %"
    return dots(f"What carries the lead on {title(each.dataset)}", points, axis, "filled: clear over seeds", zero=True)


def models(each: Tables) -> str:
    """Every model that was run beside the paper's number."""
    rows = [row for row in each.main.values() if row.records]
    rows.sort(key=lambda row: -_mean(row))
    points = [
        Point(
            CAMPAIGN.titles[row.cell.model],
            _mean(row),
            f"{_mean(row):.4f}",
            paper=row.quoted("ndcg"),
            ours=row is each.main[OURS],
        )
        for row in rows
    ]
    note = "bar: the paper's number" if any(point.paper is not None for point in points) else ""
    return dots(f"Test NDCG@20 on {title(each.dataset)}", points, "mean over seeds", note)


def _mean(row: Row) -> float:
    found = row.spread()
    assert found is not None
    return found.mean


def board(dataset: str) -> str:
    """Our variants among published numbers on the public split."""
    read = read_board(dataset, load_variants(dataset), ROOT / "lab" / "results" / "runs")
    points = []
    for row in read.rows:
        found = row.spread("ndcg")
        if found is not None:
            size = "" if row.size is None else f", D = {row.size}"
            points.append(Point(f"{row.variant.title}{size}", found.mean, f"{found.mean:.4f}"))
    points += [Point(row.method, row.ndcg, f"{row.ndcg:.4f}", ours=False) for row in read.published]
    points.sort(key=lambda point: -(point.value or 0.0))
    heading = f"NDCG@20 on {title(dataset)}, NGCF's split"
    return dots(heading, points, "blue: ours; grey: published", "")


def by_degree(tables: Mapping[str, Tables]) -> str:
    """The share of nodes whose gates all chose the non-linear branch, by decile of the degree."""
    top, bottom, left, right = 44, 250, 60, WIDTH - 150
    heading = "Who takes the non-linear branch at every gated layer (FNL)"
    body = [text(14, 24, heading, "t")]

    def up(share: float) -> float:
        return bottom - share * (bottom - top)

    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        body.append(f'<path class="g" d="M{left} {up(share):.1f}H{right}"/>')
        body.append(text(left - 8, up(share) + 4, f"{share:.0%}", "m", "end"))
    ends: list[tuple[float, str, int]] = []
    for at, each in enumerate(tables.values()):
        found = each.analysed[0].analysis
        assert found is not None
        shares = [decile.fnl for decile in found.degree_deciles if decile.fnl is not None]
        places = [left + 20 + (right - left - 40) * n / (len(shares) - 1) for n in range(len(shares))]
        line = " ".join(f"{x:.1f},{up(share):.1f}" for x, share in zip(places, shares, strict=True))
        body.append(f'<polyline class="c{at} l" points="{line}"/>')
        body += [
            f'<circle class="c{at}" cx="{x:.1f}" cy="{up(share):.1f}" r="3"/>'
            for x, share in zip(places, shares, strict=True)
        ]
        ends.append((up(shares[-1]), title(each.dataset), at))
    y = -99.0
    for wanted, name, at in sorted(ends):
        y = max(wanted, y + 17)
        body.append(f'<circle class="c{at}" cx="{right + 4}" cy="{y:.1f}" r="4"/>')
        body.append(text(right + 14, y + 4, name))
    body += [
        text(left + 20, bottom + 20, "fewest", "m", "middle"),
        text(right - 20, bottom + 20, "most", "m", "middle"),
    ]
    body.append(text((left + right) / 2, bottom + 20, "interactions of a node, by tenth of all nodes", "m", "middle"))
    body.append(text(14, bottom + 42, "share of FNL nodes; HMLET(End), first analysed seed", "m"))
    return picture(bottom + 54, heading, body)


def figures() -> dict[Path, str]:
    """Each picture as the records make it."""
    records = Records.read(ROOT / "lab" / "results" / "runs")
    tables = {name: Tables(Choice(name, TABLES), records) for name in DATASETS}
    made = {"lead": lead(tables), "gates-by-degree": by_degree(tables)}
    made |= {f"carriers-{name}": carriers(tables[name]) for name in ABLATED}
    made |= {f"models-{name}": models(tables[name]) for name in DATASETS}
    made |= {f"board-{name}": board(name) for name in ("gowalla", "yelp2018")}
    return {PICTURES / f"{name}.svg": drawn for name, drawn in made.items()}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for path, drawn in figures().items():
        path.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
