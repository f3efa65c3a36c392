"""A trainer by itself: what it tells of time, what it saves and takes up again, and what it leaves in the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from planted import checkerboard, dataset
from torch import Tensor

from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.errors import RunError, TrainingError
from hmlet.runs import recorded
from hmlet.runs.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from hmlet.runs.directory import RunDirectory
from hmlet.system.ranks import Ranks
from hmlet.system.stopping import StopRequest
from hmlet.training import trainer
from hmlet.training.trainer import Interrupted, LoopState, Trainer, _is_split, extendable

CPU = torch.device("cpu")


def recipe(model: str = "bpr", *overrides: str) -> Recipe:
    """Epochs of two steps on the checkerboard."""
    gates = ["model.gate_hidden=[4]"] if model.startswith("hmlet") else []
    sizes = ["model.embedding_size=4"] if model != "popularity" else []
    small = ["train.epochs=4", "train.batch_size=240", "train.validate_every=2", "train.checkpoint_seconds=1000"]
    return resolve(model, overrides=[*small, *sizes, *gates, *overrides])


def made(out: Path, how: Recipe | None = None, data: Dataset | None = None, **options: Any) -> Trainer:
    data, how = data or checkerboard(), how or recipe()
    return Trainer(data, how, CPU, RunDirectory.create(out, how, data, "cpu"), **options)


def trained(out: Path, how: Recipe | None = None, **options: Any) -> Trainer:
    found = made(out, how, **options)
    found.loop(lambda event: None, StopRequest())
    return found


class Clock:
    """Stands for time.monotonic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(trainer.time, "monotonic", lambda: self.now)


# -- time ---------------------------------------------------------------------------------------------------------


class Foretold:
    """Stands for a forecast: how many seconds are left to the end of the epochs, and of the expected ones."""

    saving = 2.0

    def __init__(self, epochs: int) -> None:
        self.epochs, self.whole, self.expected, self.stretches = epochs, 50.0, 20.0, [0]

    def stretch(self, taken: int) -> None:
        self.stretches.append(taken)

    def left(self, last: int | None = None) -> float:
        return self.whole if last in (None, self.epochs) else self.expected


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trainer, Clock, Foretold, list[str]]:
    """A training of 40 epochs that spent 3 s on its choice of a recipe and 10 s before it was resumed."""
    clock, told = Clock(monkeypatch), list[str]()
    monkeypatch.setattr(trainer, "rehearse", lambda *both: None)
    how = recipe("bpr", "train.epochs=40", "train.patience=3", "train.validate_every=5")
    found = made(tmp_path / "run", how, tell=told.append, before=3.0)
    found.state.seconds = 10.0
    found._foretell()
    foretold = Foretold(40)
    found.forecast = foretold  # type: ignore[assignment]
    return found, clock, foretold, told


def test_the_time_is_told_after_five_seconds_and_a_few_steps(
    timed: tuple[Trainer, Clock, Foretold, list[str]],
) -> None:
    found, clock, foretold, told = timed
    found.state.step = 4
    clock.now += 100.0
    found._tell_time()
    assert (foretold.stretches, told) == ([0, 4], [])  # warm now, and not timed yet
    found.state.step = 5
    clock.now -= 95.5
    found._tell_time()
    assert told == []
    clock.now += 0.5
    found._tell_time()
    assert foretold.stretches == [0, 4, 5]
    assert told == ["this run takes about 68 seconds, 18 seconds so far; early stopping may end it sooner"]


def test_the_time_is_told_again_when_it_has_changed_by_15_percent(
    timed: tuple[Trainer, Clock, Foretold, list[str]],
) -> None:
    found, clock, foretold, told = timed
    found.state.step = 9

    def after(seconds: float, whole: float) -> int:
        """How many remarks there are once `seconds` have passed and the run is expected to take `whole`."""
        clock.now += seconds
        foretold.whole = whole - (3.0 + 10.0 + clock.now - 1000.0)
        found._tell_time()
        return len(told)

    assert after(5.0, 100.0) == 1
    assert after(14.9, 200.0) == 1  # too early to look again
    assert after(0.1, 114.0) == 1
    assert after(15.0, 88.0) == 1
    assert after(15.0, 116.0) == 2
    assert after(15.0, 102.0) == 2  # of the 116 that were told last
    assert after(15.0, 100.0) == 3


