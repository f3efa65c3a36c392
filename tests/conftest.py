"""What all tests share: few threads, a cache of their own, the mirror of the benchmark data, the `hmlet` command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# Before anything imports torch: pytest's workers already fill the cores, and more threads only get in their way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Subprocesses find the package in the source tree, installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))

# On a shared machine an example's time says nothing; in CI a failure must come back when it is run again.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Completed = subprocess.CompletedProcess[str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("chromium") is None:
        skip = pytest.mark.skip(reason="no Chromium on this machine: `make browser` installs it")
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(skip)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. It is closed after each module: while Playwright runs, no test can use asyncio."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory that stands for the user's cache: no test reads or fills the real one."""
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HMLET_CACHE", str(directory))
        yield directory


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The directory with the paper's splits; a test that asks for it is skipped where there is none."""
    given = os.environ.get("HMLET_DATA_MIRROR")
    directory = Path(given) if given else ROOT.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip(
            f"no benchmark data at {given or '../shared/data'}: set HMLET_DATA_MIRROR to a directory that has it"
        )
    return directory


@pytest.fixture
def hmlet(tmp_path: Path) -> Callable[..., Completed]:
    """A call `hmlet("data", "list")`: the command as a process of its own, in an empty directory."""

    def call(*arguments: str) -> Completed:
        command = [sys.executable, "-m", "hmlet", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    return call
