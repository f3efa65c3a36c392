"""How many threads are used, from what the system says."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hmlet.errors import ConfigError
from hmlet.system import threads
from hmlet.system.threads import possible_threads, quota, wait_without_spinning, working_threads


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, math.inf),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_a_quota_is_read_from_either_version_of_cgroups(files: dict[str, str], cpus: float, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert quota(tmp_path) == cpus


def test_the_smallest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 5, 6, 7}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert possible_threads(tmp_path) == 6
    (tmp_path / "cpu.max").write_text("400000 100000")
    assert possible_threads(tmp_path) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert possible_threads(tmp_path) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert possible_threads(tmp_path) == 4


def test_the_number_is_set_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is and however threads wait, it is what the process may use, unless told otherwise."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "possible_threads", lambda: before + 2)
    for policy in ("passive", "active"):
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        with working_threads():
            assert torch.get_num_threads() == before + 2
    with working_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("wanted", [0, -1, 1025, 100_000, 2**40])
def test_a_number_that_no_machine_bears_is_refused(wanted: int) -> None:
    with pytest.raises(ConfigError, match=f"{wanted} is not a valid number of threads: use 1 to 1024"):
        working_threads(wanted).__enter__()


def test_openmp_is_told_only_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    wait_without_spinning()
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.parametrize(
    ("script", "policy"),
    [
        ("import hmlet", None),
        ("import hmlet; hmlet.fit", "passive"),
        ("import hmlet; hmlet.Dataset", "passive"),
        ("import torch, hmlet; hmlet.fit", None),
        ("import os, hmlet; os.environ['OMP_WAIT_POLICY'] = 'active'; hmlet.fit", "active"),
    ],
)
def test_python_lets_threads_sleep_if_hmlet_loads_torch(script: str, policy: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = f"{script}; import os; print(os.environ.get('OMP_WAIT_POLICY'))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(policy)