def test_where_validation_falls_an_earlier_end_is_told(timed: tuple[Trainer, Clock, Foretold, list[str]]) -> None:
    found, clock, _, told = timed
    found.state.step, found.state.best_epoch, found.state.stale = 9, 5, 2
    clock.now += 5.0
    found._tell_time()
    assert told == ["this run takes about 38 seconds, 18 seconds so far; 68 seconds if validation improves again"]


@pytest.mark.parametrize(("patience", "valid"), [(0, True), (3, False)])
def test_nothing_is_said_of_early_stopping_where_there_is_none(
    patience: int, valid: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Clock(monkeypatch), list[str]()
    pairs = [(user, item) for user in range(4) for item in range(4) if user != item]
    data = dataset(4, 4, train=pairs, valid=[(0, 0)] if valid else [])
    found = made(tmp_path / "run", recipe("bpr", f"train.patience={patience}"), data, tell=told.append)
    found._foretell()
    found.forecast = Foretold(4)  # type: ignore[assignment]
    found.state.step = 9
    clock.now += 5.0
    found._tell_time()
    assert told == ["this run takes about 55 seconds, 5 seconds so far"]


@pytest.mark.parametrize(("left", "rehearsed"), [(60.0, 0), (60.1, 1)])
def test_a_long_training_is_rehearsed(
    left: float, rehearsed: int, timed: tuple[Trainer, Clock, Foretold, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, clock, foretold, _ = timed
    calls: list[object] = []
    monkeypatch.setattr(trainer, "rehearse", lambda *both: calls.append(both))
    found.state.step, foretold.whole = 9, left
    clock.now += 5.0
    found._tell_time()
    assert calls == [(found, foretold)] * rehearsed


def test_an_epoch_is_begun_only_if_it_ends_before_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs took 4 s so far, and saving takes 2."""
    clock = Clock(monkeypatch)
    found = made(tmp_path / "run", deadline=1010.0)
    found.forecast = Foretold(4)  # type: ignore[assignment]
    clock.now = 2000.0
    assert not found._out_of_time()  # one epoch has to be
    found.state.history, found.state.seconds = [{}, {}, {}], 12.0
    for now, late in ((1004.0, False), (1004.1, True)):
        clock.now = now
        assert found._out_of_time() is late
    found.deadline = None
    assert not found._out_of_time()


def test_seconds_add_up_over_epochs_and_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes a second; what a checkpoint says is no less than the last epoch, and no more than
    the clock."""
    clock = Clock(monkeypatch)
    found = made(tmp_path / "run")
    found._foretell()
    found.model.train()
    seconds = []
    for epoch, passed in ((1, 3.0), (2, 5.0)):
        for step in range(2):
            found.steps.take(2 * (epoch - 1) + step, epoch - 1)
        found.state.step += 2
        clock.now += passed
        seconds.append(found._end_epoch(epoch)["seconds"])
    assert seconds == [3.0, 8.0]
    clock.now += 4.0
    found.save()
    saved = load_checkpoint(found.run)
    assert saved is not None
    assert saved[1]["seconds"] == 12.0
    assert found._saved_at == clock.now
    clock.now += 100.0
    again = Trainer(found.data, found.recipe, CPU, found.run)
    again.restore()
    assert again.state == LoopState(**{**vars(found.state), "seconds": 12.0})


def test_a_checkpoint_is_due_when_its_time_has_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found, saved = made(tmp_path / "run", recipe("bpr", "train.checkpoint_seconds=10")), list[int]()
    sound = found.steps.take

    def take(step: int, epoch: int) -> None:
        sound(step, epoch)
        clock.now += 5.0

    monkeypatch.setattr(found.steps, "take", take)
    save = found.save

    def note() -> None:
        saved.append(found.state.step)
        save()

    monkeypatch.setattr(found, "save", note)
    found.loop(lambda event: None, StopRequest())
    assert saved == [2, 4, 6]  # after 10, 20 and 30 s; after the last step nothing is left to save


# -- the loop -----------------------------------------------------------------------------------------------------


def test_a_request_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    found, request = made(tmp_path / "run"), SimpleNamespace(made=False)

    def stop(event: Any) -> None:
        request.made = event["epoch"] == 2

    with pytest.raises(Interrupted, match=r"stopped in epoch 3; everything is saved: go on in .* with"):
        found.loop(stop, request)  # type: ignore[arg-type]
    saved = load_checkpoint(found.run)
    assert saved is not None
    assert (saved[1]["step"], len(saved[1]["history"])) == (4, 2)  # type: ignore[arg-type]


def test_an_event_is_the_row_and_the_progress(tmp_path: Path) -> None:
    events: list[Any] = []
    found = made(tmp_path / "run", recipe("hmlet-end"))
    found.loop(events.append, StopRequest())
    assert [event["epoch"] for event in events] == [1, 2, 3, 4]
    assert [event["best"]["epoch"] for event in events][:2] == [0, 2]
    assert [event["best"]["ndcg"] for event in events][:2] == [-1.0, events[1]["valid"]["ndcg"]]
    assert [event["epochs"] for event in events] == [4] * 4
    assert events[-1]["left"] == pytest.approx(found.forecast.saving)
    assert found.state.step == 8
    for event in events[1::2]:
        assert all(0.0 <= share <= 1.0 for share in event["gate_share"].values())
    assert "gate_share" not in events[0]


def test_the_best_model_is_kept_unless_it_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(tmp_path / "run", recipe("bpr", "train.epochs=3", "train.validate_every=1"))
    values = iter([0.2, 0.2, 0.1, 0.3])
    layers = found.finished(1)
    monkeypatch.setattr(found, "evaluate", lambda epoch: (SimpleNamespace(metrics={"ndcg": next(values)}), layers))
    assert found._validate(1) == {"valid": {"ndcg": 0.2}}
    kept = {name: tensor.clone() for name, tensor in found.best.items()}
    assert torch.equal(kept["embedding"], found.model.embedding.detach())
    with torch.no_grad():
        found.model.embedding.add_(1.0)
    found._validate(2)  # as good as the best one is not better
    found._validate(2)
    assert (found.state.best_epoch, found.state.best_value, found.state.stale) == (1, 0.2, 2)
    assert torch.equal(found.best["embedding"], kept["embedding"])
    found._validate(3)
    assert (found.state.best_epoch, found.state.best_value, found.state.stale) == (3, 0.3, 0)
    assert found.best == {}


@pytest.mark.parametrize(("model", "fix"), [("bpr", "lower train.learning_rate"), ("wrmf", "raise model.regular")])
def test_a_broken_model_is_not_saved(model: str, fix: str, tmp_path: Path) -> None:
    found = made(tmp_path / "run", recipe(model))
    with torch.no_grad():
        found.model.embedding[0, 0] = 1e13
    with pytest.raises(TrainingError, match=rf"beyond 1e\+12 after step 0: {fix}"):
        found.save()
    assert not found.run.has(CHECKPOINT)


# -- checkpoints --------------------------------------------------------------------------------------------------


def test_a_checkpoint_holds_all_that_the_loop_needs(tmp_path: Path) -> None:
    """Model, best model, optimizer, generators and state, in a trainer that had made another start."""
    found = trained(tmp_path / "run", recipe("hmlet-end", 'model.gate_ranking="noisy"'))
    found.best = {name: tensor + 1 for name, tensor in found.model.state_dict().items()}
    found.save()
    again = Trainer(found.data, found.recipe, CPU, found.run)
    again.restore()
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
        assert torch.equal(again.best[name], found.best[name])
    assert again.best.keys() == found.best.keys()
    assert torch.equal(again.ranking_noise.get_state(), found.ranking_noise.get_state())
    fresh = Trainer(found.data, found.recipe, CPU, found.run)
    assert not torch.equal(fresh.ranking_noise.get_state(), found.ranking_noise.get_state())
    mine, theirs = again.steps.tensors(), found.steps.tensors()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())
    assert (again.state.step, again.state.history) == (8, found.state.history)


@dataclass(frozen=True)
class Follower(Ranks):
    """A rank that reads no file. It has every column; rank 0 sends it the tensors and the state of a checkpoint."""

    sent: tuple[dict[str, Tensor], dict[str, Any]] = field(default_factory=lambda: ({}, {}))

    def first(self, work: Callable[[], Any]) -> Any:
        return self.sent[1]

    def hand_out(self, tensors: dict[str, Tensor], is_split: Callable[[str, Tensor], bool]) -> dict[str, Tensor]:
        assert (tensors, is_split) == ({}, _is_split)
        return self.sent[0]


def test_every_rank_resumes_from_what_the_first_one_reads(tmp_path: Path) -> None:
    found = trained(tmp_path / "run")
    found.save()
    saved = load_checkpoint(found.run)
    assert saved is not None
    again = Trainer(found.data, found.recipe, CPU, found.run, ranks=Follower(sent=saved))
    again.restore()
    assert torch.equal(again.model.embedding, found.model.embedding)
    assert again.state.step == 8


def test_metrics_go_back_to_what_the_checkpoint_says(tmp_path: Path) -> None:
    found = trained(tmp_path / "run")
    found.state.history, found.state.step = found.state.history[:2], 4
    found.state.best_epoch = 2
    found.save()
    Trainer(found.data, found.recipe, CPU, found.run).restore()
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step": 3}, r"state\.step: it is 3, not 4 to 6"),
        ({"step": 7}, r"state\.step: it is 7, not 4 to 6"),
        ({"best_epoch": 3}, r"state\.best_epoch: it is 3, not 0 to 2"),
        ({"best_epoch": -1}, r"state\.best_epoch: it is -1, not 0 to 2"),
        ({"stale": 3}, r"state\.stale: it is 3, not 0 to 2"),
        ({"stale": -1}, r"state\.stale: it is -1, not 0 to 2"),
        ({"step": 4}, None),
        ({"step": 6, "best_epoch": 0, "stale": 2}, None),
    ],
)
def test_a_state_that_no_loop_can_be_in_is_refused(changes: dict[str, int], words: str | None, tmp_path: Path) -> None:
    """After two of four epochs of two steps."""
    found = trained(tmp_path / "run")
    found.state.history, found.state.step, found.state.best_epoch = found.state.history[:2], 4, 2
    found.save()
    tensors, state = load_checkpoint(found.run) or ({}, {})
    save_checkpoint(found.run, tensors, {**state, **changes})
    again = Trainer(found.data, found.recipe, CPU, found.run)
    if words is None:
        again.restore()
        assert vars(again.state).items() >= changes.items()
        return
    with pytest.raises(RunError, match=words):
        again.restore()


