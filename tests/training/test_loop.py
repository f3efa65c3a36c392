"""The loop: what it records, what it selects, and how it stops. (Kills and resume: test_resume.py.)"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from bare import run_bare
from finished import as_options
from forked import Forked
from planted import checkerboard, dataset, random_pairs

from hmlet import api
from hmlet.api import Run
from hmlet.cli import main
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.errors import ConfigError, DataError, RunError, TrainingError
from hmlet.graph import bipartite
from hmlet.ranking.evaluation import evaluate
from hmlet.runs.checkpoint import CHECKPOINT, load_checkpoint
from hmlet.runs.directory import RunDirectory
from hmlet.runs.record import RunRecord
from hmlet.system.ranks import Ranks
from hmlet.training import loop as training
from hmlet.training import planning, steps
from hmlet.training.trainer import StopTraining
from hmlet.tuning import tune

# 480 training pairs: eight steps an epoch, and a checkpoint before each.
SETTINGS = [
    "train.epochs=4", "train.batch_size=64", "train.learning_rate=0.02", "train.validate_every=2",
    "train.checkpoint_seconds=0", "model.embedding_size=8",
]  # fmt: skip
STEPS_AN_EPOCH = 8


def recipe(model: str = "bpr", *overrides: str) -> Recipe:
    gates = ["model.gate_hidden=[8]", "model.gate_warmup=1"] if model.startswith("hmlet") else []
    return resolve(model, overrides=[*SETTINGS, *gates, *overrides])


def fit(out: Path, how: Recipe | None = None, data: Dataset | None = None, **options: Any) -> RunDirectory:
    return training.fit(data or checkerboard(), how or recipe(), out, device="cpu", **options)


def same(one: RunDirectory, other: RunDirectory) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.factors(), other.factors(), strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A training that nothing disturbed."""
    return fit(tmp_path_factory.mktemp("whole") / "run")


# -- what is recorded and selected --------------------------------------------------------------------------------


def test_metrics_have_a_row_an_epoch_and_an_evaluation_where_one_is_due(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", recipe("hmlet-end", "train.epochs=5", "train.checkpoint_seconds=60"))
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["epoch"] for row in rows if "valid" in row] == [2, 4, 5]  # every second, and the last
    assert rows[0].keys() == {"epoch", "loss", "seconds"}
    assert rows[1].keys() == {"epoch", "loss", "seconds", "valid", "temperature", "gate_share"}
    assert rows[1]["gate_share"].keys() == {"3", "4"}
    assert rows[1]["temperature"] == pytest.approx(0.7 * 0.995)  # the second epoch's
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert run.metrics() == rows


def test_the_listener_hears_of_every_epoch(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    run = fit(tmp_path / "run", listener=events.append)
    own = [{key: value for key, value in event.items() if key not in ("epochs", "best", "left")} for event in events]
    assert own == run.metrics()
    assert [event["epochs"] for event in events] == [4] * 4
    assert events[0]["best"] == {"epoch": 0, "ndcg": -1.0}
    assert events[-1]["best"] == {"epoch": run.record.best_epoch, "ndcg": run.record.valid["ndcg"]}


def test_patience_ends_a_training_that_no_longer_improves(tmp_path: Path) -> None:
    still = ["train.learning_rate=1e-12", "train.epochs=50", "train.validate_every=1", "train.patience=2"]
    run = fit(tmp_path / "run", recipe("bpr", *still))
    assert (run.record.best_epoch, run.record.epochs) == (1, 3)


def test_without_a_validation_part_the_last_epoch_counts(tmp_path: Path) -> None:
    data = dataset(20, 12, train=random_pairs(1, 20, 12, 0.4))
    run = fit(tmp_path / "run", recipe("bpr", "train.validate_every=1", "train.patience=1"), data)
    assert (run.record.best_epoch, run.record.epochs, run.record.valid) == (4, 4, None)
    with pytest.raises(ConfigError, match="no validation part"):
        tune(data, recipe(), {"train.l2": (0.0, 0.1)}, tmp_path / "search")


@pytest.mark.parametrize("model", ["bpr", "hmlet-end", "wrmf"])
def test_the_stored_factors_are_those_of_the_best_validation(model: str, tmp_path: Path) -> None:
    """On noise the best epoch is seldom the last, so factors of another epoch would show."""
    pairs = random_pairs(3, 30, 40, 0.3)
    data = dataset(30, 40, train=pairs[::2], valid=pairs[1::2])
    run = fit(tmp_path / "run", recipe(model, "train.epochs=16", "train.validate_every=1"), data)
    values = {row["epoch"]: row["valid"]["ndcg"] for row in run.metrics()}
    best = max(values, key=lambda epoch: (values[epoch], -epoch))
    assert best < 16
    assert run.record.best_epoch == best
    found = evaluate(run.factors(), data, "valid", "train", 20).metrics
    assert run.record.valid == pytest.approx(found, abs=1e-12)
    assert found["ndcg"] == pytest.approx(values[best], abs=1e-12)


def test_the_test_part_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: RunDirectory) -> None:
    data = Dataset.load(checkerboard().save(tmp_path / "data"))  # its fingerprint, which covers all parts, is known
    allowed = Dataset.slice

    def guarded(self: Dataset, part: str) -> slice:
        assert part != "test", "training reads the test part"
        return allowed(self, part)

    monkeypatch.setattr(Dataset, "slice", guarded)
    assert same(fit(tmp_path / "run", data=data, keep_data=False), whole)  # a copy would hold all parts


