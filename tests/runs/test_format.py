"""Every format names its version, and a version that this hmlet does not read is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from finished import finished

from hmlet.analysis.result import Analysis
from hmlet.api import Run
from hmlet.errors import RunError
from hmlet.runs.record import FORMAT_VERSION, json_checksum


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished("lightgcn", tmp_path_factory.mktemp("trained") / "run", "train.epochs=1").directory.path


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1, str(FORMAT_VERSION), None])
def test_another_version_of_a_run_is_refused(version: object, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    record = {**json.loads(path.read_text()), "format_version": version}
    del record["checksum"]
    path.write_text(json.dumps({**record, "checksum": json_checksum(record)}))
    with pytest.raises(RunError, match=f"has format version {version}, and this hmlet reads version {FORMAT_VERSION}"):
        Run.open(tmp_path / "run")


def test_another_version_of_an_analysis_is_refused() -> None:
    with pytest.raises(RunError, match=r"analysis\.json is not an analysis \(format_version: Input should be 1\)"):
        Analysis.from_json(b'{"format_version": 2}', "analysis.json")


def test_an_evaluation_of_a_very_long_list_is_kept_beside_others(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    first, longer = run.evaluate("test", "train", 20), run.evaluate("test", "train", 3_000_000_000)
    assert longer.metrics["recall"] == 1.0
    for k, found in ((20, first), (3_000_000_000, longer)):
        assert Run.open(tmp_path / "run").evaluate("test", "train", k).metrics == found.metrics
