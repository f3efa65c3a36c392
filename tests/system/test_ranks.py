"""Training on several processes is training on one: losses, factors, files, and what happens when a rank is gone.

The processes are real and talk by Gloo. Where one of them dies, torchrun itself starts them; else they are forked, with
the variables that torchrun would set.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ranked
import torch
from finished import as_options
from forked import Forked
from planted import checkerboard
from server import free_port

from hmlet import cli
from hmlet.api import Run
from hmlet.cli import main
from hmlet.config import resolve
from hmlet.data import Dataset
from hmlet.errors import ConfigError, HmletError, LostRank
from hmlet.runs.checkpoint import load_checkpoint
from hmlet.runs.directory import RunDirectory
from hmlet.system.ranks import ALONE, Ranks, joined
from hmlet.training import loop as training
from hmlet.training.trainer import Interrupted, StopTraining

SCRIPT = str(Path(ranked.__file__))
MOVED = 0.1  # about as far as the learning rates and steps of these tests let an entry go
Completed = subprocess.CompletedProcess[str]


def torchrun(ranks: int, *command: str, restarts: int = 0) -> Completed:
    """A command on several processes of this machine, through torchrun itself."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [sys.executable, *launcher, "--max-restarts", str(restarts), *command],
        capture_output=True,
        text=True,
        timeout=240,
    )


# -- the same numbers ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """Every case on one process: its directory and its losses."""
    out = tmp_path_factory.mktemp("one")
    return out, ranked.train_all(out)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case on two ranks."""
    out = tmp_path_factory.mktemp("two")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "none"}
    code = "import sys, ranked; ranked.together(sys.argv[1])"
    processes = [
        Forked(code, str(out), RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", OMP_NUM_THREADS="1", **place)
        for rank in ("0", "1")
    ]
    written = [process.wait(240) for process in processes]
    assert [process.status for process in processes] == [0, 0], written
    return out


def require_equal_runs(one: RunDirectory, many: RunDirectory, rounding: float = 1e-4) -> None:
    """All that training decides, up to rounding.

    Where a gradient is nothing but rounding, Adam makes a step of it. So a tensor is compared by its length, and an
    entry may be off by this share of its size or of MOVED, whichever is more.
    """
    assert many.record.files.keys() == one.record.files.keys()
    for name in (name for name in one.record.files if name.endswith(".safetensors")):
        expected, found = one.read_tensors(name), many.read_tensors(name)
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert found[key].shape == tensor.shape
            difference = (found[key].double() - tensor.double()).norm()
            assert difference <= rounding * (tensor.double().norm() + MOVED * tensor.numel() ** 0.5), f"{name}: {key}"
    assert many.record.valid == pytest.approx(one.record.valid, abs=1e-6)


@pytest.mark.parametrize("case", ranked.CASES)
def test_two_ranks_train_as_one(case: str, one: tuple[Path, dict[str, list[float]]], two: Path) -> None:
    directory, losses = one
    assert len(losses[case]) > 5
    assert json.loads((two / "losses.json").read_text())[case] == pytest.approx(losses[case], rel=1e-5)
    require_equal_runs(RunDirectory.open(directory / case), RunDirectory.open(two / case))


@pytest.mark.slow
def test_four_ranks_train_as_one(one: tuple[Path, dict[str, list[float]]], tmp_path: Path) -> None:
    directory, losses = one
    done = torchrun(4, SCRIPT, "together", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "losses.json").read_text())
    for case in ranked.CASES:
        assert found[case] == pytest.approx(losses[case], rel=1e-5)
        require_equal_runs(RunDirectory.open(directory / case), RunDirectory.open(tmp_path / case))


def test_an_export_on_two_ranks_is_one_file(two: Path, tmp_path: Path) -> None:
    Run.open(two / "hmlet-end").export(tmp_path / "topn.parquet", 5)
    assert pq.read_table(two / "topn.parquet").equals(pq.read_table(tmp_path / "topn.parquet"))


def test_a_signal_to_one_rank_saves_the_same_step_of_all(two: Path) -> None:
    run = RunDirectory.open(two / "interrupted")
    saved = load_checkpoint(run)
    assert saved is not None
    assert saved[1]["step"] == 4
    assert saved[0]["model.embedding"].shape == saved[0]["steps.adam.0.exp_avg"].shape == (37 + 24, 8)


# -- ranks that die -----------------------------------------------------------------------------------------------

# Over the 32 steps of these runs, a last bit of e⁰ turned at the start moves the gates' weights as far as this.
LONG = 1e-3

# 480 training pairs: eight steps an epoch, and a checkpoint before each.
OVERRIDES = [
    "train.epochs=4", "train.batch_size=64", "train.learning_rate=0.02", "train.validate_every=2",
    "train.checkpoint_seconds=0", "train.edge_dropout=0.3", "model.embedding_size=8", "model.gate_hidden=[8]",
    "model.gate_warmup=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkerboard().save(tmp_path_factory.mktemp("board") / "data")


@pytest.fixture(scope="module")
def whole(board: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The run that nothing disturbed, on one process."""
    return fit(board, tmp_path_factory.mktemp("whole") / "run")


def fit(board: Path, out: Path, **options: Any) -> RunDirectory:
    return training.fit(Dataset.load(board), resolve("hmlet-end", overrides=OVERRIDES), out, device="cpu", **options)


