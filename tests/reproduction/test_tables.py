"""Tables from planted records: every verdict, percentage and p-value is known beforehand."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_run import small_data
from planted_records import named_data, plant
from scipy import stats

from hmlet.analysis.gates import ClassSize, DegreeDecile
from hmlet.analysis.verdict import FAILS, HOLDS, WEAK, Judgement, KruskalWallis, Spearman
from hmlet.config import Recipe
from hmlet.errors import DataError
from hmlet.reproduction import Reproduction, write
from hmlet.reproduction.cells import TABLES, Cell
from hmlet.reproduction.markdown import sheet_markdown
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import Records
from hmlet.reproduction.sheets import (
    Verdict,
    cost_sheet,
    main_sheet,
    sheets,
)
from hmlet.reproduction.tables import Tables, _centrality_answer, _decile_answer

DATA = named_data("gowalla")
CHOICE = Choice("gowalla", tuple(TABLES))
USERS = 200


def by_user(seed: int, shift: float) -> np.ndarray:
    """Three metrics of each user; models share the users' own level, so pairing matters."""
    level = np.random.default_rng(0).uniform(0.1, 0.6, (USERS, 1))
    return np.float32(level + shift + np.random.default_rng(seed).normal(0, 0.05, (USERS, 3))).astype(np.float64)


