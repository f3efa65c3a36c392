"""The report in a real browser: hover values by mouse and keyboard, on a phone, in the dark, and checked by axe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_run import make_run, small_data

import hmlet
from hmlet.analysis.study import analyse

pytestmark = pytest.mark.browser
VIEWS = [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A report about an analysed run, whose layer 4 has collapsed, and a run of LightGCN."""
    folder, data = tmp_path_factory.mktemp("report"), small_data()
    chance = np.random.default_rng(0).random((data.n_users + data.n_items, 2))
    chance[:, 1] = 0.9
    gated = make_run(folder / "end", data, probability=chance)
    analyse([gated], data)
    plain = make_run(folder / "plain", data, model="lightgcn", seed=1)
    runs = [hmlet.Run.open(run.path, data) for run in (gated, plain)]
    return hmlet.report(*runs, out=folder / "report.html")[0]


@pytest.fixture(params=VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def page(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The report at a width and in a colour scheme; it must fetch nothing and complain about nothing."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(report.as_uri())
    yield page
    assert (asked, complaints) == ([report.as_uri()], [])
    page.close()


def test_everything_fits(page: Any) -> None:
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = page.eval_on_selector_all(
        ".scroll", "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.getAttribute('aria-label'))"
    )
    assert cut == []
    boxes = page.eval_on_selector_all(
        ".plot svg", "all => all.map(e => e.getBoundingClientRect()).map(r => [r.left, r.right, r.height])"
    )
    assert len(boxes) == 6
    assert all(left >= 0 and right <= width and height > 100 for left, right, height in boxes)


def test_cards_leave_no_hole(page: Any) -> None:
    boxes = page.eval_on_selector_all(
        ".grid",
        "all => all.map(g => [g, ...g.children].map(e => e.getBoundingClientRect()).map(r => r.width * r.height))",
    )
    gap = 16 * (page.viewport_size["width"] + 2000)  # between the cards of a row, and between rows
    assert all(whole - sum(cards) <= gap for whole, *cards in boxes)


def test_axe_finds_nothing(page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]][:2]) for each in found] == []


def test_a_pointer_shows_the_values_under_it(page: Any) -> None:
    first = page.locator("#winner input").first
    first.scroll_into_view_if_needed()
    tip = page.locator("#winner .tip").first
    assert tip.evaluate("e => getComputedStyle(e).opacity") == "0"
    first.hover()
    assert tip.evaluate("e => getComputedStyle(e).opacity") == "1"
    assert re.search(r"test NDCG@20 0\.\d{4}", tip.inner_text())
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= page.viewport_size["width"]


def test_arrow_keys_walk_through_the_values(page: Any) -> None:
    page.locator("#gates input").first.focus()
    page.keyboard.press("ArrowRight")
    shown = page.eval_on_selector_all(
        "#gates .tip", "all => all.filter(e => getComputedStyle(e).opacity == 1).map(e => e.innerText)"
    )
    assert shown == ["epoch 2\nlayer 3: 40.0% non-linear\nlayer 4: 50.0% non-linear"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.get_by_role("radiogroup", name="Values of Have the gates collapsed?").count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('figure')?.id") != "gates"  # one stop for each figure


def test_a_collapsed_gate_is_said_first(page: Any) -> None:
    said = "The gate of layer 4 has collapsed: every node takes the non-linear branch."
    assert said in page.locator(".lead").inner_text()


def test_the_page_has_the_readers_colours(page: Any) -> None:
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert min(map(int, re.findall(r"\d+", ink if dark else paper))) > 200
