"""The documentation site: it builds strictly, its notebooks run, its links lead somewhere, and it needs no network."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; the first worker that asks builds it for all."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with open(shared / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site").exists():
            command = [sys.executable, str(ROOT / "scripts" / "site.py"), str(shared / "site")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
    return shared / "site"


class Page(HTMLParser):
    """The anchors of a page, the links of its readers, and what the browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("script", "img", "source", "iframe") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loaded.append(given["href"])


def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def broken(found: dict[Path, Page]) -> Iterator[str]:
    for path, page in found.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            elsewhere = parts.fragment and target in found and unquote(parts.fragment) not in found[target].anchors
            if elsewhere or not target.exists():
                yield f"{path.name}: {link}"


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    found = pages(site)
    assert {site / name for name in ("index.html", "tutorial.html", "api.html", "cli.html")} <= found.keys()
    assert sorted(set(broken(found))) == []


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    assert [
        each for page in pages(site).values() for each in page.loaded if urlsplit(each).scheme not in ("", "data")
    ] == []
    for sheet in site.rglob("*.css"):
        assert "@import" not in sheet.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_a_notebook_is_kept_without_outputs_and_shown_with_them(path: Path, site: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in cells] == [[]] * len(cells)
    assert 'class="output"' in (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="#here">x</a><a href="#gone">x</a><a href="b.html">x</a>')
    assert list(broken(pages(tmp_path))) == ["a.html: #gone", "a.html: b.html"]


@pytest.mark.browser
def test_a_browser_asks_for_nothing_outside(site: Path, browser: Any) -> None:
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "reproduction", "api", "notebooks/what-the-gates-chose"):
        page.goto((site / f"{name}.html").as_uri(), wait_until="networkidle")
    page.close()
    assert len(asked) > 8
    assert [url for url in asked if urlsplit(url).scheme not in ("file", "data", "blob")] == []
