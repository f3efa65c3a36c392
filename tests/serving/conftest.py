"""Two small runs, and clients of the service over the first."""

from __future__ import annotations

import signal
import threading
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


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    """The service on the run `first`, as a process of its own."""
    server = Server(str(runs / "first")).wait_until_ready()
    reading = threading.Thread(target=server.process.wait, args=(600,))  # reads the log
    reading.start()
    yield server
    server.process.send(signal.SIGTERM)
    reading.join()


@pytest.fixture
def start(runs: Path) -> Iterator[Callable[..., Server]]:
    """A call that starts the service on the run `first`, with options or limits; it is stopped when the test ends."""
    started: list[Server] = []

    def call(*options: str, **limits: float) -> Server:
        started.append(Server(str(runs / "first"), *options, **limits))
        return started[-1].wait_until_ready()

    yield call
    for server in started:
        server.process.send(signal.SIGKILL)
