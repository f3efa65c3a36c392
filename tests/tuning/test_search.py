"""Searches whose best point is known: what is tried, what survives a kill, and what two processes share."""

from __future__ import annotations

import itertools
import json
import shlex
import sqlite3
import textwrap
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bare import run_bare
from forked import Forked
from searched import GRID, RECIPE, Fake, planted

from hmlet.cli import main
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.errors import ConfigError, HmletError, TrainingError
from hmlet.models import MODELS
from hmlet.training.trainer import Interrupted
from hmlet.tuning import Objective, Range, Space, load_space, study, tune
from hmlet.tuning.search import planned_points
from hmlet.tuning.study import SharedStudy
from hmlet.tuning.trial import Task, Trained


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr("hmlet.tuning.trial.fit", fake)
    monkeypatch.setattr(study, "POLL_S", 0.2)
    return fake


def test_a_locked_database_is_said_to_be_locked(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "BUSY_S", 0.2)
    with closing(sqlite3.connect(tmp_path / "study.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigError, match=r"locked by another process for 0\.2 seconds"):
            tune(planted(), RECIPE, GRID, tmp_path)
    tune(planted(), RECIPE, GRID, tmp_path)


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]


def points(out: Path) -> list[tuple[float, float]]:
    return sorted((row["params"]["train.learning_rate"], row["params"]["train.l2"]) for row in rows(out))


PRODUCT = sorted(itertools.product(GRID["train.learning_rate"], GRID["train.l2"]))  # type: ignore[arg-type]


def test_a_grid_is_exactly_the_product(fake: Fake, tmp_path: Path) -> None:
    result = tune(planted(), RECIPE, GRID, tmp_path / "out")
    assert points(tmp_path / "out") == PRODUCT
    tried = sorted((recipe.train.learning_rate, recipe.train.l2) for recipe, _, _ in fake.calls)
    assert tried == PRODUCT
    assert result.best.params == {"train.learning_rate": 1e-2, "train.l2": 0.0}
    assert result.best.value == 1.0
    assert {row["state"] for row in rows(tmp_path / "out")} == {"complete"}


def test_best_toml_is_the_best_trials_recipe(fake: Fake, tmp_path: Path) -> None:
    result = tune(planted(), RECIPE, GRID, tmp_path)
    best = tmp_path / result.best.run
    assert (tmp_path / "best.toml").read_text() == (best / "config.toml").read_text()
    assert resolve("bpr", config=tmp_path / "best.toml") == result.recipe
    assert result.recipe.train.learning_rate == 1e-2
    assert result.recipe.model == RECIPE.model


@pytest.mark.parametrize("keep", [False, True])
def test_losers_keep_their_record_and_lose_their_weights(fake: Fake, tmp_path: Path, keep: bool) -> None:
    result = tune(planted(), RECIPE, GRID, tmp_path, keep=keep)
    for trial in result.trials:
        names = {path.name for path in (tmp_path / trial.run).iterdir()}
        assert names >= {"config.toml", "run.json", "metrics.jsonl"}
        assert ("factors.safetensors" in names) == (keep or trial == result.best)


def test_a_second_call_has_nothing_left_to_do(fake: Fake, tmp_path: Path) -> None:
    first = tune(planted(), RECIPE, GRID, tmp_path)
    fake.calls.clear()
    assert tune(planted(), RECIPE, GRID, tmp_path) == first
    assert fake.calls == []


def test_part_of_a_grid_can_be_grown_to_all_of_it(fake: Fake, tmp_path: Path) -> None:
    tune(planted(), RECIPE, GRID, tmp_path, trials=2)
    assert len(points(tmp_path)) == 2
    tune(planted(), RECIPE, GRID, tmp_path)
    assert points(tmp_path) == PRODUCT
    assert len(fake.calls) == len(PRODUCT)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_draw_from_ranges_and_repeat_themselves(fake: Fake, tmp_path: Path, sampler: Any) -> None:
    space: Space = {
        "train.learning_rate": Range(low=1e-4, high=1e-1, log=True),
        "model.embedding_size": Range(low=4, high=64),
        "train.l2": (0.0, 1e-4),
    }
    for name in ("first", "second"):
        tune(planted(), RECIPE, space, tmp_path / name, sampler=sampler, trials=12, pruning="none")
    drawn = [row["params"] for row in rows(tmp_path / "first")]
    assert drawn == [row["params"] for row in rows(tmp_path / "second")]
    assert len({point["train.learning_rate"] for point in drawn}) == 12
    assert all(1e-4 <= point["train.learning_rate"] <= 1e-1 for point in drawn)
    assert all(isinstance(point["model.embedding_size"], int) for point in drawn)
    assert {point["train.l2"] for point in drawn} == {0.0, 1e-4}


def test_lists_and_look_alikes_are_values_of_their_own(fake: Fake, tmp_path: Path) -> None:
    space: Space = {"model.gate_hidden": ([8], [16, 8]), "train.l2": (0, 1), "train.l2_weights": (False, True)}
    tune(planted(), resolve("hmlet-end", overrides=["train.epochs=1"]), space, tmp_path)
    tried = {(r.model.gate_hidden, r.train.l2, r.train.l2_weights) for r, _, _ in fake.calls}  # type: ignore[union-attr]
    assert tried == set(itertools.product([(8,), (16, 8)], [0.0, 1.0], [False, True]))


@pytest.mark.parametrize("pruning", ["median", "halving"])
def test_a_hopeless_trial_is_pruned_at_its_validations(fake: Fake, tmp_path: Path, pruning: Any) -> None:
    space: Space = {"train.learning_rate": tuple(10.0**-power for power in range(2, 11))}
    result = tune(planted(), RECIPE, space, tmp_path, pruning=pruning)
    states = {trial.state for trial in result.trials}
    assert states == {"complete", "pruned"}
    assert result.best.state == "complete"
    pruned = next(trial for trial in result.trials if trial.state == "pruned")
    assert pruned.value is not None
    assert pruned.value < 1.0


def test_a_failed_trial_is_recorded_and_the_search_goes_on(fake: Fake, tmp_path: Path) -> None:
    def fail(recipe: Recipe, out: Path) -> None:
        if recipe.train.learning_rate == 1e-1:
            raise TrainingError("the loss is not finite in epoch 1", "lower train.learning_rate")

    fake.before = fail
    result = tune(planted(), RECIPE, GRID, tmp_path)
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert [trial.params["train.learning_rate"] for trial in failed] == [1e-1, 1e-1]
    assert all("not finite in epoch 1" in (trial.error or "") for trial in failed)
    fake.calls.clear()
    tune(planted(), RECIPE, GRID, tmp_path)
    assert fake.calls == []  # what failed by itself would fail again


def test_a_search_in_which_all_fail_says_why(fake: Fake, tmp_path: Path) -> None:
    def fail(recipe: Recipe, out: Path) -> None:
        raise TrainingError("the loss is not finite")

    fake.before = fail
    with pytest.raises(TrainingError, match="none of 6 trials finished; the first said: the loss is not finite"):
        tune(planted(), RECIPE, GRID, tmp_path)


@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt(), Interrupted("stopped in epoch 2", "go on with --resume")], ids=["key", "saved"]
)
def test_an_interrupted_search_goes_on_where_it_was(fake: Fake, tmp_path: Path, interrupt: BaseException) -> None:
    def stop(recipe: Recipe, out: Path) -> None:
        if len(fake.calls) == 3:
            raise interrupt

    fake.before = stop
    with pytest.raises(type(interrupt)) as caught:
        tune(planted(), RECIPE, GRID, tmp_path)
    if isinstance(caught.value, Interrupted):  # the search goes on, not the one training in it
        assert caught.value.hint == f"go on with the same `hmlet.tune(…, out={tmp_path})`"
    stopped = fake.calls[-1]
    tune(planted(), RECIPE, GRID, tmp_path)
    assert points(tmp_path) == PRODUCT
    assert (stopped[0], stopped[1], True) in fake.calls  # taken up in its own directory
    assert len(fake.calls) == len(PRODUCT) + 1