def recipe(model: str, seed: int) -> Recipe:
    return CHOICE.recipe(Cell("main", "", model), seed)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HMLET(End) with five seeds, LightGCN with two, WRMF with one; nothing else."""
    folder = tmp_path_factory.mktemp("records")
    chance = np.random.default_rng(3).random((DATA.n_users + DATA.n_items, 2))
    for seed in range(1, 6):
        delta = 0.0001 * (seed - 3)
        plant(
            folder,
            DATA,
            recipe("hmlet-end", seed),
            (0.1231 + delta, 0.1900 + delta, 0.0294),
            strict=(0.13 + delta, 0.2, 0.03),
            users=by_user(seed, 0.02),
            probability=chance if seed < 3 else None,
            seconds=120.0,
        )
    for seed in (1, 2):
        plant(folder, DATA, recipe("lightgcn", seed), (0.1200, 0.1870, 0.0288), users=by_user(10 + seed, 0.0))
    plant(folder, DATA, recipe("wrmf", 1), (0.1100, 0.1540, 0.0243), users=by_user(20, 0.0))
    return folder


@pytest.fixture(scope="module")
def tables(out: Path) -> Tables:
    return Tables(CHOICE, Records.read(out))


def test_a_cell_stands_beside_the_papers_with_its_verdict(tables: Tables) -> None:
    ours = tables.main["hmlet-end"]
    assert ours.spread("ndcg").mean == pytest.approx(0.1231)
    assert ours.spread("ndcg").std == pytest.approx(0.0001 * np.sqrt(2.5))
    assert [ours.verdict(metric) for metric in ("ndcg", "recall", "precision")] == ["reached", "below", "reached"]
    assert ours.shortfall("recall") == pytest.approx(100 * (0.19 / 0.1908 - 1))
    assert ours.spread("ndcg", "train+valid").mean == pytest.approx(0.13)
    assert (tables.main["lightgcn"].seeds, tables.main["wrmf"].seeds, tables.main["bpr"].seeds) == (
        "2 of 5",
        "1",
        "0 of 1",
    )
    assert tables.main["bpr"].verdict("ndcg") == "not run"
    assert tables.main["hmlet-all"].quoted("ndcg") is None


def test_a_model_that_the_paper_has_no_row_for_gets_no_verdict(tmp_path: Path) -> None:
    plant(tmp_path, DATA, recipe("pinsage", 1), (0.1, 0.1, 0.01))
    assert Tables(CHOICE, Records.read(tmp_path)).main["pinsage"].verdict("ndcg") == "–"


def test_the_tests_are_scipys_on_users_averaged_over_seeds(tables: Tables) -> None:
    ours = np.mean([by_user(seed, 0.02)[:, 0] for seed in range(1, 6)], axis=0)
    theirs = np.mean([by_user(10 + seed, 0.0)[:, 0] for seed in (1, 2)], axis=0)
    gap = tables.tests["ndcg"]["lightgcn"]
    assert gap.difference == pytest.approx((ours - theirs).mean())
    assert gap.difference_percent == pytest.approx(100 * (ours.mean() / theirs.mean() - 1))
    assert gap.t_test_p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert gap.wilcoxon_p == pytest.approx(stats.wilcoxon(ours - theirs).pvalue)
    assert gap.interval[0] < gap.difference < gap.interval[1]
    assert set(tables.tests["ndcg"]) == {"lightgcn", "wrmf"}


def test_a_model_that_is_ahead_makes_the_difference_negative(tmp_path: Path) -> None:
    plant(tmp_path, DATA, recipe("hmlet-end", 1), (0.1, 0.1, 0.01), users=by_user(1, 0.0))
    plant(tmp_path, DATA, recipe("lightgcn", 1), (0.2, 0.2, 0.02), users=by_user(2, 0.05))
    found = Tables(CHOICE, Records.read(tmp_path))
    assert found.tests["ndcg"]["lightgcn"].difference < -0.03
    assert found.claims()[1].verdict == FAILS


def test_the_papers_claims_get_the_verdicts_that_were_planted(tables: Tables, out: Path) -> None:
    claims = {claim.about: claim for claim in tables.claims()}
    numbers = claims["HMLET(End): NDCG, Recall and Precision@20"]
    assert (numbers.paper, numbers.ours, numbers.verdict) == (
        "0.1231 / 0.1908 / 0.0293",
        "0.1231 / 0.1900 / 0.0294",
        FAILS,
    )
    gain = claims["HMLET(End) beats every baseline"]
    assert gain.paper == "yes, by 1.56 % NDCG"
    assert "over LightGCN" in gain.ours
    assert "2 of 7 baselines run" in gain.ours
    assert gain.verdict == "holds so far"
    alone = Tables(replace(CHOICE, models=("hmlet-end", "lightgcn")), Records.read(out)).claims()[1]
    assert ("1 of 1 baselines run" in alone.ours, alone.verdict) == (True, HOLDS)
    assert claims["End is the best place for the gates"].verdict == "not run"
    sizes = claims["Class sizes FNL / PNL / FL, each within 10 points"]
    assert (sizes.paper, sizes.verdict) == ("27.5 % / 60.8 % / 11.7 %", FAILS)  # ours are by chance: about 25, 50, 25
    assert claims["Non-linear choices at layers 3 / 4"].verdict == "–"  # the paper has Amazon-Book's alone
    assert claims["PageRank falls from FNL over PNL to FL"].verdict == WEAK  # the gates chose by chance
    assert len(claims) == 10


@pytest.mark.parametrize(
    ("judged", "fl_nodes", "verdict"),
    [(HOLDS, 40, HOLDS), (HOLDS, 0, WEAK), (FAILS, 0, FAILS), (WEAK, 0, WEAK), (FAILS, 40, FAILS)],
)
def test_an_order_of_three_classes_cannot_hold_where_one_is_empty(judged: str, fl_nodes: int, verdict: str) -> None:
    found = Judgement(judged, Spearman(0.39, 1e-9), KruskalWallis(9.0, 1e-9, 0.1), {})
    sizes = {"fnl": ClassSize(50, 0.5), "pnl": ClassSize(50, 0.5), "fl": ClassSize(fl_nodes, 0.0)}
    text, told = _centrality_answer(found, sizes)
    assert told == verdict
    assert ("no node is FL" in text) == (fl_nodes == 0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        ((0.1, 0.5), (0.4, 0.2), HOLDS),
        ((0.1, 0.5), (0.4, 0.6), FAILS),
        ((0.4, 0.5), (0.1, 0.2), FAILS),
        ((0.1, 0.0), (0.4, 0.0), WEAK),
    ],
)
def test_the_decile_claim(low: tuple[float, float], high: tuple[float, float], verdict: str) -> None:
    first, last = (DegreeDecile(at, 9, [1, 2], fnl, 1 - fnl - fl, fl) for at, (fnl, fl) in ((1, low), (10, high)))
    assert _decile_answer([first, DegreeDecile(5, 0, None, None, None, None), last])[1] == verdict


def test_the_variants_claim_needs_a_clear_lead(tmp_path: Path) -> None:
    for model, mean in (("hmlet-end", 0.13), ("hmlet-all", 0.12), ("hmlet-front", 0.119), ("hmlet-middle", 0.118)):
        for seed in (1, 2, 3):
            plant(tmp_path, DATA, recipe(model, seed), (mean + 0.001 * (seed - 2), 0.1, 0.01))
    assert Tables(CHOICE, Records.read(tmp_path)).claims()[2].verdict == HOLDS
    close = tmp_path / "close"
    for model, mean in (("hmlet-end", 0.1205), ("hmlet-all", 0.12), ("hmlet-front", 0.1), ("hmlet-middle", 0.1)):
        for seed in (1, 2, 3):  # the seeds disagree on who is ahead
            sign = 1 if model == "hmlet-end" else -1
            plant(close, DATA, recipe(model, seed), (mean + 0.001 * sign * (seed - 2), 0.1, 0.01))
    assert Tables(CHOICE, Records.read(close)).claims()[2].verdict == WEAK


def test_a_lead_over_users_that_the_seeds_do_not_show_is_too_weak(tmp_path: Path) -> None:
    """Each user is better off on average, and so one model is ahead with p ≈ 0 over users; two seeds disagree."""
    for seed, (ours, theirs) in {1: (0.14, 0.12), 2: (0.119, 0.12)}.items():
        plant(tmp_path, DATA, recipe("hmlet-end", seed), (ours, 0.1, 0.01), users=by_user(seed, 0.05))
        plant(tmp_path, DATA, recipe("lightgcn", seed), (theirs, 0.1, 0.01), users=by_user(10 + seed, 0.0))
    found = Tables(replace(CHOICE, models=("hmlet-end", "lightgcn")), Records.read(tmp_path))
    assert found.tests["ndcg"]["lightgcn"].t_test_p < 1e-9
    assert found.seed_tests["ndcg"]["lightgcn"].holm_p > 0.05
    assert found.claims()[1].verdict == WEAK
    (_, _, verdict, *_, over_seeds), *_ = sheets(found)["tests"].rows
    assert verdict == "may be chance"
    assert float(over_seeds) == pytest.approx(stats.ttest_rel((0.14, 0.119), (0.12, 0.12)).pvalue, rel=0.01)


def test_the_cost_counts_every_run_once(tables: Tables) -> None:
    ((_, _, runs, minutes),) = cost_sheet([tables], ["Gowalla"]).rows
    assert runs == str(5 + 2 + 1)
    assert float(minutes) == pytest.approx(5 * 2 + 3)


@pytest.fixture(scope="module")
def written(out: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    """The page of the planted records, and of another set with a single run."""
    both = tmp_path_factory.mktemp("both")
    shutil.copytree(out, both, dirs_exist_ok=True)
    other = Choice("yelp2018", tuple(TABLES))
    plant(both, named_data("yelp2018"), other.recipe(Cell("main", "", "lightgcn"), 1), (0.0421, 0.0600, 0.0152))
    return write([CHOICE, other], both)


def test_page_and_markdown_say_the_same(written: Reproduction) -> None:
    html, markdown = (path.read_text(encoding="utf-8") for path in (written.page, written.markdown))
    home = written.markdown.parent
    for text in ("0.1231 ± 0.0002", "2 of 5", "0.1231 / 0.1900 / 0.0294"):
        assert text in html
        assert text in markdown
    assert "below (-0.4 %)" in markdown
    assert '<span class="no">-0.4 %</span>' in html
    main = sheet_markdown(main_sheet(written.tables[0]), home)
    assert main in markdown
    row = next(line for line in main.splitlines() if line.startswith("| HMLET(End) "))
    assert [cell.strip() for cell in row.strip("|").split("|")][2:5] == ["0.1231 ± 0.0002", "0.1231", "reached"]
    values = [
        value for each in written.tables for sheet in sheets(each).values() for row in sheet.rows for value in row
    ]
    marked = sum(isinstance(value, Verdict) and value == "not run" for value in values)
    assert html.count('<span class="none">not run</span>') == marked > 50
    assert '<span class="yes">reached</span>' in html
    links = re.findall(r"\]\(([^)]+)\)", markdown)
    assert links
    assert all((home / link).is_file() for link in links)


def test_the_page_stands_alone_and_has_every_figure(written: Reproduction) -> None:
    html = written.page.read_text(encoding="utf-8")
    assert "Accuracy · Gowalla" in html
    assert "Accuracy · Yelp2018" in html
    assert "9 of 50 runs" in html
    figures = [f"gowalla-{name}" for name in ("learning", "variants", "deciles", "boxes", "density")]
    assert sorted(re.findall(r'<figure id="([\w-]+)"', html)) == sorted([*figures, "yelp2018-learning"])
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\((?!#)", html)


def test_nothing_is_filled_in_where_nothing_was_run(tmp_path: Path) -> None:
    written = write([CHOICE], tmp_path)
    for sheet in sheets(written.tables[0]).values():
        for row in sheet.rows:
            assert any(value == "not run" for value in row) or "gates" in row[0], row
    assert "0 of 25 runs" in written.page.read_text(encoding="utf-8")


def test_what_was_not_chosen_has_no_table(tmp_path: Path) -> None:
    written = write([Choice("gowalla", tuple(TABLES), models=("bpr",))], tmp_path)
    html, markdown = (path.read_text(encoding="utf-8") for path in (written.page, written.markdown))
    assert "HMLET(End) beats every baseline? Not run." in html
    for title, there in (("The main table", True), ("Where to put the gates", False)):
        assert (title in html, title in markdown) == (there, there)


def test_records_of_other_data_under_one_name_are_refused(out: Path, tmp_path: Path) -> None:
    other = named_data("gowalla")
    plant(tmp_path, other, recipe("hmlet-end", 1), (0.1, 0.1, 0.01))
    strange = small_data(seed=5)
    strange.name = "gowalla"
    plant(tmp_path, strange, recipe("lightgcn", 1), (0.1, 0.1, 0.01))
    with pytest.raises(DataError, match="different data"):
        Tables(CHOICE, Records.read(tmp_path))


def test_of_two_records_of_one_recipe_the_one_with_users_stands(tmp_path: Path) -> None:
    plant(tmp_path, DATA, recipe("bpr", 1), (0.1, 0.1, 0.01)).rename(tmp_path / "gowalla" / "a_seed1")
    plant(tmp_path, DATA, recipe("bpr", 1), (0.2, 0.2, 0.02), users=by_user(1, 0.0))
    assert Tables(CHOICE, Records.read(tmp_path)).main["bpr"].spread().mean == 0.2


@pytest.mark.browser
def test_a_phone_shows_the_page_without_scrolling_sideways(written: Reproduction, browser: Any) -> None:
    shown = browser.new_page(viewport={"width": 375, "height": 900}, color_scheme="dark")
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(written.page.as_uri())
    assert asked == [written.page.as_uri()]
    assert shown.evaluate("document.documentElement.scrollWidth") <= 375
    assert shown.locator("span.none").first.is_visible()
    shown.set_viewport_size({"width": 1280, "height": 900})
    wide = shown.get_by_role("region", name="Where to put the gates").first
    assert wide.evaluate("e => e.scrollWidth <= e.clientWidth")
    shown.close()
