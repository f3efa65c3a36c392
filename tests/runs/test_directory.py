"""The run directory under attack: damaged, mixed, hostile and unwritable files."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from finished import as_options
from planted import checkerboard
from safetensors import SafetensorError

from hmlet.api import Run
from hmlet.cli import main
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.errors import DataError, RunError
from hmlet.runs import recorded as runs
from hmlet.runs import tensors
from hmlet.runs.checkpoint import CHECKPOINT, load_checkpoint
from hmlet.runs.directory import RunDirectory
from hmlet.runs.locking import locked
from hmlet.runs.record import RECORD, json_checksum
from hmlet.training import loop as training
from hmlet.training.trainer import StopTraining

SETTINGS = [
    "train.epochs=2", "train.batch_size=256", "train.validate_every=1", "train.checkpoint_seconds=0",
    "model.embedding_size=8", "model.layers=2", "model.gate_hidden=[8]",
]  # fmt: skip
# Every file of a finished run, and what reads it.
READERS: dict[str, Callable[[Path], Any]] = {
    "config.toml": lambda path: Run.open(path).recipe,
    "ids.parquet": lambda path: RunDirectory.open(path).nodes,
    "metrics.jsonl": lambda path: Run.open(path).metrics,
    "factors.safetensors": lambda path: Run.open(path).factors,
    "model.safetensors": lambda path: RunDirectory.open(path).weights(),
    "layers.safetensors": lambda path: RunDirectory.open(path).read_tensors("layers.safetensors"),
    "gates.parquet": lambda path: Run.open(path).gates,
    "per_user.parquet": lambda path: Run.open(path).evaluate("test"),
    RECORD: lambda path: Run.open(path),
    CHECKPOINT: lambda path: load_checkpoint(RunDirectory.open(path)),
}


def recipe(seed: int = 1) -> Recipe:
    return resolve("hmlet-end", overrides=SETTINGS, seed=seed)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load(checkerboard().save(tmp_path_factory.mktemp("prepared") / "data"))


@pytest.fixture(scope="module")
def finished(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _finish(data, recipe(), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="module")
def another(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that differs in its seed alone, so that its files fit in every way but one."""
    return _finish(data, recipe(seed=2), tmp_path_factory.mktemp("another") / "run")