WORKER = """
import os, signal, time
from pathlib import Path
import searched as t
from hmlet.tuning import study, trial, tune

study.POLL_S = 0.2
log = Path({log!r})

def before(recipe, out):
    with log.open("a") as file:
        file.write(f"{{os.getpid()}} {{recipe.train.learning_rate}} {{recipe.train.l2}}\\n")
{before}

trial.fit = t.Fake(before)
print(tune(t.planted(), t.RECIPE, t.GRID, {out!r}).best.value)
"""


def worker(tmp_path: Path, before: str) -> Forked:
    """A process that takes part in the search of GRID; `before` runs in each of its trials."""
    code = WORKER.format(
        log=str(tmp_path / "log"),
        before=textwrap.indent(textwrap.dedent(before), "    "),
        out=str(tmp_path / "out"),
    )
    return Forked(code)


def logged(tmp_path: Path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "log").read_text().splitlines()]


def test_a_killed_process_costs_nothing_but_its_trial(fake: Fake, tmp_path: Path) -> None:
    process = worker(tmp_path, "if len(log.read_text().splitlines()) == 3: os.kill(os.getpid(), signal.SIGKILL)")
    process.wait()
    assert process.status == -9
    killed = logged(tmp_path)[-1][1:]
    tune(planted(), RECIPE, GRID, tmp_path / "out")
    assert points(tmp_path / "out") == PRODUCT
    assert {row["state"] for row in rows(tmp_path / "out")} == {"complete"}
    again = [(str(r.train.learning_rate), str(r.train.l2), resume) for r, _, resume in fake.calls]
    assert (*killed, True) in again
    assert len(again) == len(PRODUCT) - 2  # the two that were finished are kept