def test_a_history_has_its_epochs_in_order(tmp_path: Path) -> None:
    found = trained(tmp_path / "run")
    found.state.history[1]["epoch"] = 3
    found.save()
    with pytest.raises(RunError, match=r"state\.history\.1\.epoch: it is 3, not 2"):
        Trainer(found.data, found.recipe, CPU, found.run).restore()


@pytest.mark.parametrize("changed", ["best.embedding", "ranking_noise", "model.embedding", "steps.adam.0.exp_avg"])
def test_a_checkpoint_of_another_model_is_refused(changed: str, tmp_path: Path) -> None:
    found = trained(tmp_path / "run")
    found.best = {"embedding": found.model.embedding.detach().clone()}
    found.save()
    tensors, state = load_checkpoint(found.run) or ({}, {})
    save_checkpoint(found.run, {**tensors, changed: torch.zeros(2, 3)}, state)
    with pytest.raises(RunError, match="does not fit the recipe"):
        Trainer(found.data, found.recipe, CPU, found.run).restore()


def test_a_spectral_start_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    monkeypatch.setattr(Trainer, "start", lambda self: starts.append(1))
    made(tmp_path / "random").restore()
    assert not starts
    found = made(tmp_path / "spectral", recipe("bpr", "model.start=spectral"))
    found.restore()
    assert starts == [1]
    found.save()
    found.restore()
    assert starts == [1]