def test_another_test_part_changes_nothing(tmp_path: Path, whole: RunDirectory) -> None:
    plain = checkerboard()
    train, valid = (
        list(zip(plain.user[plain.slice(part)].tolist(), plain.item[plain.slice(part)].tolist(), strict=True))
        for part in ("train", "valid")
    )
    other = dataset(plain.n_users, plain.n_items, train=train, valid=valid, test=[(0, 1), (1, 0)])
    assert same(fit(tmp_path / "run", data=other), whole)


# -- how it stops -------------------------------------------------------------------------------------------------


def test_a_listener_may_stop_it_and_it_can_go_on(tmp_path: Path, whole: RunDirectory) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["epoch"] == 2:
            raise StopTraining

    with pytest.raises(StopTraining):
        fit(tmp_path / "run", listener=stop)
    assert not RunDirectory.open(tmp_path / "run").finished
    with pytest.raises(RunError, match="not finished"):
        Run.open(tmp_path / "run")
    assert same(fit(tmp_path / "run", resume=True), whole)


@pytest.mark.parametrize("validate_every", [1, 100], ids=["validated", "at the end"])
def test_a_model_that_its_last_step_broke_does_not_finish(validate_every: int, tmp_path: Path) -> None:
    """One step, whose loss is sound and whose update is not: no later loss could tell."""
    large = ["train.learning_rate=1e37", "train.epochs=1", "train.batch_size=512"]
    data = checkerboard() if validate_every == 1 else dataset(5, 4, train=random_pairs(0, 5, 4, 0.7))
    broken = recipe("ngcf", *large, f"train.validate_every={validate_every}")
    with pytest.raises(TrainingError, match=r"not finite or beyond 1e\+12 after step 1: lower train\.learning_rate"):
        training.fit(data, broken, tmp_path / "run", device="cpu")
    assert not RunDirectory.open(tmp_path / "run").finished
    assert not list((tmp_path / "run").glob("factors*"))
    load_checkpoint(RunDirectory.open(tmp_path / "run"))  # what there is of it is sound


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_non_finite_loss_stops_before_the_parameters_move(
    wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: RunDirectory
) -> None:
    taken: list[steps.GradientSteps] = []
    sound = steps.GradientSteps.batch_loss

    def loss(self: steps.GradientSteps) -> torch.Tensor:
        if type(self) is not steps.GradientSteps:  # the memory plan's
            return sound(self)
        taken.append(self)
        return sound(self) * (wrong if len(taken) == STEPS_AN_EPOCH + 3 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(steps.GradientSteps, "batch_loss", loss)
        with pytest.raises(TrainingError, match="epoch 2, at batch 3"):
            fit(tmp_path / "run")
    assert len(taken) == STEPS_AN_EPOCH + 3
    saved = load_checkpoint(RunDirectory.open(tmp_path / "run"))
    assert saved is not None
    assert saved[1]["step"] == STEPS_AN_EPOCH + 2
    assert torch.equal(saved[0]["model.embedding"], taken[-1].model.embedding.detach())
    assert same(fit(tmp_path / "run", resume=True), whole)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (TrainingError("it is not finite", "lower train.learning_rate"), "lower train.learning_rate"),
        (
            torch.OutOfMemoryError("no room"),
            "lower model.embedding_size, or lower train.batch_size, or use a larger device",
        ),
    ],
    ids=["not finite", "memory"],
)
def test_a_failure_names_the_checkpoint_if_there_is_one(
    failure: Exception, hint: str, saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = steps.GradientSteps.take

    def take(self: steps.GradientSteps, step: int, epoch: int) -> None:
        if step == STEPS_AN_EPOCH:
            raise failure
        sound(self, step, epoch)

    monkeypatch.setattr(steps.GradientSteps, "take", take)
    with pytest.raises(TrainingError) as refused:
        fit(tmp_path / "run", recipe("bpr", f"train.checkpoint_seconds={0 if saved else 1000}"))
    assert refused.value.hint == hint + ("; the last checkpoint is kept" if saved else "")
    assert (tmp_path / "run" / CHECKPOINT).exists() is saved


def test_a_step_size_that_explodes_is_noticed_at_once(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"after step 1: lower train\.learning_rate"):
        fit(tmp_path / "run", recipe("bpr", "train.learning_rate=1e30"))
    assert not RunDirectory.open(tmp_path / "run").finished


def test_resume_refuses_other_data_and_another_recipe(tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        raise StopTraining

    with pytest.raises(StopTraining):
        fit(tmp_path / "run", listener=stop)
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()
    names = r"checkerboard \(\w{12}\) there and other \(\w{12}\) here"
    with pytest.raises(RunError, match=f"other data: {names}"):
        fit(tmp_path / "run", data=dataset(2, 3, "other", train=[(0, 0), (1, 1)]), resume=True)
    changes = ["train.learning_rate=0.01", "train.epochs=9"]
    words = r"train\.epochs is 4 there and 9 here, train\.learning_rate is 0\.02 there and 0\.01 here: omit the model"
    with pytest.raises(RunError, match=f"another recipe than the one given: {words}"):
        fit(tmp_path / "run", recipe("bpr", *changes), resume=True)
    with pytest.raises(RunError, match=r"model\.name is bpr there and lightgcn here, .* more"):
        fit(tmp_path / "run", recipe("lightgcn", *changes), resume=True)
    with pytest.raises(RunError, match="exists already"):
        fit(tmp_path / "run")
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before


@pytest.mark.parametrize(("name", "other"), [("hmlet", "0.0.9"), ("torch", "2.0.0+cpu")])
def test_resume_refuses_another_version_unless_the_run_is_finished(name: str, other: str, tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        raise StopTraining

    def with_version(record: RunRecord, version: str) -> RunRecord:
        return record.model_copy(update={"versions": record.versions.model_copy(update={name: version})})

    with pytest.raises(StopTraining):
        fit(tmp_path / "run", listener=stop)
    run = RunDirectory.open(tmp_path / "run")
    here = getattr(run.record.versions, name).partition("+")[0]
    run.record = with_version(run.record, other)
    run.write_record()
    with pytest.raises(RunError, match=rf"started with .*{name} {other.partition('+')[0]}.*this is .*{name} {here}"):
        fit(tmp_path / "run", resume=True)
    run.record = with_version(run.record, f"{here}+another.build")
    run.write_record()
    finished = fit(tmp_path / "run", resume=True)
    finished.record = with_version(finished.record, other)
    finished.write_record()
    assert fit(tmp_path / "run", resume=True).record == finished.record


def test_resume_without_a_recipe_takes_the_runs_own(
    tmp_path: Path, whole: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(event: dict[str, Any]) -> None:
        raise StopTraining

    prepared = checkerboard().save(tmp_path / "data")
    with pytest.raises(StopTraining):
        fit(tmp_path / "run", listener=stop)
    command = ["train", str(prepared), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err
    for more in (["--set", "train.epochs=4"], ["--preset", "hmlet"]):
        assert main([*command, "--resume", *more]) == 2
        assert "model.name is bpr there and hmlet-end here" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    assert same(RunDirectory.open(tmp_path / "run"), whole)


def test_a_finished_run_is_returned_as_it_is(tmp_path: Path) -> None:
    run = fit(tmp_path / "run")
    before = (run.path / "run.json").read_bytes()
    assert fit(run.path, resume=True).record == run.record
    assert (run.path / "run.json").read_bytes() == before


def test_no_kernel_is_compiled_ahead_for_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Recipe] = []

    class Recorded:
        def __init__(self, recipes: Sequence[Recipe], *_: object) -> None:
            compiled.extend(recipes)

        def wait(self) -> None:
            pass

    def stop(event: object) -> None:
        raise StopTraining

    monkeypatch.setattr(training, "Ahead", Recorded)
    with pytest.raises(StopTraining):
        fit(tmp_path / "run", listener=stop)
    assert compiled == [recipe()]
    fit(tmp_path / "run", resume=True)
    assert compiled == [recipe()] * 2
    fit(tmp_path / "run", resume=True)  # finished
    assert compiled == [recipe()] * 2


def test_a_device_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    names = {"cpu": "cpu", "auto": "cuda:0", "cuda": "cuda:0", "cuda:1": "cuda:1"}
    assert {name: str(training.choose_device(name)) for name in names} == names
    assert str(training.choose_device("cuda", Ranks(3, 4, local=1))) == "cuda:1"
    for name, hint in {
        "cuda:2": "the last one is cuda:1",
        "cuda:x": "use auto, cpu or cuda",
        "gpu": "use auto",
    }.items():
        with pytest.raises(ConfigError, match=f"there is no device '{name}'") as refused:
            training.choose_device(name)
        assert refused.value.hint.startswith(hint)
    with pytest.raises(ConfigError, match="no CUDA device for process 2 of this machine") as refused:
        training.choose_device("cuda", Ranks(2, 4, local=2))
    assert refused.value.hint == 'use --nproc-per-node 2 of torchrun, or device="cpu"'
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="there is no CUDA device"):
        training.choose_device("cuda")
    assert str(training.choose_device("auto")) == "cpu"


def test_data_that_no_triplet_can_be_drawn_from_leaves_no_run(tmp_path: Path) -> None:
    everything = dataset(1, 1, train=[(0, 0)])
    with pytest.raises(DataError, match="and a negative item"):
        fit(tmp_path / "run", data=everything)
    assert not (tmp_path / "run").exists()
    assert fit(tmp_path / "run", recipe("wrmf"), everything).finished


def test_too_little_memory_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda device: 10_000)
    with pytest.raises(TrainingError, match=r"needs about .* 10\.0 kB is free: lower model\.embedding_size"):
        fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_that_is_too_large_for_the_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda device: 10_000_000)
    for size in (10**6, 2**31 - 1):
        with pytest.raises(TrainingError, match=r"is free: lower train\.batch_size, or lower model\.embedding"):
            fit(tmp_path / "run", recipe("bpr", f"train.batch_size={size}"))
    assert not (tmp_path / "run").exists()


def test_too_little_memory_is_noticed_before_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(event: dict[str, Any]) -> None:
        raise StopTraining

    with pytest.raises(StopTraining):
        fit(tmp_path / "run", listener=stop)
    monkeypatch.setattr(planning, "free_memory", lambda device: 10_000)
    with pytest.raises(TrainingError, match=r"10\.0 kB is free"):
        fit(tmp_path / "run", resume=True)


def test_too_many_edges_are_refused_before_memory_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to change for less memory would not help."""
    monkeypatch.setattr(planning, "free_memory", lambda device: 10_000)
    monkeypatch.setattr(bipartite, "MAX_EDGES", 100)
    with pytest.raises(DataError, match="exceed the graph's limit of 100 edges"):
        fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- real processes -----------------------------------------------------------------------------------------------

# With the arguments "SIGINT SIGTERM" train … it sends itself these signals in the middle of its 11th step; "wait"
# makes it say so there, and go on when its standard input ends.
CHILD = """
import os, signal, sys
from hmlet.cli import main
from hmlet.training.steps import GradientSteps

act, taken, sound = sys.argv.pop(1), 0, GradientSteps.batch_loss

def loss(self):
    global taken
    taken += type(self) is GradientSteps  # and not the memory plan's
    if taken == 11 and act == "wait":
        print("waiting", flush=True)
        sys.stdin.read()
    elif taken == 11:
        for name in act.split():
            os.kill(os.getpid(), signal.Signals[name])
    return sound(self)

GradientSteps.batch_loss = loss
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkerboard().save(tmp_path_factory.mktemp("prepared") / "data")


def arguments(prepared: Path, out: Path) -> list[str]:
    chosen = as_options(recipe())
    return ["train", str(prepared), "--model", "bpr", "--device", "cpu", "--out", str(out), *chosen]


def start(act: str, prepared: Path, out: Path) -> Forked:
    return Forked(CHILD, act, *arguments(prepared, out))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_saves_and_says_how_to_go_on(name: str, prepared: Path, tmp_path: Path, whole: RunDirectory) -> None:
    out = tmp_path / "run"
    process = start(name, prepared, out)
    written = process.wait()
    assert process.status == 130, written
    assert "--resume" in written
    assert "Traceback" not in written
    saved = load_checkpoint(RunDirectory.open(out))
    assert saved is not None
    assert saved[1]["step"] == 11  # the step in which the signal came is done, and no other
    assert main([*arguments(prepared, out), "--resume"]) == 0
    assert same(RunDirectory.open(out), whole)


@pytest.mark.parametrize("names", ["SIGINT SIGINT", "SIGINT SIGTERM"])
def test_a_second_signal_ends_it_at_once(names: str, prepared: Path, tmp_path: Path, whole: RunDirectory) -> None:
    out = tmp_path / "run"
    process = start(names, prepared, out)
    process.wait()
    assert process.status == -signal.Signals[names.split()[1]]
    saved = load_checkpoint(RunDirectory.open(out))
    assert saved is not None
    assert saved[1]["step"] == 10  # the one before the step that never ended
    assert main([*arguments(prepared, out), "--resume"]) == 0
    assert same(RunDirectory.open(out), whole)


def test_of_two_processes_one_writes(prepared: Path, tmp_path: Path, whole: RunDirectory) -> None:
    out = tmp_path / "run"
    process = start("wait", prepared, out)
    while process.line() != "waiting\n":
        assert process.status is None
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    for resume in (True, False):
        with pytest.raises(RunError, match="another process"):
            fit(out, data=Dataset.load(prepared), resume=resume)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    written = process.wait()
    assert process.status == 0, written
    assert same(RunDirectory.open(out), whole)


def test_a_wide_model_is_said_to_be_for_a_gpu_on_a_cpu(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns, said in (("136", True), ("128", False)):
        assert main([*arguments(prepared, tmp_path / columns), "--set", f"model.embedding_size={columns}"]) == 0
        assert ("meant for a GPU" in capsys.readouterr().err) == said


def test_training_needs_the_core_dependencies_only(prepared: Path, tmp_path: Path) -> None:
    """As on a GPU box with little more than PyTorch: train, evaluate and analyze a prepared directory."""
    settings = [part for setting in [*SETTINGS, "model.gate_hidden=[8]"] for part in ("--set", setting)]
    commands = [
        ["train", str(prepared), "--model", "hmlet-end", "--device", "cpu", "--out", "run", *settings],
        ["evaluate", "run", "--json"],
        ["analyze", "run", "--json"],
    ]
    done = run_bare(
        tmp_path, "-c", f"from hmlet.cli import main; assert [main(each) for each in {commands}] == [0] * 3"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "gates.parquet").is_file()


def test_python_takes_what_a_command_calls_data(tmp_path: Path) -> None:
    board = checkerboard()
    board.save(tmp_path / "board")
    run = api.fit(tmp_path / "board", recipe(), tmp_path / "run", device="cpu")
    assert run.data.fingerprint == board.fingerprint
    assert repr(run) == f"<Run {tmp_path / 'run'}: bpr on {board.name}>"
    with pytest.raises(DataError, match="neither a prepared directory nor a named set"):
        api.fit("nowhere", recipe(), tmp_path / "other")
    with pytest.raises(DataError, match="cannot read interactions from a list: give a pandas or Polars frame"):
        api.fit([("ann", "So What")], recipe(), tmp_path / "other")  # type: ignore[arg-type]
