"""The Python API: each command has a function with its defaults and its result, and a type checker knows them all."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from finished import finished
from planted import checkerboard

import hmlet
from hmlet import Run
from hmlet.cli import main
from hmlet.cli.analyze import analyze
from hmlet.cli.compare import compare
from hmlet.cli.evaluate import evaluate
from hmlet.cli.finish import finish
from hmlet.cli.leaderboard import leaderboard
from hmlet.cli.models import models
from hmlet.cli.package import package, pull, push
from hmlet.cli.plan import plan
from hmlet.cli.recommend import export
from hmlet.cli.report import report
from hmlet.cli.reproduce import reproduce
from hmlet.cli.serve import serve
from hmlet.cli.train import train
from hmlet.cli.try_file import try_file
from hmlet.cli.tune import tune
from hmlet.cli.update import update
from hmlet.errors import ConfigError
from hmlet.system.progress import Advance
from hmlet.system.spelling import in_shell
from hmlet.training import planning
from hmlet.training.trainer import EpochEvent, StopTraining

ROOT = Path(__file__).resolve().parent.parent
TWINS = {
    "analyze": analyze,
    "compare": compare,
    "evaluate": evaluate,
    "export": export,
    "finish": finish,
    "fit": train,
    "leaderboard": leaderboard,
    "list_models": models,
    "package": package,
    "plan": plan,
    "pull": pull,
    "push": push,
    "refit": train,
    "report": report,
    "reproduce": reproduce,
    "resolve": train,
    "serve": serve,
    "try_file": try_file,
    "tune": tune,
    "update": update,
}
FUNCTIONS = [name for name in hmlet.__all__ if name.islower() and not name.startswith("_")]


# -- the names ----------------------------------------------------------------------------------------------------


def test_type_checkers_see_the_names_that_are_imported_on_first_use() -> None:
    tree = ast.parse(Path(hmlet.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "hmlet"]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == hmlet._HOMES
    assert hmlet.__all__ == sorted([*seen, "__version__"])


def test_a_name_stays_what_it_is_whatever_is_imported() -> None:
    """No room may have the name of a function: importing it would put the module in the function's place."""
    rooms = {path.stem for path in Path(hmlet.__file__).parent.iterdir()}
    assert rooms.isdisjoint(hmlet.__all__)


def test_every_command_has_a_function() -> None:
    assert sorted(TWINS) == FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_documented_with_one_example(name: str) -> None:
    examples = re.findall(r"^ *Example: (.*)$", inspect.getdoc(getattr(hmlet, name)) or "", re.MULTILINE)
    assert len(examples) == 1
    assert examples[0].startswith(f"hmlet.{name}(")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_defaults_of_its_command(name: str) -> None:
    ours, theirs = (inspect.signature(each).parameters for each in (getattr(hmlet, name), TWINS[name]))
    free = [each for each in ours.values() if each.kind is each.VAR_KEYWORD]
    assert all(each.annotation in ("Unpack[Settings]", "Unpack[Reading]") for each in free)
    required = {"model", "recipe", "out", "data"}  # options of some commands, and then checked by these
    shared = sorted({*ours} & {*theirs} - required)
    assert shared or not ours
    for key in shared:
        if ours[key].kind is ours[key].VAR_POSITIONAL:
            continue
        assert (ours[key].default or None) == (theirs[key].default or None), key


# -- types --------------------------------------------------------------------------------------------------------

SLIPS = {
    "method": ("run.recommend(", "run.recomend(", r'"Run" has no attribute "recomend"'),
    "function": ("hmlet.compare(", "hmlet.comprae(", r'Module has no attribute "comprae"'),
    "setting": ("epochs=5", "epoch=5", r'Unexpected keyword argument "epoch" for "resolve"; did you mean "epochs"'),
    "value": ("embedding_size=8", 'embedding_size="8"', r'"embedding_size" to "resolve" has incompatible type "str"'),
    "result": ("plan.fits", "plan.fitts", r'"Plan" has no attribute "fitts"'),
}


def test_mypy_accepts_a_script_and_finds_its_slips(tmp_path: Path) -> None:
    script = ROOT / "tests" / "typed_script.py"
    text = script.read_text(encoding="utf-8")
    for name, (right, wrong, _) in SLIPS.items():
        assert text.count(right) == 1
        (tmp_path / f"{name}.py").write_text(text.replace(right, wrong), encoding="utf-8")
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(script), *(f"{name}.py" for name in SLIPS)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    for name, (_, _, message) in SLIPS.items():
        (line,) = [error for error in errors if error.startswith(f"{name}.py:")]
        assert re.search(message, line)
    assert len(errors) == len(SLIPS), done.stdout  # and none in the script itself


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(hmlet.__file__).parent / "py.typed").is_file()