@pytest.fixture(scope="module")
def unfinished(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _stop(data, recipe(), tmp_path_factory.mktemp("unfinished") / "run")


def _finish(data: Dataset, how: Recipe, out: Path) -> Path:
    Run(training.fit(data, how, out, device="cpu")).evaluate("test")
    return out


def _stop(data: Dataset, how: Recipe, out: Path) -> Path:
    """A run that a listener stopped after its first epoch; its last checkpoint is one step older."""

    def stop(event: dict[str, Any]) -> None:
        raise StopTraining

    with pytest.raises(StopTraining):
        training.fit(data, how, out, device="cpu", listener=stop)
    return out


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy")


def test_every_file_of_a_run_has_a_reader_here(finished: Path) -> None:
    """The copy of the data is a prepared directory, which has tests of its own."""
    assert {path.name for path in finished.iterdir()} - {"run.lock", "data"} == set(READERS)


def test_every_file_of_a_run_can_be_read_by_those_whom_the_umask_lets(finished: Path) -> None:
    """safetensors gives its files 0600, and a service under an account of its own could not open such a run."""
    probe = finished.parent / "probe"
    probe.touch()
    modes = {
        path.name: path.stat().st_mode for path in finished.rglob("*") if path.is_file() and path.name != "run.lock"
    }
    assert modes == dict.fromkeys(modes, probe.stat().st_mode)


def damages(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Single bit flips at the ends and at random places, and cuts."""
    places = {0, len(content) - 1, *(rng.randrange(len(content)) for _ in range(30))}
    for place in sorted(places):
        bit = rng.randrange(8)
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        yield f"bit {bit} of byte {place}", bytes(changed)
    for length in (0, 1, len(content) // 2, len(content) - 2):  # a text without its last newline is the same text
        yield f"cut to {length} bytes", content[:length]


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_refused_by_name(name: str, copy: Path) -> None:
    content = (copy / name).read_bytes()
    for what, damaged in damages(content, random.Random(name)):
        (copy / name).write_bytes(damaged)
        with pytest.raises(RunError) as refusal:
            READERS[name](copy)
        assert str(copy / name) in refusal.value.message, what
    (copy / name).write_bytes(content)
    READERS[name](copy)


@pytest.mark.parametrize("name", sorted(set(READERS) - {CHECKPOINT}))  # without one, a run cannot be extended
def test_a_missing_file_is_refused_by_name(name: str, copy: Path) -> None:
    (copy / name).unlink()
    with pytest.raises(RunError, match=rf"{name}"):
        READERS[name](copy)


@pytest.mark.parametrize("name", sorted(set(READERS) - {"ids.parquet", RECORD}))
def test_a_file_of_another_run_is_refused_by_name(name: str, copy: Path, another: Path) -> None:
    """Two files of one content are no two files: the ids of both runs are the same."""
    shutil.copy(another / name, copy / name)
    with pytest.raises(RunError, match=rf"{name} (is damaged or )?belongs to another run"):
        READERS[name](copy)


def test_the_record_of_another_run_vouches_for_nothing(copy: Path, another: Path) -> None:
    shutil.copy(another / RECORD, copy / RECORD)
    for name in sorted(set(READERS) - {"ids.parquet", RECORD}):
        with pytest.raises(RunError, match=name):
            READERS[name](copy)


@pytest.mark.parametrize("content", ["[]", "null", "3", '"run"', "{}", '{"checksum": 1}', "[" * 100_000, "\ud800"])
def test_a_record_that_is_no_record_is_refused(content: str, copy: Path) -> None:
    (copy / RECORD).write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(RunError, match=RECORD):
        Run.open(copy)


# -- the checkpoint -----------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_refused_by_name(unfinished: Path, data: Dataset, tmp_path: Path) -> None:
    path = shutil.copytree(unfinished, tmp_path / "copy")
    content = (path / CHECKPOINT).read_bytes()
    for what, damaged in damages(content, random.Random(0)):
        (path / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(RunError) as refusal:
            load_checkpoint(RunDirectory.open(path))
        assert str(path / CHECKPOINT) in refusal.value.message, what
    with pytest.raises(RunError, match=CHECKPOINT):
        training.fit(data, recipe(), path, device="cpu", resume=True)


def test_a_checkpoint_of_another_run_is_refused(unfinished: Path, data: Dataset, tmp_path: Path) -> None:
    path = _stop(data, recipe(seed=2), tmp_path / "other")
    shutil.copy(unfinished / CHECKPOINT, path / CHECKPOINT)
    with pytest.raises(RunError, match=f"{CHECKPOINT} belongs to another run"):
        training.fit(data, recipe(seed=2), path, device="cpu", resume=True)


# -- hostile files ------------------------------------------------------------------------------------------------


def test_names_that_lead_outside_are_not_followed(copy: Path, tmp_path: Path) -> None:
    """A record may vouch for ../x with the right checksum: nobody asks for it, and asking is refused."""
    outside = tmp_path / "x"
    outside.write_text("secret")
    record = json.loads((copy / RECORD).read_text())
    del record["checksum"]
    record["files"] |= {name: runs.sha256(outside) for name in ("../x", str(outside))}
    (copy / RECORD).write_text(json.dumps({**record, "checksum": json_checksum(record)}))
    run = Run.open(copy)
    assert run.evaluate("valid").metrics  # reads and writes as ever
    for name in ("../x", str(outside)):
        with pytest.raises(RunError, match="outside"):
            run.directory.read_bytes(name)
    assert outside.read_text() == "secret"


@pytest.mark.parametrize("name", READERS)
def test_a_symbolic_link_is_not_followed(name: str, copy: Path, tmp_path: Path) -> None:
    """Even where the content is right: what is read lies in the directory."""
    (copy / name).rename(tmp_path / "elsewhere")
    (copy / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=f"{name} is a symbolic link"):
        READERS[name](copy)


def test_writing_goes_through_no_symbolic_link(unfinished: Path, data: Dataset, tmp_path: Path) -> None:
    """Links where training writes are replaced or refused; what they point to keeps its content."""
    path = shutil.copytree(unfinished, tmp_path / "run")
    outside = tmp_path / "outside"
    outside.write_text("precious")
    for name in ("metrics.jsonl", "factors.safetensors", f".factors.safetensors.{os.getpid()}.tmp"):
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(outside)
    assert training.fit(data, recipe(), path, device="cpu", resume=True).finished
    assert outside.read_text() == "precious"
    assert not any(entry.is_symlink() for entry in path.iterdir())


def test_the_lock_is_no_link(copy: Path, tmp_path: Path) -> None:
    (copy / "run.lock").unlink()
    (copy / "run.lock").symlink_to(tmp_path / "made-by-following")
    with pytest.raises(RunError, match=r"run\.lock"), locked(copy):
        pass
    assert not (tmp_path / "made-by-following").exists()


# -- the data of a run --------------------------------------------------------------------------------------------


def test_the_data_is_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run made with relative paths is read from elsewhere; data that is gone is asked for by its place, and may be
    given from another one."""
    checkerboard().save(tmp_path / "made" / "data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    RunDirectory.create("run", recipe(), Dataset.load("data"), "cpu", keep_data=False)
    assert not Path("run/data").exists()
    monkeypatch.chdir(tmp_path / "elsewhere")
    directory = RunDirectory.open("../made/run")
    directory.record = directory.record.concluded(1, 1, None, 1.0)
    assert Run(directory).data.fingerprint == checkerboard().fingerprint
    shutil.move(tmp_path / "made" / "data", tmp_path / "now")
    with pytest.raises(RunError) as refused:
        _ = Run(directory).data
    assert str(refused.value) == (
        f"the data of ../made/run was at {tmp_path / 'made' / 'data'}: pass its new location with `data`"
    )
    assert Run(directory, tmp_path / "now").data.fingerprint == checkerboard().fingerprint
    checkerboard(blocks=3).save(tmp_path / "other")
    with pytest.raises(RunError, match="has changed since"):
        _ = Run(directory, tmp_path / "other").data


def test_a_run_keeps_its_data_and_checks_it(tmp_path: Path) -> None:
    """It says where the data was, and needs it no longer; a copy that is damaged, or a link, is refused."""
    checkerboard().save(tmp_path / "source")
    directory = RunDirectory.create(tmp_path / "run", recipe(), Dataset.load(tmp_path / "source"), "cpu")
    assert directory.record.data.reference == str(tmp_path / "source")
    directory.record = directory.record.concluded(1, 1, None, 1.0)
    shutil.rmtree(tmp_path / "source")
    assert Run(directory).data.fingerprint == checkerboard().fingerprint
    items = tmp_path / "run" / "data" / "items.parquet"
    items.write_bytes(items.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"items\.parquet is damaged"):
        _ = Run(directory).data
    shutil.rmtree(tmp_path / "run" / "data")
    (tmp_path / "run" / "data").symlink_to(checkerboard().save(tmp_path / "outside"))
    with pytest.raises(RunError, match="is a symbolic link"):
        _ = Run(directory).data


# -- several who add to one run -----------------------------------------------------------------------------------


def test_runs_opened_together_keep_each_others_evaluations(copy: Path) -> None:
    """Each was opened before the others wrote, and the same evaluation is stored once."""
    opened = {k: Run.open(copy) for k in (11, 12, 13)}
    twin = Run.open(copy)
    said = {k: run.evaluate("test", k=k) for k, run in opened.items()}
    assert twin.evaluate("test", k=11).metrics == said[11].metrics
    assert opened[11].evaluate("test").metrics == twin.evaluate("test").metrics  # stored before; the file has changed
    later = Run.open(copy)
    table = later.directory.read_table("per_user.parquet", {})
    for k, evaluation in said.items():
        assert f"test train {k}" in later.record.coverage
        assert later.evaluate("test", k=k).metrics == evaluation.metrics
        assert table["k"].to_pylist().count(k) == len(evaluation.users)


def test_reading_what_another_has_added_to_writes_nothing(copy: Path) -> None:
    """The record would be the same: another file tells that it was written."""
    early = Run.open(copy)
    Run.open(copy).evaluate("test", k=11)
    written = (copy / RECORD).stat().st_ino
    assert early.evaluate("test").metrics == Run.open(copy).evaluate("test").metrics  # stored; the file has changed
    assert (copy / RECORD).stat().st_ino == written


def test_an_evaluation_that_cannot_be_kept_is_not_lost(
    copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runs, "PATIENCE", 0.0)
    run, before = Run.open(copy), (copy / RECORD).read_bytes()
    with locked(copy):
        kept_nowhere = run.evaluate("test", k=11)
    assert [record.getMessage() for record in caplog.records] == [
        f"the evaluation could not be stored in {copy}: {copy} is being written by another process: "
        "wait for it, or stop it first"
    ]
    assert (copy / RECORD).read_bytes() == before
    assert run.evaluate("test", k=11).metrics == kept_nowhere.metrics
    assert "test train 11" in RunDirectory.open(copy).record.coverage


def test_an_update_waits_for_another(copy: Path) -> None:
    first, second = RunDirectory.open(copy), RunDirectory.open(copy)

    def update() -> None:
        with second.update():
            second.record = second.record.model_copy(update={"second": 2})

    other = threading.Thread(target=update)
    with first.update():
        other.start()
        other.join(timeout=0.3)
        assert other.is_alive()  # it waits
        first.record = first.record.model_copy(update={"first": 1})
    other.join()
    record = RunDirectory.open(copy).record.as_json()
    assert (record["first"], record["second"]) == (1, 2)


# -- places that are no run ---------------------------------------------------------------------------------------


def listing(path: Path) -> set[str]:
    return {str(entry.relative_to(path)) for entry in path.rglob("*")}


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("found", [["notes.tmp"], ["folder.tmp/"], ["data/"], [".notes.txt.1.tmp"], ["run.lock", "x"]])
def test_a_directory_that_is_no_run_is_left_alone(
    found: list[str], resume: bool, data: Dataset, tmp_path: Path
) -> None:
    for name in found:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    before = listing(tmp_path)
    with pytest.raises(RunError, match="is not a run directory") as refused:
        training.fit(data, recipe(), tmp_path, device="cpu", resume=resume)
    assert refused.value.hint == "choose another `out`"
    assert listing(tmp_path) == before


def test_a_file_is_no_run_either(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match=f"cannot write {place}: Not a directory: choose another place"):
            training.fit(data, recipe(), place, device="cpu")
    assert (tmp_path / "file").read_text() == "precious"


def test_what_a_start_killed_before_its_record_left_is_no_hindrance(data: Dataset, tmp_path: Path) -> None:
    for name in ("run.lock", "config.toml", ".ids.parquet.7.tmp", ".run.json.7.tmp"):
        (tmp_path / name).write_text("half")
    for name in ("data", ".data.abc_1234.tmp", ".data.abc_1234.tmp.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {"run.lock", "config.toml", "data"}
        RunDirectory.create(tmp_path, recipe(), data, "cpu")
    assert RunDirectory.open(tmp_path).recipe() == recipe()


# -- failing file operations --------------------------------------------------------------------------------------


class FailingDisk:
    """File operations under one directory, of which the Nth fails, once or from then on."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, failing: int, number: int, for_ever: bool) -> None:
        self.root, self.failing, self.number, self.for_ever = str(root), failing, number, for_ever
        self.count = 0
        patch.setattr(os, "replace", self._guard(os.replace))
        patch.setattr(os, "open", self._guard(os.open))
        patch.setattr(os, "fsync", self._guard(os.fsync, always=True))
        patch.setattr(builtins, "open", self._guard(builtins.open))
        patch.setattr(io, "open", self._guard(io.open))
        patch.setattr(pq, "write_table", self._guard(pq.write_table, at=1))
        patch.setattr(tensors, "save_file", self._guard(tensors.save_file, at=1, error=self._safetensors))

    @property
    def failed(self) -> bool:
        return self.count >= self.failing

    def _guard(
        self, sound: Callable[..., Any], at: int = 0, always: bool = False, error: Callable[[], Exception] | None = None
    ) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if always or str(arguments[at]).startswith(self.root):
                self.count += 1
                if self.count == self.failing or (self.for_ever and self.failed):
                    raise error() if error else OSError(self.number, os.strerror(self.number))
            return sound(*arguments, **options)

        return guarded

    def _safetensors(self) -> Exception:
        """What the library raises where the system says no."""
        return SafetensorError(f"Error while serializing: I/O error: {os.strerror(self.number)}")


@pytest.mark.parametrize(("number", "for_ever"), [(errno.EIO, False), (errno.ENOSPC, True)], ids=["EIO", "ENOSPC"])
def test_a_training_survives_any_failing_file_operation(
    number: int, for_ever: bool, data: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """N = 1, 2, … until a training gets through. Each time it says where; the last checkpoint loads; resume ends it."""
    short = [*SETTINGS[:5], "train.batch_size=512"]  # a step an epoch
    how = resolve("bpr", overrides=short)
    command = ["train", str(data.path), "--model", "bpr", "--device", "cpu", "--resume"]
    command += as_options(how)
    whole = training.fit(data, how, tmp_path / "whole", device="cpu").factors()
    failing, clean = 0, False
    while not clean:
        failing += 1
        out = tmp_path / f"run{failing}"
        with pytest.MonkeyPatch.context() as patch:
            disk = FailingDisk(patch, out, failing, number, for_ever)
            status = main([*command, "--out", str(out)])
        clean = not disk.failed
        errors = capfd.readouterr().err
        assert (status == 0) == clean, (failing, errors)
        assert clean or str(out) in errors, failing
        # A folder that cannot be opened cannot be emptied either; the next start removes it.
        assert not [path for path in out.glob("*.tmp") if path.is_file()], failing
        if not clean and (out / RECORD).is_file():
            load_checkpoint(RunDirectory.open(out))
        ended = training.fit(data, how, out, device="cpu", resume=True)
        assert all(torch.equal(a, b) for a, b in zip(ended.factors(), whole, strict=True)), failing
        shutil.rmtree(out)
    assert failing > 30  # a training has that many operations, so the loop did try them
