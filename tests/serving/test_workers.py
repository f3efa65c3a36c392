"""Several workers behind one address: they answer as one, follow a reload, and are replaced when they die."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from server import free_port

from hmlet.api import Run
from hmlet.serving.settings import Settings

ASK = {"users": ["gimp", "0ad"], "k": 5}


class Workers:
    """`hmlet serve --workers 2` as a process, and those that it starts."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "hmlet", "serve", *arguments, "--workers", "2", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self) -> Workers:
        assert self.process.stderr is not None
        assert any(line.startswith("serving ") for line in self.process.stderr)
        return self

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes that answer; Python's resource tracker is none of them."""
        children = psutil.Process(self.process.pid).children()
        living = [each for each in children if each.status() != psutil.STATUS_ZOMBIE]
        return [each for each in living if "spawn_main" in " ".join(each.cmdline())]

    def ask(self, path: str = "/v1/recommend", body: object = ASK) -> httpx.Response:
        """The answer on a connection of its own, which either worker may take."""
        if body is None:
            return httpx.get(self.url + path, trust_env=False, timeout=30)
        return httpx.post(self.url + path, json=body, trust_env=False, timeout=30)


@pytest.fixture
def two(runs: Path) -> Iterator[Workers]:
    server = Workers(str(runs / "first"), "--reload-root", str(runs)).wait_until_ready()
    yield server
    server.process.kill()
    server.process.wait()


def wait_for(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_workers_answer_as_one(two: Workers, runs: Path) -> None:
    first, second = (Run.open(runs / name) for name in ("first", "second"))
    assert len(two.workers) == 2
    assert all(two.ask().json() == first.recommend(ASK["users"], 5) for _ in range(20))
    counted = two.ask("/metrics", None).text
    assert 'hmlet_requests_total{route="/v1/recommend",status="200"} 20.0' in counted

    assert two.ask("/v1/reload", {"run": "nowhere"}).status_code == 409
    assert two.ask("/v1/reload", {"run": "second"}).status_code == 200
    expected = second.recommend(ASK["users"], 5)
    wait_for(lambda: all(two.ask().json() == expected for _ in range(20)))

    killed = two.workers[0]
    killed.kill()
    wait_for(lambda: len(two.workers) == 2 and killed.pid not in [each.pid for each in two.workers])
    wait_for(lambda: all(two.ask().json() == expected for _ in range(20)))  # the new one serves the run of the reload

    left = two.workers
    two.process.send_signal(signal.SIGTERM)
    assert two.process.wait(30) == 0
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in left)


def test_a_run_that_cannot_be_served_is_one_line(tmp_path: Path) -> None:
    server = Workers(str(tmp_path / "nowhere"))
    _, said = server.process.communicate(timeout=60)
    assert server.process.returncode == 2
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1


def test_no_workers_is_a_mistake() -> None:
    with pytest.raises(Exception, match="use 1 or more"):
        Settings(workers=0)