# -- the finished run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "epochs", "kept"),
    [
        ([], 4, True),
        ([], 3, False),
        (["train.schedule=cosine"], 4, False),
        (["train.loss=softmax"], 4, True),
        (["train.loss=softmax", "loss.temperature_end=0.2"], 4, False),
    ],
)
def test_only_a_whole_training_without_a_schedule_can_be_extended(
    overrides: list[str], epochs: int, kept: bool
) -> None:
    assert extendable(recipe("lightgcn", *overrides), epochs) is kept


def test_a_solution_cannot_be_extended() -> None:
    assert not extendable(recipe("wrmf", "train.schedule=constant"), 4)


@pytest.mark.parametrize(("model", "layers"), [("lightgcn", True), ("lightgcn", False), ("bpr", True)])
def test_a_finished_run_has_its_factors_and_layers(model: str, layers: bool, tmp_path: Path) -> None:
    """Layers are stored if the recipe asks for them and there is more than e⁰."""
    found = trained(tmp_path / "run", recipe(model, f"train.save_layers={str(layers).lower()}"))
    run = found.finish()
    users, items = run.factors()
    best = found.finished(found.state.best_epoch)
    assert torch.equal(torch.cat([users, items]), best.factors())
    assert (len(users), len(items)) == (48, 24)
    assert run.has("layers.safetensors") is (layers and model == "lightgcn")
    if run.has("layers.safetensors"):
        stored = run.read_tensors("layers.safetensors")
        assert sorted(stored) == [str(at) for at in range(len(best.embeddings_ND))]
        assert all(torch.equal(stored[str(at)], each) for at, each in enumerate(best.embeddings_ND))
    assert not found.model.training
    assert run.has(CHECKPOINT)
    assert (run.record.epochs, run.record.note) == (4, "")
    assert run.record.timings.training_seconds == round(found.state.seconds, 3)