def shared(out: Path) -> SharedStudy:
    """The study of a grid, as one process has it open."""
    objective = Objective(planted(), RECIPE, "cpu")
    found = SharedStudy.open(objective, GRID, out, None, "grid", "none")
    found.enqueue(planned_points(objective, GRID, "grid", None))
    return found


def test_a_process_killed_before_it_locked_its_trial_is_noticed(fake: Fake, tmp_path: Path) -> None:
    with study.quiet():
        shared(tmp_path).study.ask()  # takes a trial, and is never heard of again
    tune(planted(), RECIPE, GRID, tmp_path)
    assert points(tmp_path) == PRODUCT
    assert len(fake.calls) == len(PRODUCT)


def test_a_trial_that_kills_its_process_every_time_has_failed(fake: Fake, tmp_path: Path) -> None:
    fatal = "if recipe.train.learning_rate == 0.1 and not recipe.train.l2: os.kill(os.getpid(), 9)"
    for _ in range(study.TRIAL_ATTEMPTS):
        process = worker(tmp_path, fatal)
        process.wait()
        assert process.status == -9
    for _ in range(2):
        tune(planted(), RECIPE, GRID, tmp_path / "out")
        failed = [row for row in rows(tmp_path / "out") if row["state"] == "failed"]
        assert [row["error"] for row in failed] == ["its process was killed 3 times"]
    assert fake.calls == []
    assert points(tmp_path / "out") == PRODUCT


def test_two_processes_share_the_work(tmp_path: Path) -> None:
    # The first trial of each process waits until the other one has begun as well.
    wait = """
    while len({line.split()[0] for line in log.read_text().splitlines()}) < 2:
        time.sleep(0.02)
    """
    processes = [worker(tmp_path, wait) for _ in range(2)]
    answers = [process.wait() for process in processes]
    assert [answer.splitlines()[-1] for answer in answers] == ["1.0", "1.0"], answers
    lines = logged(tmp_path)
    assert len({pid for pid, _, _ in lines}) == 2
    assert sorted((float(rate), float(l2)) for _, rate, l2 in lines) == PRODUCT
    assert points(tmp_path / "out") == PRODUCT


