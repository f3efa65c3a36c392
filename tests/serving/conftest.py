"""Two small runs, and clients of the service over the first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from served import Server, client_of, train
from starlette.testclient import TestClient

from hmlet.api import Run
from hmlet.serving.settings import Settings


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the runs `first` and `second`, whose answers differ."""
    root = tmp_path_factory.mktemp("runs")
    train(root / "first", seed=1)
    train(root / "second", seed=2)
    return root


@pytest.fixture(scope="session")
def run(runs: Path) -> Run:
    return Run.open(runs / "first")


@pytest.fixture(scope="session")
def client(runs: Path) -> Iterator[TestClient]:
    with client_of(runs / "first", Settings()) as client:
        yield client


@pytest.fixture
def start(runs: Path) -> Iterator[Callable[..., Server]]:
    """A call that starts the service on the run `first`, with options; it is stopped when the test ends."""
    started: list[Server] = []

    def call(*options: str, seconds: float | None = None) -> Server:
        started.append(Server(str(runs / "first"), *options, seconds=seconds))
        return started[-1].wait_until_ready()

    yield call
    for server in started:
        server.process.send(signal.SIGKILL)
