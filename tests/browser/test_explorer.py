"""The explorer in a real browser: every view by its address, with names that carry markup, by keyboard, on a phone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from served import SMALL
from server import Server

from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.data import Dataset

pytestmark = pytest.mark.browser
READY = "main:not([aria-busy])"
PHONE = {"viewport": {"width": 360, "height": 740}}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
# Every view, with something that it must show.
VIEWS = {
    "/": ".thirds .row",
    "/#/user/gimp": "#recommended a",
    "/#/user/gimp/libgtk-3-0": "#explanation .waterfall",
    "/#/what-if/gimp?add=libqt5core5a&without=libc6": "#recommended .move",
    "/#/new": ".chips button",
    "/#/new/libc6,libgtk-3-0?without=libc6": "#recommended .move",
    "/#/item/libgtk-3-0": ".paths",
    "/#/compare/gimp": ".versus-list a",
    "/#/map?colour=gate&node=item%3Alibc6": "#near a",
    "/#/gates": ".map .dot",
}


def show(page: Any, address: str, selector: str = READY) -> None:
    page.goto(address)
    page.wait_for_selector(READY)
    page.wait_for_selector(f"{selector}" if selector == READY else f"main {selector}")


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_every_address_survives_a_reload_and_the_way_back(page: Any) -> None:
    for address, shown in VIEWS.items():
        show(page, address, shown)
    addresses = list(VIEWS.items())
    for address, shown in reversed(addresses[:-1]):
        page.go_back()
        page.wait_for_selector(f"main {shown}")
        assert address in page.url  # the map adds where it is
    page.goto("/#/user/gimp/libgtk-3-0")
    page.reload()
    page.wait_for_selector("#explanation")


def test_names_with_markup_are_text(page: Any, hostile: str) -> None:
    for address, shown in VIEWS.items():
        show(page, address, shown)
        assert page.locator("main img, main script").count() == 0, address
        if page.locator("main .name").count():
            assert hostile in page.locator("main .name").first.text_content()


def test_the_start_has_users_worth_a_look(page: Any, run: Run) -> None:
    show(page, "/", ".thirds .row")
    headings = page.locator("main h2").all_inner_texts()
    assert headings[:3] == ["Most hits", "Most surprising", "Most typical"]
    first = page.locator(".thirds .card").first.locator(".row").first
    user, note = first.locator(".id").inner_text(), first.locator(".remark").inner_text()
    index = int(run.data.users.indices([user])[0])
    held_out = {run.data.items.id(int(item)) for item in run.data.csr("valid", "test").row(index)}
    listed = {each["item"] for each in run.recommend([user], 20, "train")[0]["items"]}
    assert note == f"{len(listed & held_out)} of {len(held_out)} found"
    first.click()
    page.wait_for_selector("#recommended a")


def test_history_and_recommendations_are_the_library_s(page: Any, run: Run) -> None:
    show(page, "/#/user/gimp", "#recommended a")
    shown = page.locator("#recommended .id").all_inner_texts()
    assert shown == [each["item"] for each in run.recommend(["gimp"], 20)[0]["items"]]
    own = page.get_by_role("list", name="What gimp has").locator(".id").all_inner_texts()
    everything = run.data.csr("train", "valid", "test").row(run.data.users.indices(["gimp"])[0])
    assert own == [run.data.items.id(int(item)) for item in everything]


def test_an_explanation_draws_the_gates_choices_and_adds_up(page: Any, run: Run) -> None:
    item = run.recommend(["gimp"], 20)[0]["items"][2]["item"]
    expected = run.explain("gimp", item)
    show(page, "/#/user/gimp")
    page.locator("#recommended a").nth(2).click()
    page.wait_for_selector("#explanation .waterfall")
    assert page.url.endswith(f"#/user/gimp/{item}")
    assert expected["sentence"] in page.locator("#explanation").inner_text()
    branches = [gate[side]["branch"] for gate in expected["gates"] for side in ("user", "item")]
    assert page.locator("#explanation .scroll .step.nonlinear").count() == branches.count("non-linear")
    assert page.locator("#explanation .scroll .step").count() == 2 * (len(expected["layers"]) - 1)
    for table in page.locator(".waterfall").all():
        *parts, total = [number(text) for text in table.locator(".value").all_inner_texts()]
        assert sum(parts) == pytest.approx(total, rel=0.02)
        assert total == pytest.approx(expected["score"], rel=0.01)
    named = page.locator(".waterfall .named th").all_inner_texts()
    assert named
    assert all(f"{name} (" in expected["sentence"] for name in named)
    if (more := page.get_by_role("button", name="Show all")).count():
        more.click()
    shown = page.locator(".waterfall").first.locator("th a").all_inner_texts()
    assert set(shown) == {each["item"] for each in expected["carried_by"] if each["contribution"]}


def test_small_and_negative_parts_have_a_bar_that_begins_where_the_last_one_ended(page: Any, run: Run) -> None:
    planted = {
        **run.explain("gimp", "libgtk-3-0"),
        "score": 0.0003,
        "layers": [{"layer": 0, "contribution": 0.0004}, {"layer": 1, "contribution": -0.0001}],
        "gates": [],
        "carried_by": [{"item": "libc6", "contribution": 0.0004}, {"item": "zlib1g", "contribution": -0.0000217}],
        "from_popularity": 0.0,
        "remainder": -0.0000783,
    }
    page.route("**/v1/explain", lambda route: route.fulfill(json=planted))
    show(page, "/#/user/gimp/libgtk-3-0", ".waterfall")
    table = page.locator(".waterfall").first
    assert table.locator(".value").all_inner_texts() == ["+0.000400", "−0.0000217", "−0.0000783", "0.000300"]
    boxes = table.locator(".track i").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(b => [b.left, b.right])"
    )
    assert all(right - left >= 1 for left, right in boxes)
    assert boxes[1][1] == pytest.approx(boxes[0][1], abs=1)  # a negative part goes back
    assert boxes[2][1] == pytest.approx(boxes[1][0], abs=1)
    assert boxes[3] == pytest.approx([boxes[0][0], boxes[2][0]], abs=1)
    assert page.locator(".legend").count() == 0  # without gates nothing is non-linear


def test_an_item_s_page(page: Any, run: Run) -> None:
    show(page, "/#/item/libgtk-3-0", "#similar .row")
    expected = [each["item"] for each in run.similar_items("libgtk-3-0", 12)]
    assert page.locator("#similar .id").all_inner_texts() == expected
    train = run.data.slice("train")
    degree = int((run.data.item[train] == run.data.items.indices(["libgtk-3-0"])[0]).sum())
    assert page.locator(".facts li").first.inner_text() == f"{degree} training interactions"
    assert f"One step away: {degree} users." in page.locator("main").inner_text()


def test_a_what_if_of_a_user_moves_the_list_and_has_an_address(page: Any, run: Run) -> None:
    show(page, "/#/what-if/gimp", "#recommended")
    own = run.data.items.id(int(run.fold_in.own_items(int(run.data.users.indices(["gimp"])[0]))[0]))
    page.get_by_role("button", name=f"Remove {own}", exact=True).click()
    page.wait_for_selector("#recommended .move")
    assert page.url.endswith(f"#/what-if/gimp?without={own}")
    page.locator("#item-input").fill("libqt5core5a")
    page.locator("[role=option]", has_text="libqt5core5a").first.click()
    page.wait_for_selector(".chips .added")
    assert page.url.endswith(f"?add=libqt5core5a&without={own}")
    first = page.locator("#recommended .id").all_inner_texts()
    page.reload()
    page.wait_for_selector("#recommended .move")
    assert page.locator("#recommended .id").all_inner_texts() == first
    page.get_by_role("link", name="Undo all").click()
    page.wait_for_selector("#recommended li:not(:has(.move))")
    assert page.locator("#recommended .id").all_inner_texts() == [
        each["item"] for each in run.recommend(["gimp"], 20)[0]["items"]
    ]


def test_someone_new(page: Any, run: Run) -> None:
    show(page, "/#/new", ".chips button")
    for item in ("libc6", "libgtk-3-0"):
        page.locator("#item-input").fill(item)
        page.locator("[role=option]", has_text=item).first.click()
        page.get_by_role("button", name=f"Remove {item}", exact=True).wait_for()
    page.wait_for_selector("#recommended .row")
    expected = [each["item"] for each in run.recommend_new([["libc6", "libgtk-3-0"]], 20)[0]["items"]]
    assert page.locator("#recommended .id").all_inner_texts() == expected
    page.get_by_role("button", name="Remove libc6", exact=True).click()
    page.wait_for_selector("#recommended .move")
    expected = [each["item"] for each in run.recommend_new([["libgtk-3-0"]], 20)[0]["items"]]
    assert page.locator("#recommended .id").all_inner_texts() == expected


def test_two_runs_side_by_side(page: Any, run: Run, other: Run) -> None:
    show(page, "/#/compare/gimp", ".versus-list a")
    lists = [[each["item"] for each in one.recommend(["gimp"], 20, "train")[0]["items"]] for one in (run, other)]
    for at, expected in enumerate(lists):
        assert page.locator(".versus-list").nth(at).locator(".id").all_inner_texts() == expected
    assert page.locator(".lines path").count() == len(set(lists[0]) & set(lists[1]))
    user = run.data.users.indices(["gimp"])[0]
    held_out = {run.data.items.id(int(item)) for item in run.data.csr("valid", "test").row(user)}
    assert page.locator(".versus-list a.is-hit").count() == sum(len(held_out & set(each)) for each in lists)


def test_the_map_finds_chooses_and_keeps_its_address(page: Any, run: Run) -> None:
    show(page, "/#/map", "#in-view button")
    nodes = run.data.n_users + run.data.n_items
    assert page.evaluate("document.querySelector('#plane').plane.count") == nodes
    page.locator("#map-find").fill("libgtk")
    page.get_by_text(re.compile("matching points? in view")).wait_for()
    matching = sum("libgtk" in str(each) for each in (*run.data.users, *run.data.items))
    assert page.evaluate("document.querySelector('#plane').plane.found") >= matching
    page.get_by_text("Popularity", exact=True).click()
    assert page.locator("#map-find").input_value() == "libgtk"
    page.keyboard.press("Escape")
    page.locator("#in-view button").first.click()
    page.wait_for_selector("#near a")
    chosen = page.locator("#about h2").inner_text()
    nearest = {"item": run.similar_items, "user": run.similar_users}
    side = page.locator("#about .kicker").text_content()
    assert page.locator("#near .id").all_inner_texts() == [each[side] for each in nearest[side](chosen, 12)]
    page.wait_for_timeout(300)  # the address follows when the map rests
    assert {"colour=popularity", "find=libgtk"} <= set(page.url.partition("?")[2].split("&"))
    page.reload()
    page.wait_for_selector("#near a")
    assert page.locator("#about h2").inner_text() == chosen
    assert page.locator("#map-find").input_value() == "libgtk"


def test_the_map_by_pointer_and_keyboard(page: Any) -> None:
    show(page, "/#/map", "#in-view button")
    box = page.locator("#plane").bounding_box()
    spot = page.evaluate(
        """() => { const p = document.querySelector('#plane').plane, at = p.byWeight[0];
        return {x: p.screenX(at), y: p.screenY(at), name: p.label(p.at(p.screenX(at), p.screenY(at)))}; }"""
    )
    page.mouse.move(box["x"] + spot["x"], box["y"] + spot["y"])
    page.wait_for_selector(".tip:not([hidden])")
    assert page.locator(".tip b").inner_text() == spot["name"]
    page.mouse.click(box["x"] + spot["x"], box["y"] + spot["y"])
    page.locator("#about h2", has_text=spot["name"]).wait_for()
    page.locator("#plane").focus()
    before = page.evaluate("({...document.querySelector('#plane').plane.camera})")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    after = page.evaluate("({...document.querySelector('#plane').plane.camera})")
    assert after["zoom"] > before["zoom"]
    assert after["x"] > before["x"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#near a")
    page.keyboard.press("Escape")
    page.get_by_text("Choose a point to see its neighbours.").wait_for()


def test_the_gate_map_opens_on_the_layer_that_varies_and_leads_to_its_nodes(page: Any, run: Run) -> None:
    show(page, "/#/gates", ".map .dot")
    sample = page.request.get("/v1/overview?limit=1500").json()
    spread = np.var([node["probability"] for node in sample["sample"]], axis=0)
    assert page.locator("#layer").input_value() == str(int(spread.argmax()))
    assert page.locator(".map .dot").count() == 1500
    page.locator(".map .dot").last.click()
    page.get_by_role("link", name="See the").click()
    page.wait_for_selector("#recommended .row, #similar .row")


def test_the_gate_map_of_close_degrees_takes_the_whole_width(page: Any) -> None:
    sample = [
        {"side": "user", "id": at, "degree": degree, "class": "FL", "probability": [0.2]}
        for at, degree in enumerate((12, 15, 18))
    ]
    shares = {"layers": [4], "nonlinear_share": {"4": 0.0}, "classes": {"FL": 3, "PNL": 0, "FNL": 0}}
    page.route("**/v1/overview*", lambda route: route.fulfill(json={**shares, "nodes": 3, "sample": sample}))
    show(page, "/#/gates", ".map .dot")
    boxes = page.eval_on_selector_all(".map .dot", "all => all.map(e => e.getBoundingClientRect().x)")
    assert boxes[2] - boxes[0] > 0.8 * page.locator(".map").bounding_box()["width"]
    assert page.locator(".map text").all_text_contents()[3:5] == ["12", "18"]


def test_a_model_without_gates_has_no_gate_map(page: Any, run: Run) -> None:
    about = page.request.get("/v1/explore").json()
    page.route("**/v1/explore", lambda route: route.fulfill(json={**about, "gated_layers": [], "mapped": False}))
    show(page, "/", ".thirds .row")
    assert page.locator("header nav a:visible").all_inner_texts() == ["Start", "Someone new"]
    show(page, "/#/map", ".empty")
    assert "There is no map" in page.locator("main h2").inner_text()


def test_everything_by_keyboard(page: Any) -> None:
    show(page, "/", ".row")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search-input"
    page.keyboard.type("gimp")
    page.locator("[role=option]:first-child .id").filter(has_text=re.compile("^gimp$")).wait_for()
    page.keyboard.press("ArrowDown")
    assert page.locator("#search-input").get_attribute("aria-activedescendant") == "search-option-0"
    page.keyboard.press("Enter")
    page.wait_for_selector("#recommended a")
    assert page.url.endswith("#/user/gimp")
    page.locator("#recommended a").first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("#explanation .waterfall")
    show(page, "/#/gates", "svg.map")
    page.locator("svg.map").focus()
    page.keyboard.press("End")
    assert page.locator(".dot.here").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_selector("#recommended .row, #similar .row")


def test_a_search_without_a_match_says_so(page: Any) -> None:
    page.goto("/")
    page.locator("#search-input").fill("nobody of this name")
    page.get_by_text("No user or item matches “nobody of this name”").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")  # there is nothing to choose
    assert page.url.endswith("/")
    page.keyboard.press("Escape")
    assert page.locator("[role=option]").count() == 0


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("/#/user/nobody", "user 'nobody' is not in the data set"),
        ("/#/user/%3Cimg%20src%3Dx%3E", "user '<img src=x>' is not in the data set"),
        ("/#/elsewhere", "The explorer has no page “elsewhere”."),
    ],
)
def test_what_is_wrong_is_said_in_words(browser: Any, server: Server, address: str, message: str) -> None:
    page = browser.new_page(base_url=server.url)
    page.goto(address)
    assert page.get_by_role("alert").inner_text() == message
    page.close()


def test_a_service_with_a_token_asks_for_it(browser: Any, run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open-sesame")
    server = Server(str(run.directory.path), "--token-file", str(tmp_path / "token")).wait_until_ready()
    page = browser.new_page(base_url=server.url)
    page.goto("/")
    page.get_by_role("dialog").wait_for()
    assert page.get_by_role("dialog").get_by_role("alert").count() == 0
    page.locator("#token-value").fill("open-barley")
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("The service did not accept that token.").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("The service shows nothing without its token.").wait_for()
    page.get_by_role("button", name="Try again").click()
    page.locator("#token-value").fill("open-sesame")
    page.keyboard.press("Enter")
    page.wait_for_selector(".thirds .row")
    assert page.locator("#model").inner_text().startswith("hmlet-end on markup: ")
    page.goto("/docs")  # it has the token already
    page.wait_for_selector("details")
    page.close()
    server.stop()


def test_ids_that_a_number_of_javascript_would_round(browser: Any, tmp_path: Path) -> None:
    rows = [(user, 2**53 + 7 * (user + at) % 29) for user in range(40) for at in range(6)]
    users, items = map(list, zip(*rows, strict=True))
    data = Dataset.from_frame(pa.table({"user": users, "item": items}), split="ratio:1,0,0")
    run = fit(data, resolve("lightgcn", "hmlet", None, SMALL[:2], 1), tmp_path / "run")
    expected = [str(each["item"]) for each in run.recommend([3], 5)[0]["items"]]
    server = Server(str(run.directory.path)).wait_until_ready()
    page = browser.new_page(base_url=server.url)
    show(page, "/#/user/3", "#recommended a")
    assert page.locator("#recommended .id").all_inner_texts()[:5] == expected
    page.locator("#recommended a").first.click()
    page.wait_for_selector("#explanation .waterfall")
    assert expected[0] in page.url
    page.locator("#search-input").fill(expected[1])
    page.locator("[role=option]").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/#/item/{expected[1]}")
    page.wait_for_selector("main .paths")
    show(page, f"/#/new/{expected[2]}", "#recommended a")
    assert expected[2] not in page.locator("#recommended .id").all_inner_texts()
    page.close()
    server.stop()


@pytest.mark.parametrize("context", [PHONE, {**PHONE, "color_scheme": "dark"}, {}], ids=["phone", "dark", "wide"])
def test_the_reference_sends_its_examples_and_axe_finds_nothing(
    browser: Any, server: Server, context: dict[str, Any]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = browser.new_page(base_url=server.url, **context)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto("/docs")
    page.wait_for_selector("details")
    for path in ("/v1/recommend", "/v1/users"):
        operation = page.locator("details", has=page.locator("summary code", has_text=re.compile(f"^{path}$")))
        operation.locator("summary").click()
        operation.get_by_role("button", name="Send").click()
        operation.get_by_text("200 OK").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    found = axe.run(page, options={**RULES, "resultTypes": ["violations"]})
    assert not found.response["violations"], found.generate_report()
    assert complaints == []
    page.close()


@pytest.mark.parametrize(
    "page", [PHONE, {**PHONE, "color_scheme": "dark"}, {}], indirect=True, ids=["phone", "dark", "wide"]
)
def test_every_view_fits_its_screen_and_axe_finds_nothing(page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    width = page.viewport_size["width"]
    for address, shown in VIEWS.items():
        show(page, address, shown)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        found = axe.run(page, options={**RULES, "resultTypes": ["violations"]})
        assert not found.response["violations"], f"{address}: {found.generate_report()}"