def test_a_trial_is_taken_once_however_many_reach_for_it(tmp_path: Path) -> None:
    taken: list[Path] = []

    def train(task: Task) -> Trained:
        taken.append(task.place)
        return Trained({"ndcg": 1.0}, 1, 0.0)

    start = threading.Barrier(3)

    def work() -> None:
        start.wait()  # so that they also open the study and fill it at once
        mine = shared(tmp_path)
        while mine.take(train):
            pass

    with study.quiet():
        threads = [threading.Thread(target=work) for _ in range(start.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert len(shared(tmp_path).records()) == len(PRODUCT)
    assert len(taken) == len(set(taken)) == len(PRODUCT)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"recipe": resolve("bpr", overrides=["train.epochs=5"])},
            "recipe: model.embedding_size is 8 there and 64 here",
        ),
        ({"space": {"train.l2": (0.0,)}}, r"space: train.learning_rate is \[.*\] there and unset here"),
        ({"sampler": "random", "trials": 2}, "sampler: sampler is grid there and random here"),
        ({"data": planted(20)}, "data: data is"),
    ],
)
def test_another_search_does_not_enter_the_directory(
    fake: Fake, tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    arguments = {"data": planted(), "recipe": RECIPE, "space": GRID, "out": tmp_path}
    tune(**arguments, trials=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"holds a search with another {what}"):
        tune(**{**arguments, **change})  # type: ignore[arg-type]


def test_a_search_goes_on_from_an_older_study_whose_recipe_lacks_a_key(fake: Fake, tmp_path: Path) -> None:
    tune(planted(), RECIPE, GRID, tmp_path, trials=1)
    with study.quiet():
        shared(tmp_path).study.set_user_attr("recipe", RECIPE.to_toml().replace('schedule = "constant"\n', ""))
    tune(planted(), RECIPE, GRID, tmp_path)
    assert points(tmp_path) == PRODUCT


@pytest.mark.parametrize(
    ("space", "sampler", "message"),
    [
        ({"train.learning_rate": Range(low=1e-4, high=1e-1)}, "grid", "a grid cannot try the range"),
        ({"train.momentum": (0.9,)}, "grid", "no key train.momentum"),
        ({"train.l2": (-1.0,)}, "grid", "train.l2 = -1.0"),
        ({"train.edge_dropout": Range(low=0.0, high=1.5)}, "tpe", "train.edge_dropout = 1.5"),
        ({"train.l2": (0.0,)}, "cma", "no sampler 'cma'"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_first(
    fake: Fake, tmp_path: Path, space: Space, sampler: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(planted(), RECIPE, space, tmp_path / "out", sampler=sampler)
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_directory_to_search_in(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(HmletError, match=r"cannot write .*taken.base.toml: .*: choose another place"):
        tune(planted(), RECIPE, GRID, tmp_path / "taken")
    assert fake.calls == []


def test_a_storage_that_cannot_be_opened_keeps_its_password(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the storage cannot be opened") as caught:
        tune(planted(), RECIPE, GRID, tmp_path, storage="nosuchdb://me:secret@host/db")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_a_space_that_its_recipe_takes(model: str) -> None:
    if model == "popularity":
        with pytest.raises(ConfigError, match="popularity has no default search space"):
            load_space(None, model)
        return
    space = load_space(None, model)
    assert 12 <= len(planned_points(Objective(planted(), resolve(model)), space, "grid", None)) <= 60


def test_a_real_search_never_reads_the_test_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = planted()
    plain = Dataset.csr

    def guarded(self: Dataset, *parts: str) -> Any:
        assert "test" not in parts
        return plain(self, *parts)

    monkeypatch.setattr(Dataset, "csr", guarded)
    space: Space = {"train.learning_rate": (1e-4, 5e-2)}
    recipe = resolve("bpr", overrides=["train.epochs=30", "train.batch_size=32", "model.embedding_size=8"])
    result = tune(data, recipe, space, tmp_path, device="cpu")
    assert result.best.params == {"train.learning_rate": 5e-2}  # 1e-4 cannot learn in thirty epochs
    kept = json.loads((tmp_path / result.best.run / "run.json").read_text())
    assert kept["valid"]["ndcg"] == result.best.value
    assert (tmp_path / result.best.run / "factors.safetensors").is_file()


def test_the_command_that_is_printed_trains_the_best_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, space, out = str(planted().save(tmp_path / "data")), tmp_path / "space.toml", tmp_path / "tuned"
    space.write_text('[space]\n"model.name" = ["lr-gccf"]\n')
    short = ["--set", "train.epochs=1", "--set", "model.embedding_size=8", "--device", "cpu"]
    assert main(["tune", data, "--model", "lightgcn", "--space", str(space), "--out", str(out), *short]) == 0
    program, *command = shlex.split(capsys.readouterr().out.partition("has its recipe: ")[2])
    assert program == "hmlet"
    assert main([*command, "--print-config"]) == 0
    assert capsys.readouterr().out == (out / "best.toml").read_text()


def test_without_optuna_the_message_names_the_extra(tmp_path: Path) -> None:
    code = """
from hmlet.errors import MissingExtra
from hmlet.tuning import study
try:
    study.library()
except MissingExtra as error:
    print(error)
"""
    assert run_bare(tmp_path, "-c", code).stdout == (
        "tuning needs optuna, which is not installed: pip install 'hmlet[tune]'\n"
    )
