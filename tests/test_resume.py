"""A training killed at any moment goes on with --resume, and ends bit-identical to one that was not killed.

The process is real and so is SIGKILL. Half of the kills come from inside: the child counts its own file operations
(write, flush, rename, remove) and kills itself in the middle of the chosen one. The other half come from outside, at
a random time.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from planted import checkerboard

from hmlet.data import Dataset
from hmlet.runs import RunDirectory

# The child: `python -c CHILD operation …` kills itself at the operation-th file operation (never, where it is 0).
CHILD = """
import os, signal, sys
import safetensors.torch
import hmlet.runs as runs

countdown = int(sys.argv.pop(1))

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

runs.save_file = counted(runs.save_file, half_a_file)
runs.os.replace = counted(os.replace)
runs.os.fsync = counted(os.fsync)
runs.RunDirectory.remove = counted(runs.RunDirectory.remove)

from hmlet.cli import main
sys.exit(main(sys.argv[1:]))
"""

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


def start(data: Path, out: Path, operation: int = 0) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(operation), "train", str(data), "--out", str(out), "--resume", *OPTIONS]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


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
    began = time.monotonic()
    process = start(data, out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return digest(out), time.monotonic() - began


def kill_and_resume(data: Path, out: Path, whole: str, rng: random.Random, inside: bool, seconds: float) -> int:
    """Kill a training until it gets through; returns how many kills it took."""
    kills = 0
    for _ in range(6):
        process = start(data, out, rng.randrange(1, 60) if inside else 0)
        if not inside:
            time.sleep(rng.uniform(0.5, 1.0) * seconds)
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors.decode()
        kills += 1
        if kills >= 3:
            break
    process = start(data, out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    assert digest(out) == whole
    assert not list(out.glob("*.tmp"))
    return kills


def campaign(data: Path, tmp_path: Path, untouched: tuple[str, float], wanted: int) -> None:
    whole, seconds = untouched
    rng = random.Random(wanted)
    counts = {True: 0, False: 0}
    attempt = 0
    while min(counts.values()) < wanted // 2:
        inside = counts[True] <= counts[False]
        counts[inside] += kill_and_resume(data, tmp_path / str(attempt), whole, rng, inside, seconds)
        attempt += 1
        assert attempt < 20 * wanted, "the kills come too late to hit anything"


def test_ten_kills(data: Path, tmp_path: Path, untouched: tuple[str, float]) -> None:
    campaign(data, tmp_path, untouched, 10)


@pytest.mark.slow
def test_two_hundred_kills(data: Path, tmp_path: Path, untouched: tuple[str, float]) -> None:
    campaign(data, tmp_path, untouched, 200)