def arguments(board: Path, out: Path) -> list[str]:
    chosen = as_options(resolve("hmlet-end", overrides=OVERRIDES))
    return ["train", str(board), "--model", "hmlet-end", "--device", "cpu", "--out", str(out), *chosen, "--resume"]


def stop_after(epoch: int) -> Callable[[dict[str, Any]], None]:
    def listen(event: dict[str, Any]) -> None:
        if event["epoch"] == epoch:
            raise StopTraining

    return listen


def test_two_ranks_one_and_two_again_end_as_one(board: Path, tmp_path: Path, whole: RunDirectory) -> None:
    """Two ranks until one is killed, one process for an epoch, two ranks again, killed and restarted by torchrun."""
    out = tmp_path / "run"
    ended = torchrun(2, SCRIPT, "killed", "1", "6", *arguments(board, out))
    assert ended.returncode != 0
    assert "error: rank 0 lost another rank, which died or left (" in ended.stderr
    assert "the last checkpoint is whole: resume from it" in ended.stderr
    saved = load_checkpoint(RunDirectory.open(out))
    assert saved is not None
    assert saved[1]["step"] == 5  # the one before the step that never ended
    with pytest.raises(StopTraining):
        fit(board, out, resume=True, listener=stop_after(2))
    again = torchrun(2, SCRIPT, "killed", "0", "3", *arguments(board, out), restarts=1)
    assert again.returncode == 0, again.stderr
    assert f"{out}: best epoch" in again.stdout
    assert again.stdout.count("best epoch") == 1  # rank 0 alone speaks
    run = RunDirectory.open(out)
    require_equal_runs(whole, run, LONG)
    assert [row["epoch"] for row in run.metrics()] == [1, 2, 3, 4]
    assert {path.name for path in out.iterdir()} == {path.name for path in whole.path.iterdir()}


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up(board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMLET_RANK_TIMEOUT", "5")
    began = time.monotonic()
    ended = torchrun(2, SCRIPT, "stopped", "1", "6", *arguments(board, tmp_path / "run"))
    assert ended.returncode != 0
    assert "error: rank 0 lost another rank, which died or left (" in ended.stderr
    assert time.monotonic() - began < 90  # torchrun gives the stopped rank 30 s to end


@pytest.mark.parametrize("given", ["", "ten", "0", "-5", "nan", "inf", "1e9"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("HMLET_RANK_TIMEOUT", given)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="HMLET_RANK_TIMEOUT"):
        joined().__enter__()


@pytest.mark.slow
def test_twenty_kills_at_random_moments(board: Path, tmp_path: Path, whole: RunDirectory) -> None:
    """By turns torchrun restarts all ranks, or the job ends and one process goes on."""
    rng, kills = random.Random(20), 0
    for attempt in range(60):
        out, restarts = tmp_path / str(attempt), kills % 2
        moment = ["doomed", str(rng.randrange(2)), str(rng.uniform(0.0, 4.0))]
        done = torchrun(2, SCRIPT, *moment, *arguments(board, out), restarts=restarts)
        # torchrun names first whichever rank it saw end first: the killed one, or the one that lost it.
        killed = re.search(r"exitcode\s*: -9", done.stderr) is not None
        kills += killed
        assert (done.returncode == 0) == (restarts == 1 or not killed), done.stderr
        fit(board, out, resume=True)  # a finished run is returned as it is
        require_equal_runs(whole, RunDirectory.open(out), LONG)
        if kills == 20:
            return
    pytest.fail("the kills come too late to hit anything")


# -- what is refused, and what is agreed --------------------------------------------------------------------------


def test_columns_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedding_size = 8 cannot be split over 3 ranks: use 1 or 2 of them"):
        training.fit(ranked.data(), ranked.recipe("bpr"), tmp_path / "run", device="cpu", ranks=Ranks(0, 3))
    assert not (tmp_path / "run").exists()


def test_a_solver_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wrmf has a closed form, which runs in one process"):
        training.fit(ranked.data(), resolve("wrmf"), tmp_path / "run", device="cpu", ranks=Ranks(0, 2))
    assert not (tmp_path / "run").exists()


def test_other_commands_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["data", "list"]) == 2
    assert capsys.readouterr().err == (
        "error: hmlet data list runs in one process: start it without torchrun, which is for train and export\n"
    )


def test_rank_0_speaks_for_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def says(rank: str, error: HmletError) -> list[float | str]:
        heard: list[float | str] = []
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(cli.time, "sleep", heard.append)
        cli._report(error)
        return [*heard, *capsys.readouterr().err.splitlines()]

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for error in (ConfigError("wrong"), LostRank("wrong"), Interrupted("wrong")):
        assert says("0", error) == ["error: wrong"]
    assert says("1", ConfigError("wrong")) == [cli.GRACE, "error: wrong"]  # torchrun ends it while it waits
    assert says("1", LostRank("wrong")) == ["error: wrong"]
    assert says("1", Interrupted("wrong")) == []


def test_shares_cover_everything_once() -> None:
    for size in (1, 2, 3, 5):
        for n in (0, 1, 4, 61):
            parts = [range(n)[Ranks(rank, size).own_rows(n)] for rank in range(size)]
            assert [at for part in parts for at in part] == list(range(n))
            assert [len(part) for part in parts] == ALONE.counts(n) if size == 1 else Ranks(0, size).counts(n)
    whole_ND = torch.arange(12.0).view(2, 6)
    assert torch.equal(torch.cat([Ranks(rank, 3).own_columns(whole_ND) for rank in range(3)], dim=1), whole_ND)
