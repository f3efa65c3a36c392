"""How many threads are used, from what the system says and what a clock says."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from hmlet.errors import ConfigError
from hmlet.system import threads
from hmlet.system.threads import choose_threads, possible_threads, quota, wait_without_spinning, working_threads


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


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({8: 1.0, 4: 1.8, 2: 3.5, 1: 7.0}, 8),  # idle
        ({8: 1.4, 4: 1.0, 2: 1.1, 1: 2.0}, 8),  # no clear winner: the number that the machine has
        ({8: 9.0, 4: 2.0, 2: 1.0, 1: 1.1}, 2),  # busy
        ({6: 5.0, 3: 4.0, 1: 1.0}, 1),
    ],
)
def test_fewer_threads_are_taken_if_they_are_clearly_faster(times: dict[int, float], chosen: int) -> None:
    assert choose_threads(max(times), times.__getitem__) == chosen


def test_one_possible_thread_is_not_measured() -> None:
    assert choose_threads(1, lambda count: pytest.fail("there is nothing to choose")) == 1


def test_the_number_is_set_for_a_while_and_a_wanted_one_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_seconds", lambda count: pytest.fail("nobody asked for a measurement"))
        with working_threads(before + 1):
            assert torch.get_num_threads() == before + 1
        with working_threads(measured=False):
            assert torch.get_num_threads() == possible_threads()
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # they sleep while they wait
        with working_threads():
            assert torch.get_num_threads() == possible_threads()
    with working_threads():
        assert 1 <= torch.get_num_threads() <= possible_threads()
    assert torch.get_num_threads() == before
    with pytest.raises(ConfigError, match="0 is not a valid number of threads"), working_threads(0):
        pass


def test_openmp_is_told_only_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    wait_without_spinning()
    assert "OMP_WAIT_POLICY" not in os.environ
