"""How long a training takes, by a clock that the tests move; and which epochs fit into a budget."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from planted import checkerboard

from hmlet import api
from hmlet.cli import main
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.errors import ConfigError, RunError, TooLittleTime
from hmlet.graph.work import INVERSE
from hmlet.models import MODELS
from hmlet.models.hmlet import temperature
from hmlet.runs.checkpoint import CHECKPOINT, load_checkpoint
from hmlet.runs.directory import RunDirectory
from hmlet.system.ranks import ALONE
from hmlet.training import forecast, loop, planning, steps, trainer
from hmlet.training.floor import NOMINAL, solving_parts
from hmlet.training.forecast import (
    Forecast,
    Pace,
    measure_pace,
    random_data,
    rehearse,
    saving_seconds,
    seconds_of,
    shortened,
    within_budget,
)
from hmlet.training.learner import Learner
from hmlet.training.steps import learning_rate
from hmlet.training.trainer import EpochEvent, LoopState, StopTraining
from hmlet.tuning import choice

PACE = Pace(start=10.0, resting=1.0, step=3.0, validation=20.0, saving=5.0)


def gated(*overrides: str) -> Recipe:
    own = ["train.epochs=40", "train.validate_every=8", "model.gate_warmup=10", "train.schedule=cosine"]
    return resolve("hmlet-end", overrides=[*own, *overrides])


# -- the sum ------------------------------------------------------------------------------------------------------


def test_a_whole_training_is_the_sum_of_its_parts() -> None:
    """10 epochs of 4 resting steps, 30 of 4 others, validations after 8, 16, … 40."""
    assert PACE.total(gated(), 4) == 10 + 40 * 1 + 120 * 3 + 5 * 20 + 5
    assert PACE.total(gated("train.epochs=41"), 4) == 10 + 40 * 1 + 124 * 3 + 6 * 20 + 5  # and after the last


@pytest.mark.parametrize(
    ("taken", "left"),
    [(0, 505), (1, 504), (32, 8 + 360 + 80 + 5), (40, 360 + 80 + 5), (41, 357 + 80 + 5), (159, 3 + 20 + 5), (160, 5)],
)
def test_what_is_left_after_some_steps(taken: int, left: float) -> None:
    assert PACE.left(gated(), 4, taken) == left


# -- under way ----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drive(told: Forecast, clock: Clock, steps: range, per_step: float) -> None:
    """Take steps, and end epochs of four."""
    for step in steps:
        clock.now += per_step
        if (step + 1) % 4 == 0:
            told.stretch(step + 1)


def test_a_forecast_learns_from_what_it_sees() -> None:
    clock = Clock()
    told = Forecast(gated(), 4, 0, saving=5.0, clock=clock)
    drive(told, clock, range(4), 50.0)  # to warm up
    assert not told.warm
    drive(told, clock, range(4, 8), 1.0)
    assert (told.warm, told.rests) == (True, True)
    assert told.left() == 152 * 1.0 + 5.0  # all steps as those seen, and no validation known yet
    told.slowdown = 3.0
    assert told.left() == 32 * 1.0 + 120 * 3.0 + 5.0
    clock.now += 20.0
    told.validated(20.0)
    assert told.left() == 32 * 1.0 + 120 * 3.0 + 5 * 20.0 + 5.0
    drive(told, clock, range(8, 40), 1.0)
    drive(told, clock, range(40, 44), 2.5)  # what was rehearsed gives way to what is seen
    assert not told.rests
    assert told.left() == pytest.approx(116 * 2.5 + 4 * 20.0 + 5.0)


def test_where_validation_falls_the_end_of_patience_is_foretold() -> None:
    """4 steps an epoch, 8 of 40 epochs done, a validation each 8: to epoch 24 there are 64 steps and 2 validations."""
    clock = Clock()
    told = Forecast(gated(), 4, 0, saving=5.0, clock=clock)
    drive(told, clock, range(32), 1.0)
    told.slowdown = 3.0
    told.validated(20.0)
    assert told.left(24) == 8 * 1.0 + 56 * 3.0 + 2 * 20.0 + 5.0
    assert told.left(40) == told.left()


def test_the_end_is_expected_early_once_validation_has_fallen_twice() -> None:
    train = resolve("lightgcn", overrides=["train.epochs=100", "train.patience=4", "train.validate_every=10"]).train
    ends = [LoopState(best_epoch=20, stale=stale).expected_end(train) for stale in range(4)]
    assert ends == [100, 100, 60, 60]
    assert LoopState(best_epoch=80, stale=2).expected_end(train) == 100  # patience would end later than the epochs do
    patient = train.model_copy(update={"patience": 0})
    assert LoopState(best_epoch=20, stale=9).expected_end(patient) == 100


def test_a_resumed_training_is_foretold_from_where_it_goes_on() -> None:
    clock = Clock()
    told = Forecast(gated(), 4, 100, saving=0.0, clock=clock)
    drive(told, clock, range(100, 108), 2.0)
    assert told.left() == 52 * 2.0


def test_before_anything_is_seen_only_saving_is_left() -> None:
    assert Forecast(gated(), 4, 0, saving=5.0, clock=Clock()).left() == 5.0


def test_a_validation_is_no_step() -> None:
    clock = Clock()
    told = Forecast(gated(), 4, 0, saving=5.0, clock=clock)
    drive(told, clock, range(8), 1.0)
    clock.now += 20.0
    told.validated(20.0)
    drive(told, clock, range(8, 12), 1.0)
    assert told.left() == 148 * 1.0 + 5 * 20.0 + 5.0


def test_the_recent_pace_counts() -> None:
    clock = Clock()
    told = Forecast(gated("train.epochs=1000", "model.gate_warmup=0"), 4, 0, saving=0.0, clock=clock)
    drive(told, clock, range(400), 1.0)
    drive(told, clock, range(400, 600), 10.0)
    assert told.left() == pytest.approx(3400 * 10.0)


# -- a budget -----------------------------------------------------------------------------------------------------


def test_a_shorter_recipe_goes_through_the_same_schedule() -> None:
    recipe = gated()
    assert shortened(recipe, 40) is recipe
    half = shortened(recipe, 20)
    assert (half.train.epochs, half.train.validate_every, half.model.warmup) == (20, 4, 5)
    assert half.flat()["model.temperature_speed"] == 2.0
    assert Recipe.from_toml(half.to_toml()) == half
    one = shortened(recipe, 1)
    assert (one.train.epochs, one.train.validate_every, one.model.warmup) == (1, 1, 0)
    learners = [Learner(checkerboard(), each, torch.device("cpu")) for each in (recipe, half)]
    for epoch in (0, 5, 19):
        long, short = (
            (each.model.temperature(at), learning_rate(each.recipe.train, at))
            for each, at in zip(learners, (2 * epoch, epoch), strict=True)
        )
        assert long == short
    assert learners[0].model.temperature(7) == temperature("text", 7)


def test_as_many_epochs_as_fit() -> None:
    assert within_budget(gated(), PACE, 4, 10_000.0) == gated()
    shorter = within_budget(gated(), PACE, 4, 400.0)
    assert PACE.total(shorter, 4) <= 360.0 < PACE.total(shortened(gated(), shorter.train.epochs + 2), 4)
    with pytest.raises(ConfigError, match=r"one epoch takes 52 seconds .*, and 30 seconds are left: raise `minutes`"):
        within_budget(gated(), PACE, 4, 30.0)


@pytest.mark.parametrize(
    ("recipe", "hint"),
    [
        (
            resolve("lightgcn", overrides=["model.embedding_size=24"]),
            ", or make the model smaller with embedding_size=12",
        ),
        (resolve("lightgcn", overrides=["model.embedding_size=1"]), ""),
        (resolve("ease"), ""),
    ],
)
def test_a_smaller_model_is_advised_where_there_is_one(recipe: Recipe, hint: str) -> None:
    with pytest.raises(TooLittleTime) as refused:
        within_budget(recipe, PACE, 4, 1.0)
    assert refused.value.hint == f"raise `minutes`{hint}"


TINY = ["train.epochs=30", "train.batch_size=64", "train.validate_every=3", "model.embedding_size=8"]


def tiny(*more: str, model: str = "bpr") -> Recipe:
    return resolve(model, overrides=[*TINY, "train.checkpoint_seconds=0", *more])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a step takes a second, as far as budgets go."""
    monkeypatch.setattr(choice, "measure_pace", lambda *arguments: (Pace(0.0, 1.0, 1.0, 0.0, 0.0), 8))


