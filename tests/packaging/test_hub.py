"""`hmlet push` and `pull` against a stand-in of the Hub's HTTP API, each as a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from finished import finished
from hub import TOKEN, Hub, Repository, hub

from hmlet.api import Run
from hmlet.cli import main

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub") is None, reason="huggingface_hub is not installed"
)
Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with hub() as running:
        yield running


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished("lightgcn", tmp_path_factory.mktemp("hub") / "run")


def call(server: Hub, place: Path, *arguments: str, token: str = TOKEN) -> Completed:
    """The command, with the stand-in as its Hub. Xet, the Hub's other way for large files, has no stand-in."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.address,
        "HF_TOKEN": token,
        "HF_HOME": str(place / "hf"),
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-m", "hmlet", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_run_that_is_pushed_and_pulled_is_the_same(server: Hub, run: Run, tmp_path: Path) -> None:
    pushed = call(server, tmp_path, "push", str(run.directory.path), "me/board")
    assert pushed.returncode == 0, pushed.stderr
    repository = server.repositories["me/board"]
    assert pushed.stdout == f"{server.address}/me/board/commit/{repository.sha}\n"
    assert repository.private
    assert len(repository.commits) == 1
    assert "run/factors.safetensors" in repository.large
    assert repository.files["README.md"].startswith(b"---\nlibrary_name: hmlet\n")
    pulled = call(server, tmp_path, "pull", "me/board", "--out", str(tmp_path / "pulled"), "--json")
    assert pulled.returncode == 0, pulled.stderr
    copy = Run.open(json.loads(pulled.stdout)["run"])
    assert copy.recommend(["u0", "u1"]) == run.recommend(["u0", "u1"])
    # Another run in its place leaves nothing of the first behind.
    other = finished("popularity", tmp_path / "other")
    assert call(server, tmp_path, "push", str(other.directory.path), "me/board").returncode == 0
    assert len(repository.commits) == 2
    assert "run/layers.safetensors" not in repository.files
    assert call(server, tmp_path, "pull", "me/board", "--out", str(tmp_path / "second")).returncode == 0
    assert Run.open(tmp_path / "second" / "run").record.model == "popularity"


def test_what_the_hub_refuses_is_one_line_with_a_fix(server: Hub, run: Run, tmp_path: Path) -> None:
    path = str(run.directory.path)
    for arguments, said in {
        ("pull", "me/nothing", "--out", str(tmp_path / "out")): "no repository me/nothing that this token can see",
        ("push", path, "not a name"): "'not a name' is not the name of a repository: write it as owner/name",
    }.items():
        done = call(server, tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.startswith("error: ")
    assert not (tmp_path / "out").exists()
    with hub() as gone:
        pass
    silent = call(gone, tmp_path, "push", path, "me/other")
    assert (silent.returncode, silent.stdout) == (2, "")
    assert "cannot reach the Hub" in silent.stderr
    wrong = call(server, tmp_path, "push", path, "me/other", token="hf_wrong")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "HF_TOKEN" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_repository_without_a_run_is_refused(server: Hub, tmp_path: Path) -> None:
    server.repositories["me/text"] = Repository(False, {"README.md": b"nothing"}, ["first"])
    done = call(server, tmp_path, "pull", "me/text", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "me/text has no hmlet run" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "me/board", "--out", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