def test_a_run_that_time_ended_says_so(tmp_path: Path) -> None:
    """The deadline has passed when the first epoch ends, and a note that is given counts more."""
    found = trained(tmp_path / "run", deadline=0.0)
    run = found.finish()
    assert (run.record.epochs, run.record.note) == (1, "the budget ended it after 1 of 4 epochs")
    assert not run.has(CHECKPOINT)
    other = trained(tmp_path / "other", deadline=0.0)
    assert other.finish("so").record.note == "so"


def test_a_run_before_its_first_epoch_counts_it(tmp_path: Path) -> None:
    run = made(tmp_path / "run").finish()
    assert (run.record.best_epoch, run.record.epochs, run.record.valid) == (1, 1, None)


def test_what_ranks_split() -> None:
    """e⁰, a copy of it, and the optimizer's two tables for it; no weight, no counter, no other parameter."""
    table, number = torch.zeros(3, 2), torch.zeros(())
    for name in ("model.embedding", "best.embedding", "embedding", "steps.adam.0.exp_avg", "steps.adam.0.exp_avg_sq"):
        assert _is_split(name, table), name
    assert not _is_split("steps.adam.0.step", number)
    for name in ("model.gates.3.dense.0", "steps.adam.1.exp_avg", "steps.generator", "ranking_noise"):
        assert not _is_split(name, table), name


@pytest.mark.parametrize("model", ["hmlet-end", "lightgcn", "popularity"])
def test_large_models_are_written_file_by_file_and_are_the_same(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = recipe(model)
    together = trained(tmp_path / "together", how).finish()
    monkeypatch.setattr(trainer, "FEW", 0)
    apart = trained(tmp_path / "apart", how).finish()
    tensors = {name for name in together.record.files if name.endswith(".safetensors")}
    assert {name: together.record.files[name] for name in tensors} == {
        name: apart.record.files[name] for name in tensors
    }
    assert tensors >= {"model.safetensors", *([] if model == "popularity" else ["layers.safetensors"])}


def test_a_file_that_cannot_be_written_leaves_none_of_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = trained(tmp_path / "run", recipe("lightgcn"))
    save = recorded.files.save

    def full(path: Path, *written: Any) -> None:
        if "layers" in path.name:
            raise OSError(28, "No space left on device")
        save(path, *written)

    monkeypatch.setattr(recorded.files, "save", full)
    with pytest.raises(RunError, match="No space left"):
        done.finish()
    assert [path.name for path in done.run.path.iterdir() if "safetensors" in path.name] == [CHECKPOINT]
    monkeypatch.undo()
    assert done.finish().finished
