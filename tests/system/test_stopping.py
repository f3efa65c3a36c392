"""Signals end a process at once, whatever it does, and leave no temporary file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmlet.system.stopping import StopRequest

STUBBORN = """
import ctypes, sys, time
from pathlib import Path
from hmlet.system.files import replacing
from hmlet.system.stopping import end_when_told
end_when_told(lambda number: sys.stderr.write(f"told {number}\\n") and sys.stderr.flush())
with replacing(Path("out")) as temporary:
    temporary.write_text("half")
    print("ready", flush=True)
    if sys.argv[1] == "python":
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
    ctypes.CDLL(None).sleep(60)  # a library that does not come back
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["python", "library"])
def test_nothing_can_swallow_a_signal(tmp_path: Path, number: signal.Signals, where: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, where],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (128 + number, f"told {int(number)}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_was_ignored_from_the_start_stays_ignored(tmp_path: Path) -> None:
    code = "from hmlet.system.stopping import end_when_told; end_when_told(print); import os, signal\n"
    code += "os.kill(os.getpid(), signal.SIGINT); print('alive')"
    done = subprocess.run(["nohup", "sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", code],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT as Python has it by default: a shell's background job ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_a_request_that_comes_too_late_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(None)


@pytest.mark.usefixtures("heard")
def test_a_request_that_was_acted_upon_is_not_raised_again() -> None:
    with pytest.raises(ValueError, match="saved"):
        interrupted(ValueError("saved"))


def interrupted(error: Exception | None) -> None:
    """What work does that is told to stop: it raises an error, or has not noticed."""
    with StopRequest() as request:
        os.kill(os.getpid(), signal.SIGINT)
        while not request.made:
            time.sleep(0.01)
        if error is not None:
            raise error
