"""A packed run is unpacked and served in another directory and a new virtual environment, with its source gone."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "lab" / "benchmarks"


@pytest.mark.slow
def test_a_package_is_served_by_its_own_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    found = importlib.import_module("check_package").check(tmp_path, 1)
    assert found["same_recommendations"]
    assert found["source_is_gone"]
    assert found["probes"] == {"/v1/ready": {"status": "ready"}, "/v1/health": {"status": "ok"}}