@pytest.mark.usefixtures("slow")
def test_a_budget_decides_the_epochs_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stop(event: EpochEvent) -> None:
        if event["epoch"] == 5:
            raise StopTraining

    with caplog.at_level(logging.INFO, "hmlet"), pytest.raises(StopTraining):
        api.fit(checkerboard(), tiny(), tmp_path / "run", device="cpu", minutes=1.52, callbacks=[stop])
    assert "10 of 30 epochs fit into the budget" in caplog.text
    with pytest.raises(RunError, match="exists already"):
        api.fit(checkerboard(), tiny(), tmp_path / "run", device="cpu", minutes=1.52)
    run = api.fit(checkerboard(), tiny(), tmp_path / "run", device="cpu", minutes=99, resume=True)
    assert run.recipe == shortened(tiny(), 10)
    assert run.record.epochs == 10
    plain = api.fit(checkerboard(), run.recipe, tmp_path / "plain", device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(run.factors, plain.factors, strict=True))


@pytest.mark.usefixtures("slow")
def test_a_budget_that_is_too_small_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = checkerboard().save(tmp_path / "board")
    command = ["train", str(place), "--model", "bpr", "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*command, *(part for each in TINY for part in ("--set", each)), "--minutes", "0.1"]) == 2
    assert "error: the budget is too small: one epoch takes 9 seconds" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_budget_is_a_number(resume: bool, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`minutes` is not a number: use minutes=10"):
        api.fit(checkerboard(), tiny(), tmp_path / "run", device="cpu", minutes=float("nan"), resume=resume)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("slow")
def test_a_machine_that_becomes_slower_ends_in_time_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, late = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: sound() + late[0])

    def dawdle(event: EpochEvent) -> None:
        late[0] += 20.0 if event["epoch"] >= 3 else 0.0

    run = api.fit(checkerboard(), tiny(), tmp_path / "run", device="cpu", minutes=1.6, callbacks=[dawdle])
    assert 3 < run.record.epochs < 10
    assert run.record.note == f"the budget ended it after {run.record.epochs} of 10 epochs"


class Timed:
    """Stands for a learner with three steps an epoch, by a clock that each of its acts moves."""

    validates = True
    device, ranks = torch.device("cpu"), ALONE

    def __init__(self, recipe: Recipe, clock: Clock, step: float) -> None:
        self.recipe, self.clock, self.step, self.taken = recipe, clock, step, list[tuple[int, int]]()
        self.model = SimpleNamespace(train=self.train, embedding=torch.zeros(250, 100))
        self.training = False
        self.steps = SimpleNamespace(per_epoch=3, take=self.take)
        clock.now += 1.0

    def train(self) -> None:
        self.training = True

    def take(self, step: int, epoch: int) -> None:
        assert self.training
        self.taken.append((step, epoch))
        self.clock.now += self.step * (2 if epoch else 1)

    def start(self) -> None:
        self.clock.now += 2.0

    def evaluate(self, epoch: int) -> None:
        self.clock.now += 7.0

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize(("step", "resting", "others"), [(0.125, 8, 4), (0.0625, 16, 8), (1 / 128, 20, 20)])
def test_the_pace_of_each_part_by_a_clock(
    step: float, resting: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are timed for a second, or 20 of them, after one that is not; from epoch 5 on they take twice as long."""
    clock, made = Clock(), list[Timed]()

    def learner(data: Dataset, recipe: Recipe, device: torch.device, ranks: object) -> Timed:
        made.append(Timed(recipe, clock, step))
        return made[0]

    monkeypatch.setattr(forecast, "Learner", learner)
    how = gated("model.gate_warmup=5", "model.layers=2")
    pace, per_epoch = measure_pace(checkerboard(), how, torch.device("cpu"), clock=clock)
    assert per_epoch == 3
    assert pace == Pace(start=3.0, resting=step, step=2 * step, validation=7.0, saving=100_000 * (3 + 2) / 200e6)
    first = [(at, 0) for at in range(resting + 1)]
    assert made[0].taken == [*first, *((15 + at, 5) for at in range(others + 1))]


def test_what_is_unknown_of_a_long_training_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, learner = Clock(), Learner(checkerboard(), gated("model.embedding_size=4"), torch.device("cpu"))
    told = Forecast(learner.recipe, 4, 0, saving=0.0, clock=clock)
    drive(told, clock, range(8), 1.0)
    monkeypatch.setattr(forecast.time, "monotonic", clock)
    noise = learner.ranking_noise.get_state()

    def evaluate(epoch: int) -> None:
        torch.rand(5, generator=learner.ranking_noise)
        clock.now += 7.0

    monkeypatch.setattr(learner, "evaluate", evaluate)
    monkeypatch.setattr(learner.steps, "slowdown", lambda: 2.5)
    rehearse(learner, told)
    assert (told.validation, told.slowdown) == (7.0, 2.5)
    assert torch.equal(learner.ranking_noise.get_state(), noise)
    drive(told, clock, range(8, 12), 1.0)
    assert told.left() == 28 * 1.0 + 120 * 2.5 + 5 * 7.0  # neither was a step
    monkeypatch.setattr(learner.steps, "slowdown", lambda: 9.0)
    told.validation = 1.0
    rehearse(learner, told)
    assert (told.validation, told.slowdown) == (1.0, 2.5)  # known already


def test_resting_steps_grow_on_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the data stands for all of it: resting steps grow four times, others three times."""

    def nominal(recipe: Recipe, users: int, items: int, edges: int, device: str, resting: bool) -> float:
        return 2.0 if users == 1000 else 8.0 if resting else 6.0

    pace = Pace(start=0.0, resting=2.0, step=3.0, validation=0.0, saving=0.0)
    monkeypatch.setattr(forecast, "measure_pace", lambda *rest: (pace, 10))
    monkeypatch.setattr(forecast, "nominal_seconds", nominal)
    how = gated("train.epochs=5", "model.gate_warmup=2")
    assert seconds_of(how, 4000, 6000, 390_000, torch.device("cpu")) == 20 * 2.0 * 4 + 30 * 3.0 * 3


def test_a_few_random_items_are_much_liked() -> None:
    """Half of all draws fall on the first quarter of the items, as x² of a uniform x does; a repeated pair counts once.
    Every user has an item to validate on, unless it is one of training."""
    data = random_data(1000, 1000, 20_000, seed=1)
    assert (data.n_users, data.n_items) == (1000, 1000)
    popular = (data.item[data.slice("train")] < 250).mean()
    assert 0.43 < popular < 0.53
    assert 900 < data.count("valid") <= 1000
    valid = data.item[data.slice("valid")]
    assert 0.2 < (valid < 250).mean() < 0.3
    assert np.unique(data.user[data.slice("valid")]).size == data.count("valid")
    assert random_data(1000, 1000, 20_000, seed=1).fingerprint == data.fingerprint


def test_the_pace_is_measured_on_a_model_that_is_thrown_away() -> None:
    recipe = tiny("model.gate_warmup=2", "model.gate_hidden=[8]", model="hmlet-end")
    pace, per_epoch = measure_pace(checkerboard(), recipe, torch.device("cpu"))
    assert per_epoch == 8
    assert min(pace.start, pace.resting, pace.step, pace.validation, pace.saving) > 0.0


def test_sizes_stand_for_data() -> None:
    data = random_data(50, 30, 400, seed=1)
    assert (data.n_users, data.n_items) == (50, 30)
    assert 200 < data.count("train") <= 400
    assert 0 < data.count("valid") <= 50
    assert seconds_of(tiny("train.epochs=1"), 500, 300, 3000, torch.device("cpu")) > 0.0


@pytest.mark.parametrize("model", ["lightgcn", "popularity"])
def test_a_small_set_is_extrapolated_to_a_large_one(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of 400,000 nodes and interactions, in batches of a quarter, stands for all of them.

    A step grows as its nominal seconds do, 6 to 2; a solution, saving and the start four times. Of a validation of
    7 s, 3 are a pass over the graph and grow four times, the rest sixteen times; a solved model has no such pass.
    """
    asked: list[tuple[int, ...]] = []

    def measured(data: Dataset, recipe: Recipe, device: torch.device) -> tuple[Pace, int]:
        asked.append((data.n_users, data.n_items, recipe.train.batch_size))
        return Pace(start=1.0, resting=2.0, step=3.0, validation=7.0, saving=5.0), 10

    def nominal(recipe: Recipe, users: int, items: int, edges: int, device: str, resting: bool) -> float:
        return 6.0 if (users, recipe.train.batch_size) == (4000, 64) else 2.0

    monkeypatch.setattr("hmlet.training.forecast.measure_pace", measured)
    monkeypatch.setattr("hmlet.training.forecast.nominal_seconds", nominal)
    how = resolve(model, overrides=["train.epochs=1", "train.batch_size=64"])
    found = seconds_of(how, 4000, 6000, 390_000, torch.device("cpu"))
    assert asked == [(1000, 1500, 16)]
    step, validation = (3, 4 * 3 + 16 * 4) if model == "lightgcn" else (4, 16 * 7)
    assert found == pytest.approx(4 * 1 + 10 * 3 * step + validation + 4 * 5)


def test_saving_takes_as_long_as_its_bytes() -> None:
    """Parameters, users' and items' factors with a copy, and four layers, at 200 MB a second."""
    for overrides, tables in (([], 3 + 4), (["train.save_layers=false"], 3)):
        made = Learner(checkerboard(), resolve("lightgcn", overrides=overrides), torch.device("cpu"))
        assert saving_seconds(made) == made.model.embedding.nbytes * tables / 200e6


def counted_inverse(n: int) -> int:
    """Operations of the textbook's inverse of a positive definite matrix: Cholesky's L, then L^-1, then L^-T L^-1."""
    count = 0
    for j in range(n):
        count += (n - j) * (2 * j + 1)  # for each row below, the sum over the columns before, and a division or a root
    for j in range(n):
        for i in range(j, n):
            count += 2 * (i - j) + 1  # forward substitution of a unit vector
    for j in range(n):
        for i in range(j, n):
            count += 2 * (n - i)  # one triangle of the product
    return count


def test_an_inverse_is_counted_as_it_is_computed() -> None:
    """Of the smaller Gram matrix: n³ but for squares of n."""
    for users, items in ((100, 400), (400, 100)):
        (inverse,) = [part for part in solving_parts(resolve("ease").model, users, items, 5000) if part.name == INVERSE]
        assert inverse.operations == 100**3
        assert abs(counted_inverse(100) - inverse.operations) < 3 * 100**2


def test_the_time_of_an_inverse_grows_with_its_cube(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small solution takes 2 s beside its inverse. The rest of ease is in proportion to what it moves."""
    recipe, rate, rest = resolve("ease"), 1e9, 2.0
    users = items = 50_000
    edges, share = 1_000_000, forecast.STANDING_FOR["cpu"] / 1_100_000
    few = [round(size * share) for size in (users, items, edges)]
    taken = few[1] ** 3 / rate + rest
    monkeypatch.setattr(forecast, "inverse_rate", lambda device: rate)
    monkeypatch.setattr(forecast, "measure_pace", lambda *arguments: (Pace(0.0, taken, taken, 0.0, 0.0), 1))
    single = recipe.changed(["train.epochs=1"])
    found = seconds_of(single, users, items, edges, torch.device("cpu"))
    assert found > 50_000**3 / rate
    assert found == pytest.approx(50_000**3 / rate + rest / share**2, rel=0.3)  # I² weights dominate the rest


@pytest.mark.parametrize("model", [name for name, each in MODELS.items() if each.Config.solved])
def test_every_solution_takes_longer_for_more_data(model: str) -> None:
    config = resolve(model).model

    def seconds(scale: int) -> float:
        parts = solving_parts(config, 1000 * scale, 2000 * scale, 30_000 * scale)
        return sum(part.seconds(NOMINAL["cpu"]) for part in parts)

    assert seconds(2) >= 2 * seconds(1) > 0.0


# -- what is said -------------------------------------------------------------------------------------------------


def test_the_time_is_told_and_what_is_rehearsed_for_it_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = tiny("model.gate_warmup=3", "model.gate_hidden=[8]", 'model.gate_ranking="noisy"', model="hmlet-end")
    quiet = loop.fit(checkerboard(), how, tmp_path / "quiet", device="cpu")
    rehearsed: list[float] = []
    sound = steps.GradientSteps.slowdown

    def slowdown(self: steps.GradientSteps) -> float:
        rehearsed.append(sound(self))
        return rehearsed[-1]

    monkeypatch.setattr(steps.GradientSteps, "slowdown", slowdown)
    monkeypatch.setattr(planning, "PLENTY", 10**15)
    for name, value in {"FORETOLD_AFTER": 0.0, "RECONSIDERED": 0.0, "LONG": 0.0}.items():
        monkeypatch.setattr(trainer, name, value)
    told: list[str] = []
    run = loop.fit(checkerboard(), how, tmp_path / "told", device="cpu", tell=told.append)
    assert len(rehearsed) == 1
    assert re.fullmatch(r"hmlet-end on checkerboard: about .* of memory", told[0])
    assert re.fullmatch(r"this run takes about .*; early stopping may end it sooner", told[1])
    assert all(torch.equal(a, b) for a, b in zip(run.factors(), quiet.factors(), strict=True))


# -- the end of an interrupted run --------------------------------------------------------------------------------


def interrupted(out: Path, recipe: Recipe, after: int, data: Path | None = None) -> None:
    """A run that ended early. With the path of a data set, the run only says where its data is."""

    def stop(event: EpochEvent) -> None:
        if event["epoch"] == after:
            raise StopTraining

    with pytest.raises(StopTraining):
        api.fit(data or checkerboard(), recipe, out, device="cpu", keep_data=data is None, callbacks=[stop])


def test_finish_keeps_the_best_model_of_an_interrupted_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted(tmp_path / "run", tiny(), 8)
    saved = load_checkpoint(RunDirectory.open(tmp_path / "run"))
    assert saved is not None
    assert main(["finish", str(tmp_path / "run"), "--device", "cpu"]) == 0
    run = api.Run.open(tmp_path / "run")
    assert f"best epoch {saved[1]['best_epoch']} of 7" in capsys.readouterr().out
    assert (run.record.epochs, run.record.note) == (7, "ended by hmlet finish after 7 of 30 epochs")
    assert torch.equal(run.directory.weights()["embedding"], saved[0]["best.embedding"])
    assert run.evaluate("valid").metrics["ndcg"] == pytest.approx(saved[1]["best_value"], abs=1e-12)
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    assert main(["finish", str(tmp_path / "run")]) == 2
    assert "is finished already: use it as it is" in capsys.readouterr().err


def test_finish_without_a_validation_keeps_the_last_model(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", tiny("train.validate_every=10"), 2)
    saved = load_checkpoint(RunDirectory.open(tmp_path / "run"))
    assert saved is not None
    run = api.finish(tmp_path / "run", device="cpu")
    assert (run.record.best_epoch, run.record.valid) == (1, None)
    assert torch.equal(run.directory.weights()["embedding"], saved[0]["model.embedding"])


def test_finish_needs_a_checkpoint(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", tiny("train.checkpoint_seconds=60"), 2)
    with pytest.raises(RunError, match="has no checkpoint yet: train it with"):
        api.finish(tmp_path / "run")


def test_finish_finds_data_that_has_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = checkerboard().save(tmp_path / "board")
    for name in ("one", "two"):
        interrupted(tmp_path / name, tiny(), 4, board)
    moved = board.rename(tmp_path / "moved")
    assert main(["finish", str(tmp_path / "one")]) == 2
    assert "pass its new location with --data" in capsys.readouterr().err
    assert main(["finish", str(tmp_path / "one"), "--data", str(moved), "--device", "cpu"]) == 0
    run = api.finish(tmp_path / "two", moved, device="cpu")
    assert run.evaluate("valid").metrics["ndcg"] > 0


# -- more epochs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [None, 2])
def test_an_extended_run_is_the_longer_one(stopped: int | None, tmp_path: Path) -> None:
    out, short, long = tmp_path / "run", tiny("train.epochs=6"), tiny("train.epochs=12")
    if stopped is None:
        api.fit(checkerboard(), short, out, device="cpu").evaluate()
    else:
        interrupted(out, short, stopped)
    run = api.fit(checkerboard(), out=out, device="cpu", extend=True)
    whole = api.fit(checkerboard(), long, tmp_path / "whole", device="cpu")
    assert run.recipe == long
    assert run.record.epochs == 12
    assert [row["loss"] for row in run.metrics] == [row["loss"] for row in whole.metrics]
    assert all(torch.equal(a, b) for a, b in zip(run.factors, whole.factors, strict=True))
    assert run.evaluate().metrics == whole.evaluate().metrics  # that of the shorter run is gone


def test_what_cannot_be_extended_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = checkerboard().save(tmp_path / "board")

    def refusal(out: Path, *more: str) -> str:
        assert main(["train", str(place), "--out", str(out), "--device", "cpu", "--extend", *more]) == 2
        return capsys.readouterr().err

    api.fit(place, tiny("train.epochs=2", "train.schedule=cosine"), tmp_path / "cosine", device="cpu")
    assert "falls along a cosine" in (said := refusal(tmp_path / "cosine"))
    assert "train a new run with --set train.epochs=4 and another --out" in said
    moving = ["train.loss=softmax", "loss.temperature_end=0.2"]
    api.fit(place, tiny("train.epochs=2", *moving), tmp_path / "moving", device="cpu")
    assert "its loss follows a schedule" in refusal(tmp_path / "moving")
    api.fit(place, tiny("train.epochs=2"), tmp_path / "run", device="cpu")
    already = refusal(tmp_path / "run", "--set", "train.epochs=2")
    assert "has 2 epochs already: say how many epochs in total, as in --set train.epochs=4" in already
    both = refusal(tmp_path / "run", "--minutes", "1")
    assert "--extend sets the number of epochs, and --minutes would choose another: leave out --minutes" in both
    assert "--set train.epochs=4" in both
    changes = ["--set", "train.epochs=4", "--set", "train.l2=0.5"]
    assert "changes the number of epochs alone: train.l2 is" in refusal(tmp_path / "run", *changes)
    (tmp_path / "run" / CHECKPOINT).unlink()
    assert "has no checkpoint" in refusal(tmp_path / "run")
    assert "does not exist" in refusal(tmp_path / "nowhere")
    assert api.Run.open(tmp_path / "run").record.epochs == 2
