"""The tutorial works as it stands: its commands run in their order, and what comes out is what it promises."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", TUTORIAL, flags=re.MULTILINE | re.DOTALL)
SERVE = [block for block in BLOCKS if block.startswith("hmlet serve ")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `hmlet` in bin/ and reader/ to work in."""
    place = tmp_path_factory.mktemp("tutorial")
    (place / "bin").mkdir()
    (place / "reader").mkdir()
    shim = place / "bin" / "hmlet"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hmlet "$@"\n')
    shim.chmod(0o755)
    return place


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def done(place: Path) -> subprocess.CompletedProcess[str]:
    """Every block but the service's, in one shell, as a reader would type them."""
    script = "\n".join(block for block in BLOCKS if block not in SERVE)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=place / "reader",
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_there_are_five_steps() -> None:
    steps = re.findall(r"^\*\*(\d)\. ", TUTORIAL, flags=re.MULTILINE)
    assert steps == ["1", "2", "3", "4", "5"]
    assert len(SERVE) == 1


def test_rock_listeners_get_rock(done: subprocess.CompletedProcess[str], place: Path) -> None:
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((place / "reader" / "topn.csv").read_text().splitlines()))
    assert len(rows) == 600
    first = {row["user"]: row["item"] for row in rows if row["rank"] == "1"}
    kind = {user: ("jazz" if int(user.partition("-")[2]) % 2 else "rock") for user in first}
    assert {user: item.partition("-")[0] for user, item in first.items()} == kind
    newcomer = done.stdout.partition("someone with rock-2,rock-8,rock-14\n")[2].splitlines()[2:5]
    assert [line.partition("-")[0] for line in newcomer] == ["rock"] * 3
    assert "rock-16 scores" in done.stdout


def test_python_does_the_same(done: subprocess.CompletedProcess[str], place: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", TUTORIAL, flags=re.MULTILINE | re.DOTALL)
    told = subprocess.run(
        [sys.executable, "-c", block],
        cwd=place / "reader",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("<Plan hmlet-end on ")
    assert "are level in NDCG@20." in told.stdout  # one recipe, one result
    assert (place / "reader" / "python-topn.csv").read_bytes() == (place / "reader" / "topn.csv").read_bytes()


@pytest.fixture
def service(done: subprocess.CompletedProcess[str], place: Path) -> Iterator[str]:
    """The tutorial's last command in the background, on a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = SERVE[0].replace("8000", str(port)).split()
    process = subprocess.Popen(command, cwd=place / "reader", env=environment(place), start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)


def test_the_service_answers(service: str) -> None:
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"{service}/v1/health", timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the service did not become healthy")
