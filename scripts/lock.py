"""Writes requirements.lock and requirements-cuda.lock: every dependency, pinned and hashed (`make lock`).

One PyTorch version has two kinds of wheel. The CPU build stands alone; PyPI's Linux build also needs NVIDIA's
libraries, several gigabytes of them. So the libraries have a lock of their own, which scripts/bootstrap.py installs
only where the PyTorch that pip found asks for them. The CPU build's hash is in requirements-cpu.lock, kept by hand.

Pins stay as they are unless pyproject.toml or requirements.in rule them out; `--upgrade` moves all of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
CUDA_LOCK = ROOT / "requirements-cuda.lock"
CUDA_PREFIXES = ("nvidia-", "cuda-")
HEADER = "# Written by `make lock` from pyproject.toml and requirements.in; do not edit. `make` installs it.\n"
CUDA_HEADER = HEADER + "# NVIDIA's libraries for PyPI's Linux build of PyTorch; its CPU build needs none of them.\n"


def main() -> None:
    entries = resolve(upgrade="--upgrade" in sys.argv[1:])
    cuda = [entry for entry in entries if entry.startswith(CUDA_PREFIXES)]
    LOCK.write_text(HEADER + "".join(entry for entry in entries if entry not in cuda), encoding="utf-8")
    CUDA_LOCK.write_text(CUDA_HEADER + "".join(cuda), encoding="utf-8")


def resolve(upgrade: bool) -> list[str]:
    """The resolver's answer for Python 3.11 and later on every platform: one text per package, with its hashes."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory, "all.lock")  # uv prefers the versions that its output file already has
        if not upgrade:
            output.write_text("".join(path.read_text(encoding="utf-8") for path in (LOCK, CUDA_LOCK) if path.exists()))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "pyproject.toml", "requirements.in"]
        command += ["--extra", "all", "--extra", "dev", "--universal", "--python-version", "3.11", "--generate-hashes"]
        command += ["--no-header", "--annotation-style", "line", "--output-file", str(output)]
        subprocess.run(command, cwd=ROOT, check=True)
        return re.split(r"^(?=[a-z0-9])", output.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


if __name__ == "__main__":
    main()
