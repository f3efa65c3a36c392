"""One service for all tests of the explorer, over data whose names carry markup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from served import SMALL
from server import Server

from hmlet.api import Run, fit
from hmlet.config import resolve
from hmlet.data import PARTS, Dataset, Interactions, Vocabulary
from hmlet.data.catalog import load

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def with_markup(data: Dataset) -> Dataset:
    """The data set with every name turned into markup."""
    users, items = (
        pa.array([f"{HOSTILE} {name}" for name in each.names.to_pylist()]) for each in (data.users, data.items)
    )
    interactions = Interactions(
        data.user, data.item, Vocabulary("user", data.users.ids, users), Vocabulary("item", data.items.ids, items)
    )
    part = np.repeat(np.arange(len(PARTS), dtype=np.uint8), [data.count(name) for name in PARTS])
    return Dataset("markup", interactions, part)


@pytest.fixture(scope="session")
def hostile() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("explorer") / "run"
    return fit(with_markup(load("debian")), resolve("hmlet-end", "hmlet", None, SMALL, 1), out)


@pytest.fixture(scope="session")
def other(run: Run) -> Run:
    """A LightGCN run of the same data."""
    return fit(run.data, resolve("lightgcn", "hmlet", None, SMALL[:2], 1), run.directory.path.parent / "lightgcn")


@pytest.fixture(scope="session")
def server(run: Run, other: Run) -> Iterator[Server]:
    server = Server(str(run.directory.path), "--compare", str(other.directory.path)).wait_until_ready()
    yield server
    server.stop()


@pytest.fixture
def page(browser: Any, server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of the explorer that must not complain; `indirect` parameters are options of its context."""
    options = {"reduced_motion": "reduce", **getattr(request, "param", {})}
    context = browser.new_context(base_url=server.url, **options)
    page, complaints, foreign = context.new_page(), [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("request", lambda sent: None if sent.url.startswith(server.url) else foreign.append(sent.url))
    page.set_default_timeout(60_000)  # the first visitor of the map waits until it is computed
    yield page
    assert (complaints, foreign) == ([], [])
    assert page.title() == "hmlet explorer"  # markup in a name would have changed it
    context.close()
