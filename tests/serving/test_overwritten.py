"""Run files overwritten in place, as `cp other/* run/` does: what is served and exported is of one run, or refused."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import httpx
import pytest
from forked import Forked
from served import client_of
from server import HMLET, Server

from hmlet.api import Run
from hmlet.serving.settings import Settings


def overwrite(run: Path, source: Path) -> None:
    """Give every file of a run the content of another's, without making a new file."""
    for path in source.iterdir():
        if path.is_file():
            shutil.copyfile(path, run / path.name)  # truncates, then writes: the same inode


def lists(run: Run, users: list[str]) -> list[dict[str, object]]:
    return [dict(answer) for answer in run.recommend(users, 5)]


@pytest.fixture
def place(runs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(runs / "first", tmp_path / "run")


def test_a_served_run_answers_as_before_after_it_was_overwritten(runs: Path, place: Path) -> None:
    users = Run.open(place).data.users.ids.to_pylist()[:3]
    first, second = (lists(Run.open(runs / name), users) for name in ("first", "second"))
    assert first != second
    with client_of(place, Settings()) as client:
        asked = {"users": users, "k": 5}
        assert client.post("/v1/recommend", json=asked).json() == first
        overwrite(place, runs / "second")
        assert client.post("/v1/recommend", json=asked).json() == first
        (place / "factors.safetensors").write_bytes(b"")  # a mapped file would end the process here
        assert client.post("/v1/recommend", json=asked).json() == first


@pytest.mark.slow
def test_a_hundred_copies_under_load(runs: Path, place: Path, tmp_path: Path) -> None:
    """Beside a service under load and exports: every answer and file is of one run; nothing crashes or is left."""
    users = Run.open(place).data.users.ids.to_pylist()[:3]
    served = lists(Run.open(runs / "first"), users)
    whole = {}
    for name in ("first", "second"):
        Run.open(runs / name).export(tmp_path / f"{name}.jsonl", 5)
        whole[(tmp_path / f"{name}.jsonl").read_bytes()] = name
    server, stop = Server(str(place)).wait_until_ready(), threading.Event()
    answers: list[object] = []

    def ask() -> None:
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            while not stop.is_set():
                answers.append(client.post("/v1/recommend", json={"users": users, "k": 5}).json())

    def copy() -> None:
        for number in range(100):
            overwrite(place, runs / ("second", "first")[number % 2])
            stop.wait(0.5)
        stop.set()

    threads = [threading.Thread(target=each) for each in (ask, ask, copy)]
    for thread in threads:
        thread.start()
    outcomes: dict[str, int] = {}
    folder = tmp_path / "exports"
    folder.mkdir()
    while not stop.is_set():
        out = folder / "out.jsonl"
        export = Forked(HMLET, "export", str(place), "--out", str(out), "-k", "5")
        said = export.wait()
        assert export.status in (0, 2), (export.status, said)
        outcome = whole.get(out.read_bytes(), "neither") if export.status == 0 else "refused"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        assert [path.name for path in folder.iterdir()] == (["out.jsonl"] if export.status == 0 else [])
        out.unlink(missing_ok=True)
    for thread in threads:
        thread.join()
    server.stop()
    print(json.dumps({"answers": len(answers), "exports": outcomes}))  # noqa: T201
    assert answers
    assert all(answer == served for answer in answers)
    assert "neither" not in outcomes
