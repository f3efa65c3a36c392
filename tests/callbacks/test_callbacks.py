"""Callbacks: what a training tells them, and trackers compared with what their own packages read back."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from planted import checkerboard

import hmlet
from hmlet import Run
from hmlet.callbacks import Callback, EpochEvent, MLflow, Start, StopTraining, TensorBoard, WandB
from hmlet.errors import MissingExtra
from hmlet.runs.record import RunRecord


def train(out: Path, *callbacks: Any) -> Run:
    return hmlet.fit(
        checkerboard(), "bpr", out, device="cpu", callbacks=callbacks, epochs=4, embedding_size=8, validate_every=2
    )


class Diary(Callback):
    """Keeps what it is told."""

    def __init__(self, stop: int = 0) -> None:
        self.told: list[object] = []
        self.stop = stop

    def begin(self, start: Start) -> None:
        self.told.append((start.data.name, start.recipe.train.epochs, start.parameters()["model.embedding_size"]))

    def epoch(self, event: EpochEvent) -> None:
        self.told.append(event["epoch"])
        if event["epoch"] == self.stop:
            raise StopTraining

    def end(self, record: RunRecord | None) -> None:
        self.told.append(None if record is None else record.best_epoch)


def test_a_callback_sees_start_epochs_and_end(tmp_path: Path) -> None:
    diary, losses = Diary(), list[float]()
    run = train(tmp_path / "run", diary, lambda event: losses.append(event["loss"]))
    assert diary.told == [("checkerboard", 4, 8), 1, 2, 3, 4, run.record.best_epoch]
    assert losses == [row["loss"] for row in run.metrics]


def test_a_callback_is_told_the_recipe_that_is_trained(tmp_path: Path) -> None:
    """A comparison of losses may choose another one than the first."""
    diary, board = Diary(), checkerboard()
    small = {"device": "cpu", "embedding_size": 8, "validate_every": 1}
    still = hmlet.resolve("bpr", board, epochs=3, learning_rate=1e-9, loss="bpr", start="random", **small)
    moving = hmlet.resolve("bpr", board, epochs=4, learning_rate=0.1, loss="multinomial", start="random", **small)
    run = hmlet.fit(board, [still, moving], tmp_path / "run", device="cpu", callbacks=[diary])
    assert diary.told[0] == ("checkerboard", 4, 8)
    assert run.recipe == moving
    finished = Diary()
    hmlet.fit(checkerboard(), out=tmp_path / "run", device="cpu", resume=True, callbacks=[finished])
    assert finished.told == []  # nothing is trained


def test_a_stopped_training_ends_its_callbacks_without_a_record(tmp_path: Path) -> None:
    first, second = Diary(), Diary(stop=2)
    with pytest.raises(StopTraining):
        train(tmp_path / "run", first, second)
    assert first.told == second.told == [("checkerboard", 4, 8), 1, 2, None]


def test_callbacks_that_began_end_if_another_cannot_begin(tmp_path: Path) -> None:
    class Broken(Callback):
        def begin(self, start: Start) -> None:
            raise OSError("no room")

    diary = Diary()
    with pytest.raises(OSError, match="no room"):
        train(tmp_path / "run", diary, Broken())
    assert diary.told[1:] == [None]


@pytest.mark.parametrize(
    ("callback", "module"),
    [(MLflow(), "mlflow"), (WandB(), "wandb"), (TensorBoard("events"), "torch.utils.tensorboard")],
)
def test_a_missing_package_is_named_with_its_extra(
    callback: Callback, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'hmlet\[{module.rpartition('.')[2]}\]'"):
        train(tmp_path / "run", callback)
    assert not (tmp_path / "run").exists()


# -- the real packages --------------------------------------------------------------------------------------------


def test_tensorboard_has_the_curves(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = train(tmp_path / "run", TensorBoard(tmp_path / "events"))
    events = accumulator.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [each.value for each in events.Scalars("loss")] == pytest.approx([row["loss"] for row in run.metrics])
    assert [each.step for each in events.Scalars("valid/ndcg")] == [2, 4]


def test_mlflow_has_parameters_curves_and_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "mlruns").as_uri()
    run = train(tmp_path / "run", MLflow("boards", tracking_uri=store))
    client = mlflow.MlflowClient(store)
    (found,) = client.search_runs([client.get_experiment_by_name("boards").experiment_id])
    assert found.info.status == "FINISHED"
    assert {name: str(value) for name, value in run.recipe.flat().items()}.items() <= found.data.params.items()
    losses = client.get_metric_history(found.info.run_id, "loss")
    assert [(each.step, each.value) for each in losses] == [(row["epoch"], row["loss"]) for row in run.metrics]
    assert [each.step for each in client.get_metric_history(found.info.run_id, "valid/ndcg")] == [2, 4]
    assert {each.path for each in client.list_artifacts(found.info.run_id)} == {"run.json", "config.toml"}
    with mlflow.start_run() as own:
        train(tmp_path / "inside", MLflow())
        assert mlflow.active_run().info.run_id == own.info.run_id  # its owner ends it
    with pytest.raises(StopTraining):
        train(tmp_path / "stopped", MLflow("boards"), Diary(stop=1))
    statuses = [each.info.status for each in client.search_runs([found.info.experiment_id])]
    assert sorted(statuses) == ["FAILED", "FINISHED", "FINISHED"]


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a file that wandb writes offline: 7 bytes, then the log format of LevelDB, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no room for a header: the block ends in zeros
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several parts
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def test_wandb_logs_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = train(tmp_path / "run", WandB("boards", mode="offline", directory=tmp_path))
    wandb.teardown()  # waits for the process that writes the file
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    rows, config = [], {}
    for record in wandb_records(file):
        if record.HasField("history"):
            rows.append({(each.key or each.nested_key[0]): json.loads(each.value_json) for each in record.history.item})
        updates = [*record.config.update, *record.run.config.update]
        config |= {(each.key or each.nested_key[0]): json.loads(each.value_json) for each in updates}
    assert [row["loss"] for row in rows] == [row["loss"] for row in run.metrics]
    assert [row["_step"] for row in rows if "valid/ndcg" in row] == [2, 4]
    assert config["model.embedding_size"] == 8
