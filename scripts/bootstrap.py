"""Makes or refreshes the virtual environment that every make target uses: `bootstrap.py VENV`.

Only the standard library: it runs before anything is installed. All packages come from the locks, by hash and as
wheels, so that nothing is built or run on the way in; our own package is installed in place.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
FROM_LOCK = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r"]
# The CPU build of PyTorch asks for none of NVIDIA's libraries; PyPI's Linux build cannot start without them.
NEEDS_CUDA = (
    "from importlib.metadata import requires; print(any(r.startswith(('nvidia-', 'cuda-')) for r in requires('torch')))"
)


def main(venv):
    started = time.monotonic()
    say(f"setting up {venv} from requirements.lock (some minutes the first time)")
    python = str(make_venv(Path(venv)))
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]
    pip += ["--no-compile"]  # Python compiles what it imports; compiling all of it took 45 of 114 s
    # A step of its own: pip ranks a wheel whose hash its index tells above a CPU wheel in a plain directory.
    if subprocess.run([*pip, *FROM_LOCK, "requirements-cpu.lock"], cwd=ROOT, stderr=subprocess.DEVNULL).returncode:
        say("no CPU build of PyTorch within pip's reach: taking PyPI's")
    call([*pip, *FROM_LOCK, "requirements.lock"])
    if sys.platform == "linux" and subprocess.check_output([python, "-c", NEEDS_CUDA], text=True).strip() == "True":
        say("this PyTorch is a CUDA build: adding NVIDIA's libraries from requirements-cuda.lock (gigabytes)")
        call([*pip, *FROM_LOCK, "requirements-cuda.lock"])
    call([*pip, "--no-deps", "--no-build-isolation", "-e", "."])
    Path(venv, ".ready").touch()
    say(f"{venv} is ready ({time.monotonic() - started:.0f} s)")


def make_venv(venv):
    """The path of a Python inside the environment, which is made where it is missing or of another Python version."""
    python = venv / "bin" / "python"
    version = "import sys; print(sys.version_info[:2])"
    if python.exists() and subprocess.run(
        [str(python), "-c", version], capture_output=True, text=True
    ).stdout.strip() == str(sys.version_info[:2]):
        return python
    if subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], cwd=ROOT).returncode:
        fail(
            "cannot make a virtual environment",
            "install Python's venv module (Debian and Ubuntu: apt install python3-venv)",
        )
    return python


def call(command):
    status = subprocess.run(command, cwd=ROOT).returncode
    if status:
        fail(
            f"set-up failed (status {status}) in: {' '.join(command[1:])}",
            "see pip's message above; then run make again",
        )


def say(text):
    print(text, flush=True)


def fail(message, fix):
    sys.exit(f"error: {message}: {fix}")


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        fail(
            "hmlet needs Python 3.11 or later, and this is {}.{}".format(*sys.version_info[:2]),
            "try make PYTHON=python3.12",
        )
    main(sys.argv[1])
