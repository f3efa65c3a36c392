"""The explorer in a real browser: with names that carry markup, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from served import SMALL, Server

from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.data import PARTS, Dataset, Interactions, Vocabulary
from hmlet.data.catalog import load

pytestmark = pytest.mark.browser
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def with_markup(data: Dataset) -> Dataset:
    """The data set with every item's name, and the first user's, turned into markup."""
    names = pa.array([f"{HOSTILE} {name}" for name in data.items.names.to_pylist()])
    users = pa.array([HOSTILE, *data.users.names.to_pylist()[1:]])
    interactions = Interactions(
        data.user, data.item, Vocabulary("user", data.users.ids, users), Vocabulary("item", data.items.ids, names)
    )
    part = np.repeat(np.arange(len(PARTS), dtype=np.uint8), [data.count(name) for name in PARTS])
    return Dataset("markup", interactions, part)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("explorer") / "run"
    return fit(with_markup(load("debian")), resolve("hmlet-end", "hmlet", None, SMALL, 1), out)


@pytest.fixture(scope="module")
def server(run: Run) -> Iterator[Server]:
    server = Server(str(run.directory.path)).wait_until_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of the explorer that must not complain; `indirect` parameters are options of its context."""
    context = browser.new_context(base_url=server.url, **getattr(request, "param", {}))
    page, complaints, foreign = context.new_page(), [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("request", lambda sent: None if sent.url.startswith(server.url) else foreign.append(sent.url))
    page.set_default_timeout(15_000)
    yield page
    assert (complaints, foreign) == ([], [])
    assert page.title() == "hmlet explorer"  # markup in a name would have changed it
    context.close()


def test_history_and_recommendations_stand_side_by_side(page: Any, run: Run) -> None:
    page.goto("/#/user/gimp")
    page.wait_for_selector("#recommended button")
    shown = page.locator("#recommended .id").all_inner_texts()
    assert shown == [each["item"] for each in run.recommend(["gimp"], 20)[0]["items"]]
    own = page.get_by_role("list", name="What gimp has").locator(".id").all_inner_texts()
    everything = run.data.csr("train", "valid", "test").row(run.data.users.indices(["gimp"])[0])
    assert own == [run.data.items.id(int(item)) for item in everything]


def test_names_with_markup_are_text(page: Any) -> None:
    page.goto("/")
    page.wait_for_selector("#main .row")
    assert HOSTILE in page.locator("#main .name").first.inner_text()
    page.goto("/#/user/0ad")
    page.wait_for_selector("#recommended button")
    assert HOSTILE in page.locator("#recommended .name").first.inner_text()
    page.locator("#recommended button").first.click()
    page.wait_for_selector("#explanation svg")
    assert page.locator("main img, main script").count() == 0


def test_an_explanation_draws_the_gates_choices(page: Any, run: Run) -> None:
    item = run.recommend(["gimp"], 20)[0]["items"][2]["item"]
    expected = run.explain("gimp", item)
    page.goto("/#/user/gimp")
    page.locator("#recommended button").nth(2).click()
    page.wait_for_selector("#explanation svg")
    assert expected["sentence"] in page.locator("#explanation").inner_text()
    branches = [gate[side]["branch"] for gate in expected["gates"] for side in ("user", "item")]
    assert page.locator("#explanation .scroll .step.nonlinear").count() == branches.count("non-linear")
    assert page.locator("#explanation .scroll .step").count() == 2 * (len(expected["layers"]) - 1)
    carried = page.locator("#explanation .rows .id").all_inner_texts()
    assert carried == [each["item"] for each in expected["carried_by"][:8]]


def test_small_parts_keep_their_digits_and_negative_ones_hang_down(page: Any, run: Run) -> None:
    item = run.recommend(["gimp"], 20)[0]["items"][0]["item"]
    planted = {
        **run.explain("gimp", item),
        "layers": [{"layer": 0, "contribution": 0.0004}, {"layer": 1, "contribution": -0.0001236}],
        "gates": [],
        "carried_by": [{"item": "libc6", "contribution": -0.0000217}],
        "remainder": 0.00029405,
    }
    page.route("**/v1/explain", lambda route: route.fulfill(json=planted))
    page.goto("/#/user/gimp")
    page.locator("#recommended button").first.click()
    page.wait_for_selector("#explanation svg")
    assert page.locator("#explanation .value").all_inner_texts() == ["-0.0000217"]
    assert page.locator("#explanation > p").last.inner_text().startswith("0.000294 of the score")  # and no "0 more"
    texts = page.locator("#explanation .scroll text").all_text_contents()
    assert {"0.000400", "-0.000124"} <= set(texts)
    base = float(page.locator("#explanation .axis").get_attribute("y1"))
    boxes = page.eval_on_selector_all(
        "#explanation .part", "all => all.map(e => e.getBBox()).map(b => [b.y, b.y + b.height])"
    )
    assert boxes[0] == pytest.approx([base - 50, base])
    assert boxes[1] == pytest.approx([base, base + 50 * 0.1236 / 0.4])


def test_everything_by_keyboard(page: Any) -> None:
    page.goto("/")
    page.wait_for_selector("#user-input")
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "user-input":
            break
    page.keyboard.type("gimp")
    page.locator("[role=option]:first-child .id").filter(has_text=re.compile("^gimp$")).wait_for()
    page.keyboard.press("ArrowDown")
    assert page.locator("#user-input").get_attribute("aria-activedescendant") == "user-option-0"
    page.keyboard.press("Enter")
    page.wait_for_selector("#recommended button")
    assert page.url.endswith("#/user/gimp")
    page.locator("#recommended button").first.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("#explanation svg")
    page.goto("/#/map")
    page.wait_for_selector("svg.map")
    page.locator("svg.map").focus()
    page.keyboard.press("End")
    assert page.locator(".dot.here").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_selector("#recommended button, #recommended .row")


def test_someone_new(page: Any, run: Run) -> None:
    page.goto("/#/new/")
    for item in ("libc6", "libgtk-3-0"):
        page.locator("#item-input").fill(item)
        page.locator("[role=option]", has_text=item).first.click()
        page.wait_for_selector(f"[aria-label='Remove {item}']")
    page.wait_for_selector("#recommended .row")
    shown = page.locator("#recommended .id").all_inner_texts()
    assert shown == [each["item"] for each in run.recommend_new([["libc6", "libgtk-3-0"]], 20)[0]["items"]]
    own = page.get_by_role("list", name="What they have").locator(".name").all_inner_texts()
    items = run.data.items
    assert own == [items.name(int(at)) for at in items.indices(["libc6", "libgtk-3-0"])]


def test_a_search_without_a_match_says_so(page: Any) -> None:
    page.goto("/")
    page.locator("#user-input").fill("nobody of this name")
    page.get_by_text("No user matches “nobody of this name”").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")  # there is nothing to choose
    assert page.url.endswith("/")
    page.keyboard.press("Escape")
    assert page.locator("[role=option]").count() == 0


def test_the_gate_map_leads_to_its_nodes(page: Any) -> None:
    page.goto("/#/map")
    page.wait_for_selector(".map .dot")
    assert page.locator(".map .dot").count() == 1500
    page.locator(".map .dot").last.click()
    page.get_by_role("button", name="See").click()
    page.wait_for_selector("#recommended .row")


def test_the_gate_map_of_close_degrees_takes_the_whole_width(page: Any) -> None:
    sample = [
        {"side": "user", "id": at, "degree": degree, "class": "FL", "probability": [0.2]}
        for at, degree in enumerate((12, 15, 18))
    ]
    shares = {"layers": [4], "nonlinear_share": {"4": 0.0}, "classes": {"FL": 3, "PNL": 0, "FNL": 0}}
    page.route("**/v1/overview*", lambda route: route.fulfill(json={**shares, "nodes": 3, "sample": sample}))
    page.goto("/#/map")
    page.wait_for_selector(".map .dot")
    boxes = page.eval_on_selector_all(".map .dot", "all => all.map(e => e.getBoundingClientRect().x)")
    whole = page.locator(".map").bounding_box()["width"]
    assert boxes[2] - boxes[0] > 0.8 * whole
    assert page.get_by_text("all 3 nodes").count() == 1
    assert page.locator(".map text").all_text_contents()[3:5] == ["12", "18"]


def test_an_unknown_user_is_said_in_words(browser: Any, server: Server) -> None:
    page = browser.new_page(base_url=server.url)
    page.goto("/#/user/nobody")
    assert page.get_by_role("alert").inner_text() == "user 'nobody' is not in the data set"
    page.close()


@pytest.mark.parametrize(
    "page",
    [{"viewport": {"width": 360, "height": 740}}, {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}],
    indirect=True,
    ids=["light", "dark"],
)
def test_a_phone_shows_it_all_without_scrolling_sideways(page: Any) -> None:
    views = {"/": ".row", "/#/new/libc6": "#recommended .row", "/#/map": ".dot", "/#/user/gimp": "#recommended button"}
    for view, shown in views.items():
        page.goto(view)
        page.wait_for_selector(f"main {shown}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    page.locator("#recommended button").first.click()
    page.wait_for_selector("#explanation svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    picture = page.locator("#explanation .scroll")
    assert picture.evaluate("box => box.scrollWidth - box.clientWidth") == 0  # the last layer is not cut off
