"""The report: what is on the page, and that it shows the numbers of the files."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from gated_run import make_run, small_data

from hmlet.analysis.study import analyse
from hmlet.cli import main
from hmlet.ranking.evaluation import Evaluation
from hmlet.ranking.statistics import Comparison, MetricComparison, Paired, Spread
from hmlet.reporting import write_report
from hmlet.reporting.answer import answer, gates_in_words, kept_shares
from hmlet.reporting.drawing import COLOURS
from hmlet.reporting.figures import draw_all
from hmlet.reporting.layout import Card, document, duration, number
from hmlet.reporting.material import read_material
from hmlet.reporting.paper import paper
from hmlet.runs.directory import RunDirectory

DATA = small_data()
MEANS = {"ndcg": 0.1234, "recall": 0.2345, "precision": 0.0345}
SCORES = Evaluation("test", "train", 20, np.arange(57), {name: np.full(57, mean) for name, mean in MEANS.items()}, 0.5)
METRIC = MetricComparison(
    {"hmlet-end": Spread(0.242, None, (0.242,)), "lightgcn": Spread(0.225, None, (0.225,))},
    {"lightgcn": Paired(0.017, 7.25, 0.00123, 0.00456, 0.321, (0.011, 0.022))},
)
COMPARISON = Comparison("test", "train", 20, 57, dict.fromkeys(MEANS, METRIC))
FLOOR = {"ndcg": 0.0321, "recall": 0.0432, "precision": 0.0043}
FIGURES = {"winner", "learning", "deciles", "boxes", "density", "gates"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> list[RunDirectory]:
    """An analysed HMLET run and a LightGCN run."""
    folder = tmp_path_factory.mktemp("runs")
    chance = np.random.default_rng(0).random((DATA.n_users + DATA.n_items, 2))
    gated = make_run(folder / "end", DATA, probability=chance)
    analyse([gated], DATA)
    return [RunDirectory.open(gated.path), make_run(folder / "plain", DATA, model="lightgcn")]


@pytest.fixture(scope="module")
def page(runs: list[RunDirectory], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report(runs, out, comparison=COMPARISON, scores=[SCORES, SCORES], floor=FLOOR)
    return out


def cells(html: str, kind: str = "") -> list[str]:
    """The content of the table cells, or of those of one class."""
    return re.findall(rf"<td{kind}[^>]*>(.*?)</td>", html)


def test_the_floor_is_the_last_row_of_the_scores(page: Path) -> None:
    table = page.read_text(encoding="utf-8").partition("<h3>Accuracy</h3>")[2].partition("</table>")[0]
    last = re.findall(r"<tr[^>]*>(.*?)</tr>", table)[-1]
    assert cells(last)[:4] == ["popularity (floor)", "0.0321", "0.0432", "0.0043"]


def test_every_figure_and_table_is_there(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert set(re.findall(r'<figure id="(\w+)"', html)) == FIGURES
    for title in (
        "Accuracy",
        "Is the best model better?",
        "Class sizes",
        "Verdicts",
        "Environment",
        "Recipe of lightgcn",
    ):
        assert title in html


def test_the_numbers_are_the_files(page: Path, runs: list[RunDirectory]) -> None:
    html = page.read_text(encoding="utf-8")
    found = runs[0].read_json("analysis.json")
    assert {
        f"{found['class_size']['pnl']['nodes']:,}",
        f"{found['gate_share']['3']:.1%}",
        f"{found['verdict']['closeness']['spearman']['rho']:#.3g}",
        *(f"{found['verdict']['degree']['cliffs_delta'][step]:#.3g}" for step in ("fnl_over_pnl", "pnl_over_fl")),
        f"{found['neighbour_cosine']['fnl']['mean']:#.4g}",
    } <= set(cells(html))
    for text in ("0.1234", "+7.25 %", "0.00123", "0.00456", "0.321", COMPARISON.conclusion()):
        assert text in html
    assert escape(runs[1].read_bytes("config.toml").decode()) in html


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.5, 3, "0.500"),
        (0.0179, 3, "0.0179"),
        (123.4, 3, "123"),
        (12.0, 3, "12.0"),
        (0.64, 4, "0.6400"),
        (None, 3, "–"),
    ],
)
def test_numbers_keep_their_zeros(value: float | None, digits: int, text: str) -> None:
    assert number(value, digits) == text


def test_the_temperatures_first_point_is_inside_the_plot(runs: list[RunDirectory]) -> None:
    drawn = next(each for each in draw_all(read_material(runs)) if each.name == "gates")
    axis = drawn.sheet.axes[1]
    line, _ = axis.lines  # and the epoch that was kept
    assert 1.05 * max(line.get_ydata()) < axis.get_ylim()[1]


def test_the_papers_numbers_stand_beside_ours(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert {"94.8%", "50.5%", "46.8%", "0.6369", "0.0179"} <= set(cells(html, ' class="paper"'))
    assert all(len(paper().degree_deciles_percent[name]) == 10 for name in ("fnl", "pnl", "fl"))


def test_markup_in_names_is_shown_as_text(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert "small <b>" not in html
    assert "small &lt;b&gt;&amp;" in html


def test_nothing_refers_to_another_file(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)\b", html)
    for target in re.findall(r'(?:href|src)="([^"]*)"', html):
        assert target.startswith(("#", "data:"))
    assert not re.search(r"@import|url\((?!#)", html)


def test_inline_figures_take_the_pages_colours_and_keep_their_ids_apart(runs: list[RunDirectory]) -> None:
    drawn = draw_all(read_material(runs))
    ids: list[str] = []
    for each in drawn:
        svg = each.inline()
        assert not any(colour in svg for colour in COLOURS)
        assert "var(--ink)" in svg
        own = re.findall(r'\bid="([^"]+)"', svg)
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) <= set(own)
        ids += own
        ElementTree.fromstring(svg)
        assert each.png.startswith(b"\x89PNG")
    assert len(ids) == len(set(ids))


def test_the_same_files_give_the_same_page(page: Path, runs: list[RunDirectory], tmp_path: Path) -> None:
    write_report(runs, tmp_path / "again.html", comparison=COMPARISON, scores=[SCORES, SCORES], floor=FLOOR)
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_a_run_that_was_not_analysed_gets_a_page_that_says_so(runs: list[RunDirectory], tmp_path: Path) -> None:
    gated = make_run(tmp_path / "end", DATA, probability=np.full((DATA.n_users + DATA.n_items, 2), 0.7))
    pages = [write_report([run], tmp_path / "page.html")[0].read_text(encoding="utf-8") for run in (gated, runs[1])]
    assert ["hmlet analyze RUN" in html for html in pages] == [True, False]  # LightGCN has no gates to analyse
    assert set(re.findall(r'<figure id="(\w+)"', pages[1])) == {"learning"}


def test_an_analysis_that_does_not_fit_is_named_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gated = make_run(tmp_path / "end", DATA, probability=np.full((DATA.n_users + DATA.n_items, 2), 0.7))
    (found,) = analyse([gated], DATA, "none")
    with gated.update():
        gated.write_json("analysis.json", {**found.as_json(), "class_size": {"fnl": {"nodes": 1}}})
    assert main(["report", str(gated.path), "--out", str(tmp_path / "page.html")]) == 2
    assert "analysis.json is not an analysis (class_size.fnl.share: Field required)" in capsys.readouterr().err


def test_a_class_without_nodes_has_one_dash_for_its_quartiles(tmp_path: Path, cache: Path) -> None:
    gated = make_run(tmp_path / "end", DATA, probability=np.full((DATA.n_users + DATA.n_items, 2), 0.7))
    analyse([gated], DATA)
    html = write_report([RunDirectory.open(gated.path)], tmp_path / "page.html")[0].read_text(encoding="utf-8")
    row = next(
        row for row in re.findall(r"<tr[^>]*>(.*?)</tr>", html) if cells(row)[:1] == ["degree"] and "<br>" in row
    )
    assert cells(row)[3] == "–"  # FL: there is no linear node


def test_an_axis_of_one_epoch_has_one_tick(runs: list[RunDirectory]) -> None:
    material = read_material(runs[:1])
    first = replace(material.runs[0], metrics=[row for row in material.runs[0].metrics if row.get("gate_share")][:1])
    first = replace(first, record=first.record.concluded(1, 1, None, 1.0))
    sheets = {each.name: each.sheet for each in draw_all(replace(material, runs=[first]))}
    for axis in (sheets["gates"].axes[0], sheets["learning"].axes[1]):
        low, high = axis.get_xlim()
        assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [first.metrics[0]["epoch"]]


@pytest.mark.parametrize(("seconds", "text"), [(0.0172, "0.017 s"), (1.44, "1.4 s"), (5443.4, "5,443 s")])
def test_a_short_training_has_a_time_too(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_command_writes_the_page_and_the_figures(
    runs: list[RunDirectory], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figures = tmp_path / "report.html", tmp_path / "figures"
    assert main(["report", str(runs[0].path), "--out", str(out), "--figures", str(figures), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["report"] == str(out)
    assert {Path(path).name for path in found["figures"]} == {
        f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")
    }
    assert all(Path(path).is_file() for path in found["figures"])


@pytest.mark.parametrize("name", ["run.json", "gates.parquet", "data/dataset.json"])
def test_no_file_of_a_run_becomes_a_page(
    runs: list[RunDirectory], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs[0].path, tmp_path / "run")
    before = (run / name).read_bytes()
    assert main(["report", str(run), "--out", str(run / name)]) == 2
    assert f"{name} is a file of the " in capsys.readouterr().err
    assert (run / name).read_bytes() == before


def test_the_command_compares_several_runs(runs: list[RunDirectory], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main(["report", *(str(run.path) for run in runs), "--out", str(out)]) == 0
    html = out.read_text(encoding="utf-8")
    assert "Is the best model better?" in html
    assert "p (Wilcoxon)" in html
    assert cells(html).count("lightgcn") == 1


def test_a_run_has_one_name_on_the_page(tmp_path: Path) -> None:
    chance = np.random.default_rng(0).random((DATA.n_users + DATA.n_items, 2))
    paths = [tmp_path / name / "run" for name in "xy"]
    for seed, path in enumerate(paths):
        make_run(path, DATA, probability=chance, seed=seed)
    out = tmp_path / "report.html"
    assert main(["report", *map(str, paths), "--out", str(out)]) == 0
    html = out.read_text(encoding="utf-8")
    first, second = "hmlet-end (x/run)", "hmlet-end (y/run)"
    assert f"<title>{first}, {second} on" in html
    assert any(
        re.search(rf"{re.escape(one)} (wins|and {re.escape(other)} are)", html)
        for one, other in ((first, second), (second, first))
    )
    assert "hmlet-end (run)" not in html


# -- the answer ---------------------------------------------------------------------------------------------------


def lead(p: float, difference: float = 0.017) -> Comparison:
    paired = Paired(difference, 100 * difference / 0.225, p, p, 0.3, (difference - 0.009, difference + 0.009))
    models = {"hmlet-end": Spread(0.225 + difference, None, ()), "lightgcn": Spread(0.225, None, ())}
    return Comparison("test", "train", 20, 57, dict.fromkeys(MEANS, MetricComparison(models, {"lightgcn": paired})))


@pytest.mark.parametrize(
    ("comparison", "floor", "words"),
    [
        (
            lead(0.001),
            {"ndcg": 0.121},
            "hmlet-end wins: its test NDCG@20 of 0.2420 is 7.56 % above lightgcn's (95 % interval +3.56 % to +11.56 %, "
            "paired t-test p = 0.001). hmlet-end is 2.0 times popularity, the floor (0.1210).",
        ),
        (
            lead(0.4, 0.0045),
            None,
            "hmlet-end and lightgcn are statistically indistinguishable: test NDCG@20 0.2295 against 0.2250, a lead of "
            "2.00 % that may be chance (95 % interval -2.00 % to +6.00 %, paired t-test p = 0.4).",
        ),
        (
            lead(1.0, 0.0),
            {"ndcg": 0.3},
            "tie at a test NDCG@20 of 0.2250. No model beats popularity, the floor (0.3000).",
        ),
        (None, {"ndcg": 0.0617}, "hmlet-end reaches a test NDCG@20 of 0.1234. It is 2.0 times popularity, the floor"),
    ],
    ids=["wins", "chance", "tie", "alone"],
)
def test_the_answer_says_who_wins_by_how_much_and_how_sure(
    runs: list[RunDirectory], comparison: Comparison | None, floor: dict[str, float] | None, words: str
) -> None:
    shown = runs if comparison else runs[:1]
    assert words in str(answer(read_material(shown, comparison, [SCORES] * len(shown), floor)))


def test_the_answer_and_its_picture_come_before_everything_else(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert html.index('class="answer"') < html.index('<figure id="winner"') < html.index("<h2>")


def test_a_collapsed_gate_is_said_in_words() -> None:
    said = gates_in_words({"2": 0.004, "3": 1.0, "4": 0.217})
    assert said == (
        "The gate of layer 2 has collapsed: 99.6% of the nodes take the linear branch. "
        "The gate of layer 3 has collapsed: every node takes the non-linear branch. "
        "The gate of layer 4 chooses per node: 21.7% take the non-linear branch."
    )


def test_a_gates_share_is_that_of_the_epoch_that_was_kept(runs: list[RunDirectory]) -> None:
    run = replace(read_material(runs).runs[0], analysis=None)
    assert kept_shares(replace(run, record=run.record.concluded(2, 4, None, 4.0))) == {"3": 0.4, "4": 0.5}


# -- figures and layout -------------------------------------------------------------------------------------------


def test_every_figure_has_hover_values_inside_the_picture(runs: list[RunDirectory]) -> None:
    for drawn in draw_all(read_material(runs, COMPARISON, [SCORES, SCORES], FLOOR)):
        assert drawn.marks, drawn.name
        for mark in drawn.marks:
            assert 0 <= mark.left <= mark.left + mark.width <= 100, (drawn.name, mark)
            assert 0 <= mark.top <= mark.top + mark.height <= 100, (drawn.name, mark)
            assert min(mark.width, mark.height) > 0


def test_a_hover_value_is_where_its_bar_is_drawn(runs: list[RunDirectory]) -> None:
    drawn = next(
        each for each in draw_all(read_material(runs, COMPARISON, [SCORES, SCORES], FLOOR)) if each.name == "winner"
    )
    heights, texts = [mark.top for mark in drawn.marks], [mark.lines for mark in drawn.marks]
    assert heights == sorted(heights)
    assert [lines[:2] for lines in texts[:3]] == [
        ["hmlet-end", "test NDCG@20 0.2420"],
        ["lightgcn", "test NDCG@20 0.2250"],
        ["popularity (floor)", "test NDCG@20 0.0321"],
    ]
    assert texts[3] == ["over lightgcn: +7.25 %", "95 % interval +4.69 to +9.38 %", "paired t-test p = 0.0012"]


def test_no_figure_has_a_colour_that_the_dark_page_cannot_change(page: Path) -> None:
    pictures = re.findall(r"<svg.*?</svg>", page.read_text(encoding="utf-8"), re.DOTALL)
    colours = {each for svg in pictures for each in re.findall(r"#[0-9a-fA-F]{6}\b", svg)}
    assert len(pictures) == len(FIGURES)
    assert not colours, colours
    assert not any("<image" in svg for svg in pictures)


@pytest.mark.parametrize(
    ("given", "placed"), [("hh", "hh"), ("h", "w"), ("hwh", "www"), ("whhh", "whhw"), ("hhw", "hhw"), ("", "")]
)
def test_no_row_of_cards_has_a_hole(given: str, placed: str) -> None:
    html = document("title", [Card("x", wide=each == "w") for each in given], [])
    found = re.findall(r'class="card( wide)?"', html)
    assert "".join("w" if wide else "h" for wide in found) == placed
