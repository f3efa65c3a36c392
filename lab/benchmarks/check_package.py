"""A packed run, unpacked and served elsewhere: in another directory and a new virtual environment, its source gone.

A run is trained on prepared data and packed with a wheel of this tree. Run, data and wheel are deleted. The archive is
unpacked in another directory. There the Dockerfile's `RUN pip install` runs in a new virtual environment, and its
ENTRYPOINT is started. The Kubernetes probes are called as the kubelet would call them, and recommendations have to be
those from before. pip takes packages from wherever its configuration leads.

    python lab/benchmarks/check_package.py --json --record lab/results/benchmarks/package_cpu2_DATE.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import torch
from harness import hardware, parsed, publish

import hmlet
from hmlet.data.catalog import load

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-for-this-check-only"
STARTS_WITHIN = 120.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    options = parsed(parser)
    with tempfile.TemporaryDirectory() as place:
        result = check(Path(place), options.epochs)
    publish("package", {"hardware": hardware(torch.device("cpu")), **result}, options.json, options.record)


def check(place: Path, epochs: int) -> dict[str, Any]:
    """What was found elsewhere; raises where it is not what was packed."""
    archive, users, expected = _packed(place / "here", place / "package.tar.gz", epochs)
    size = archive.stat().st_size
    with tarfile.open(archive) as packed:
        packed.extractall(place / "elsewhere", filter="data")
    folder = place / "elsewhere" / "package"
    shutil.rmtree(place / "here")
    docker = (folder / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    environment = place / "venv"
    venv.create(environment, with_pip=True)
    began = time.perf_counter()
    for command in re.findall(r"^RUN (.*)$", docker, re.MULTILINE):
        subprocess.run(command, shell=True, cwd=folder, env=_variables(environment), check=True, stdout=sys.stderr)
    installed = time.perf_counter() - began
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", docker, re.MULTILINE)
    with _served(json.loads(entry), folder, environment) as (address, ready):
        probes = {path: _get(address, path, {"Host": "10.0.0.1:8000"}) for path in _probes(folder)}  # as a kubelet asks
        found = _get(
            address,
            "/v1/recommend",
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            json.dumps({"users": users, "k": 5}).encode(),
        )
    if found != expected:
        raise AssertionError(f"{found} instead of {expected}")
    origin = _output("import hmlet; print(hmlet.__file__)", place, environment)
    assert Path(origin).is_relative_to(environment)
    return {
        "dataset": "debian",
        "archive_bytes": size,
        "install_seconds": round(installed, 1),
        "seconds_until_ready": round(ready, 2),
        "probes": probes,
        "same_recommendations": True,
        "source_is_gone": not (place / "here").exists(),
    }


def _packed(place: Path, out: Path, epochs: int) -> tuple[Path, list[str], Any]:
    """An archive with a run and a wheel, some of its users, and what the run recommends to them."""
    data = load("debian").save(place / "data")
    recipe = hmlet.resolve("hmlet-end", overrides=[f"train.epochs={epochs}", "model.embedding_size=16"])
    run = hmlet.fit(data, recipe, place / "run", device="cpu")
    users = [str(run.data.users.id(at)) for at in (0, 1000, 2000)]
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(place), str(_source(place))]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (wheel,) = place.glob("hmlet-*.whl")
    return hmlet.package(run, out, wheel=wheel), users, json.loads(json.dumps(run.recommend(users, k=5)))


def _source(place: Path) -> Path:
    """A copy of what a wheel is built from: building writes beside it."""
    source = place / "source"
    source.mkdir()
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    return source


def _variables(environment: Path) -> dict[str, str]:
    """The variables of a shell in which a virtual environment is active, and nothing of this tree."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "PATH": f"{environment / 'bin'}{os.pathsep}{kept['PATH']}", "HMLET_TOKEN": TOKEN}


def _output(code: str, place: Path, environment: Path) -> str:
    command = [str(environment / "bin" / "python"), "-c", code]
    done = subprocess.run(command, cwd=place, env=_variables(environment), check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def _served(entry: list[str], folder: Path, environment: Path) -> Iterator[tuple[str, float]]:
    """The address of the image's command, once it is ready, and the seconds until then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(environment / "bin" / entry[0]), *entry[1:], "--port", str(port)]  # the last of two counts
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=_variables(environment), stderr=subprocess.PIPE)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                _get(address, "/v1/ready", {})
                break
            except (URLError, ConnectionError):
                if process.poll() is not None or time.perf_counter() - began > STARTS_WITHIN:
                    process.kill()
                    raise AssertionError(process.communicate()[1].decode()) from None
                time.sleep(0.05)
        yield address, time.perf_counter() - began
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _probes(folder: Path) -> list[str]:
    """The path of every probe in the manifest."""
    return re.findall(r"path: (\S+)", (folder / "kubernetes.yaml").read_text(encoding="utf-8"))


def _get(address: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Any:
    """The JSON at a path; an answer other than 200 raises."""
    with urlopen(Request(address + path, body, headers), timeout=10) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    main()