# -- the path of the command --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    place = tmp_path_factory.mktemp("runs")
    return {name: finished(name, place / name) for name in ("hmlet-end", "lightgcn")}


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """What a command prints as JSON."""

    def call(*arguments: object) -> Any:
        assert main([*map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def path(run: Run) -> Path:
    return run.directory.path


def test_results_are_those_of_the_commands(runs: dict[str, Run], said: Callable[..., Any], tmp_path: Path) -> None:
    gated, plain = runs.values()
    found = hmlet.evaluate(plain, k=5)
    assert found.as_json() == plain.evaluate(k=5).as_json() == said("evaluate", path(plain), "-k", 5)
    compared = json.dumps(hmlet.compare(gated, path(plain)).as_json())
    assert json.loads(compared) == said("compare", path(gated), path(plain))
    (analysis,) = hmlet.analyze(path(gated), centrality="none")
    assert analysis.as_json() == said("analyze", path(gated), "--centrality", "none")
    assert analysis == gated.analyze(centrality="none")
    rows = hmlet.export(plain, tmp_path / "a.csv", k=3)
    assert said("export", path(plain), "--out", tmp_path / "b.csv", "-k", 3)["rows"] == rows
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    page, *figures = hmlet.report(gated, plain, out=tmp_path / "page.html", figures=tmp_path / "figures")
    assert said("report", path(gated), path(plain), "--out", page, "--figures", tmp_path / "figures") == {
        "report": str(page),
        "figures": [str(each) for each in figures],
    }
    assert gated.report(tmp_path / "one.html") == [tmp_path / "one.html"]


def test_a_plan_is_that_of_the_command(said: Callable[..., Any]) -> None:
    with in_shell():  # where changes are named as options
        large = hmlet.plan(users=1e8, items=1e7, edges=1e9, recipe="lightgcn", device="cuda", devices=8, memory="80GB")
        small = hmlet.plan("debian", "bpr", device="cpu", memory=10 * 10**6)
    sizes = ["--users", "1e8", "--items", "1e7", "--edges", "1e9", "--device", "cuda", "--devices", 8]
    assert large.as_json() == said("plan", *sizes, "--model", "lightgcn", "--memory", "80GB")
    assert not small.fits
    assert small.as_json() == said("plan", "debian", "--model", "bpr", "--device", "cpu", "--memory", "10MB")
    assert repr(small).startswith("<Plan bpr on cpu: does not fit, ")


def test_fit_goes_on_by_the_runs_own_recipe(tmp_path: Path) -> None:
    board, overrides = checkerboard(), ["train.epochs=3", "model.embedding_size=8"]

    def stop(event: EpochEvent) -> None:
        raise StopTraining

    recipe = hmlet.resolve("bpr", board, overrides=overrides)
    with pytest.raises(StopTraining):
        hmlet.fit(board, recipe, tmp_path / "run", device="cpu", callbacks=[stop])
    told: list[int] = []
    run = hmlet.fit(
        board, out=tmp_path / "run", device="cpu", resume=True, callbacks=[lambda event: told.append(event["epoch"])]
    )
    assert (run.recipe, told) == (recipe, [1, 2, 3])  # it stopped before the first checkpoint


def test_a_callback_comes_in_a_list(tmp_path: Path) -> None:
    for single in (print, hmlet.callbacks.Callback()):
        with pytest.raises(ConfigError, match="`callbacks` is a single callback: pass a list"):
            hmlet.fit(checkerboard(), "bpr", tmp_path / "run", callbacks=single)  # type: ignore[arg-type]


def test_remarks_are_logged_and_progress_is_told(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = checkerboard().save(tmp_path / "board")
    shown: dict[str, list[str]] = {}

    @contextmanager
    def progress(title: str) -> Iterator[Advance]:
        texts = shown.setdefault(title, [])
        yield lambda done, total=None, text="": texts.append(text)

    monkeypatch.setattr(planning, "PLENTY", 10**15)
    overrides = ["train.epochs=1", "model.embedding_size=136"]
    with caplog.at_level(logging.INFO, "hmlet"):
        run = hmlet.fit(
            place, hmlet.resolve("bpr", place, overrides=overrides), tmp_path / "run", device="cpu", progress=progress
        )
    slow, memory = caplog.messages
    assert re.fullmatch(r"bpr on checkerboard: about \S+ [kM]B of memory", memory)
    assert slow.startswith("an embedding of 136 columns is meant for a GPU")
    assert list(shown) == [f"loading {place}", "training bpr"]
    assert re.fullmatch(r"epoch 1 of 1  loss \d\.\d{4}  best ndcg \d\.\d{4} \(epoch 1\)", shown["training bpr"][0])
    assert run.profile is None
    assert capfd.readouterr() == ("", "")
    command = ["train", str(place), "--model", "bpr", "--device", "cpu", "--out", str(tmp_path / "again")]
    assert main([*command, *(part for each in overrides for part in ("--set", each))]) == 0
    by_option = slow.replace("embedding_size=64", "--set model.embedding_size=64")
    assert capfd.readouterr().err.splitlines() == [by_option, memory]  # the command shows what is logged


def test_memory_is_planned_once_if_there_is_not_plenty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []
    real = planning._plan
    monkeypatch.setattr(planning, "PLENTY", 10**15)

    def watched(recipe: hmlet.Recipe, *rest: Any) -> Any:
        planned.append(recipe.model.name)
        return real(recipe, *rest)

    monkeypatch.setattr(planning, "_plan", watched)
    recipe = hmlet.resolve("bpr", overrides=["train.epochs=1", "model.embedding_size=8"])
    hmlet.fit(checkerboard(), recipe, tmp_path / "run", device="cpu")
    assert planned == ["bpr"]
    monkeypatch.setattr(planning, "PLENTY", 200)
    hmlet.fit(checkerboard(), recipe, tmp_path / "again", device="cpu")
    assert planned == ["bpr"]


def test_events_for_tensorboard_and_a_profile(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    recipe = hmlet.resolve("bpr", overrides=["train.epochs=2", "model.embedding_size=8"])
    run = hmlet.fit(
        checkerboard(), recipe, tmp_path / "run", device="cpu", tensorboard=tmp_path / "events", profile=True
    )
    assert run.profile is not None
    assert "load" in run.profile["phases"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    losses = [row["loss"] for row in run.metrics]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses, rel=1e-6)
    assert [event.step for event in events.Scalars("valid/ndcg")] == [2]


def test_no_run_is_refused(tmp_path: Path) -> None:
    for call in (hmlet.analyze, hmlet.compare, lambda: hmlet.report(out=tmp_path / "page.html")):
        with pytest.raises(ConfigError, match="name at least"):
            call()


def test_reproduce_is_the_command(tmp_path: Path, said: Callable[..., Any]) -> None:
    board = checkerboard()
    place, out = board.save(tmp_path / "board"), tmp_path / "records"
    overrides = ["train.epochs=1", "model.embedding_size=8"]
    found = hmlet.reproduce(board, models=["bpr"], seeds=1, overrides=overrides, out=out, device="cpu")
    assert len(found.outcome.trained) == 1
    assert repr(found).startswith("<Reproduction on checkerboard: 0 runs found, 1 trained, 0 left")
    command = ["reproduce", "--dataset", place, "--model", "bpr", "--seeds", 1, "--out", out, "--device", "cpu"]
    again = said(*command, *(part for each in overrides for part in ("--set", each)))
    assert again["datasets"] == found.as_json()["datasets"]


def test_results_have_short_reprs(runs: dict[str, Run]) -> None:
    gated, plain = runs.values()
    comparison = hmlet.compare(gated, plain)
    shown = {
        repr(plain): f"<Run {path(plain)}: lightgcn on checkerboard>",
        repr(plain.data): "<Dataset checkerboard: 48 users, 24 items, 576 interactions>",
        repr(plain.recipe): "<Recipe lightgcn: D = 8, at most 4 epochs, seed 1>",
        repr(comparison): f"<Comparison on test, 48 users: {comparison.conclusion()}>",
    }
    assert list(shown) == list(shown.values())
    assert re.fullmatch(
        r"<Evaluation on test, 48 users, @20: ndcg 0\.\d{4}, recall [01]\.\d{4}, precision 0\.\d{4}>",
        repr(plain.evaluate()),
    )
    assert repr(gated.analyze(centrality="none")).startswith("<Analysis of hmlet-end on checkerboard, seed 1: 72 nodes")
    assert repr(hmlet.plan(plain.data, "bpr", device="cpu").memory).startswith("<MemoryPlan ")
