"""The wheel alone is enough: installed without this tree, it does what README.md begins with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from readme import SHELL, code_blocks

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "hmlet"
UV = [sys.executable, "-m", "uv"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because building writes beside the sources."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [*UV, "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*build, "--out-dir", str(out), str(source)], check=True, timeout=120)
    assert len(list(out.glob("hmlet-*.tar.gz"))) == 1
    (built,) = out.glob("hmlet-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell whose Python has the wheel and, from this environment, its dependencies."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120)
    install = [*UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(place)]
    subprocess.run([*install, str(wheel)], check=True, timeout=120)
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its .pth files are not read
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": f"{place / 'bin'}{os.pathsep}{kept['PATH']}"}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert names == {path.relative_to(PACKAGE.parent).as_posix() for path in files}


def test_readmes_first_lines_run_with_the_wheel(environment: dict[str, str], tmp_path: Path) -> None:
    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(ROOT) not in run("python", "-c", "import hmlet; print(hmlet.__file__)")
    run("python", "-c", code_blocks("python")[0])
    run("bash", "-euo", "pipefail", "-c", SHELL)
