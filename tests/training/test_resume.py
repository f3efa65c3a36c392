"""A training killed at any moment goes on with --resume, and ends bit-identical to one that was not killed.

What is added to a finished run, and killed, is as if it had not been asked for.

The process is real and so is SIGKILL. Half of the kills come from inside: the child counts its own file operations
(write, flush, rename, remove) and kills itself in the middle of the chosen one. The other half come from outside, at
a random time.
"""

from __future__ import annotations

import hashlib
import random
import signal
import time
from pathlib import Path

import pytest
from forked import Forked
from planted import checkerboard

from hmlet.api import Run
from hmlet.data import Dataset
from hmlet.ranking.evaluation import evaluate
from hmlet.runs.directory import RunDirectory

# With the arguments N COMMAND … it kills itself at its Nth file operation (never, where N is 0).
CHILD = """
import os, signal, sys
import hmlet.runs.directory as runs
import hmlet.runs.tensors as tensors
from hmlet.cli import main

countdown = int(sys.argv[1])

def counted(function, half_done=None):
    def wrapper(*arguments, **options):
        global countdown
        countdown -= 1
        if countdown == 0:
            if half_done is not None:
                half_done(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return wrapper

def half_a_file(tensors, path, *rest):
    with open(path, "wb") as file:
        file.write(bytes(1000))

tensors.save_file = counted(tensors.save_file, half_a_file)
os.replace = counted(os.replace)
os.fsync = counted(os.fsync)
runs.RunDirectory.remove = counted(runs.RunDirectory.remove)
sys.exit(main(sys.argv[2:]))
"""


def train(data: Path, out: Path, operation: int = 0, kill_after: float | None = None) -> int:
    """The exit status of one training, minus the signal where one ended it."""
    return call(operation, "train", str(data), "--out", str(out), "--resume", *OPTIONS, kill_after=kill_after)


def call(operation: int, *command: str, kill_after: float | None = None) -> int:
    """The exit status of a command, minus the signal where one ended it."""
    process = Forked(CHILD, str(operation), *command)
    if kill_after is not None:
        time.sleep(kill_after)
        process.send(signal.SIGKILL)
    process.wait()
    assert process.status is not None
    return process.status


OPTIONS = [
    "--model", "hmlet-end", "--device", "cpu", "--seed", "3",
    *("--set", "train.epochs=4"), *("--set", "train.validate_every=1"), *("--set", "train.batch_size=64"),
    *("--set", "train.checkpoint_seconds=0"), *("--set", "model.embedding_size=8"), *("--set", "model.layers=2"),
    *("--set", "model.gate_hidden=[8]"), *("--set", "model.gate_warmup=1"), *("--set", "train.edge_dropout=0.3"),
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    planted: Dataset = checkerboard(blocks=2, users=24, items=12)
    return planted.save(tmp_path_factory.mktemp("resume") / "data")


def digest(out: Path) -> str:
    """A hash over the bytes of everything that training decides."""
    tensors = {
        f"{name} {key}": value
        for name in ("factors.safetensors", "model.safetensors", "layers.safetensors")
        for key, value in RunDirectory.open(out).read_tensors(name).items()
    }
    joined = hashlib.sha256()
    for key in sorted(tensors):
        joined.update(key.encode() + tensors[key].contiguous().numpy().tobytes())
    return joined.hexdigest()


@pytest.fixture(scope="module")
def untouched(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """The hash of a run that nobody killed, and how long it took."""
    out = tmp_path_factory.mktemp("untouched") / "run"
    Forked("").wait()  # the first of all waits for what it is forked from
    began = time.monotonic()
    assert train(data, out) == 0
    return digest(out), time.monotonic() - began


def kills_until_done(data: Path, out: Path, rng: random.Random, inside: bool, seconds: float) -> int:
    """Kill a training up to three times, then let it finish; returns how many kills hit it."""
    kills = 0
    for _ in range(3):
        operation = rng.randrange(1, 60) if inside else 0
        status = train(data, out, operation, None if inside else rng.uniform(0.0, 1.0) * seconds)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        kills += 1
    assert train(data, out) == 0
    return kills


def campaign(data: Path, tmp_path: Path, untouched: tuple[str, float], wanted: int) -> None:
    """At least half of `wanted` kills inside a save, and as many at a random time; every run must end the same."""
    whole, seconds = untouched
    rng = random.Random(wanted)
    counts = {True: 0, False: 0}
    for attempt in range(20 * wanted):
        if min(counts.values()) >= wanted // 2:
            return
        inside = counts[True] <= counts[False]
        out = tmp_path / str(attempt)
        counts[inside] += kills_until_done(data, out, rng, inside, seconds)
        assert digest(out) == whole
        assert not list(out.glob("*.tmp"))
    pytest.fail("the kills come too late to hit anything")


def test_ten_kills(data: Path, tmp_path: Path, untouched: tuple[str, float]) -> None:
    campaign(data, tmp_path, untouched, 10)


@pytest.mark.slow
def test_two_hundred_kills(data: Path, tmp_path: Path, untouched: tuple[str, float]) -> None:
    campaign(data, tmp_path, untouched, 200)


def test_a_killed_evaluation_is_not_there_yet(data: Path, tmp_path: Path) -> None:
    """Killed at its first file operation, its second, … until it gets through; what was there before is never lost."""
    assert train(data, tmp_path) == 0
    run = Run.open(tmp_path)
    before = run.evaluate("test").as_json()
    expected = evaluate(run.factors, run.data, "test", k=11).as_json()
    operation, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        operation += 1
        status = call(operation, "evaluate", str(tmp_path), "-k", "11")
        assert Run.open(tmp_path).evaluate("test").as_json() == before
    assert status == 0
    assert operation > 9  # the record, the file and the record again, each with two flushes and a rename
    assert Run.open(tmp_path).evaluate("test", k=11).as_json() == expected
