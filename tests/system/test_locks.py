"""Locks: one holder at a time, and what the others are told."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from forked import Forked

from hmlet.errors import HmletError, RunError
from hmlet.system.locks import held

HOLDS = """
import sys
from pathlib import Path
from hmlet.system.locks import held

with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "made" / "lock"
    with held(path):
        with pytest.raises(RunError) as refused, held(path, kind=RunError):
            pytest.fail("two hold it")
        assert str(refused.value) == f"{path.parent} is being written by another process: wait for it, or stop it first"
    with held(path):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = Forked(HOLDS, str(tmp_path / "lock"))
    assert process.line() == "held\n"
    with pytest.raises(HmletError), held(tmp_path / "lock"):
        pytest.fail("two hold it")
    process.send(signal.SIGKILL)
    process.wait()
    with held(tmp_path / "lock"):
        pass
