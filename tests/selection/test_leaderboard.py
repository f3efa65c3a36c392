"""The leaderboard: the right model wins, its numbers are those of the runs, and time and failures are told."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contestants import registered
from planted import checkerboard, dataset

import hmlet
from hmlet import Leaderboard, Run
from hmlet.cli import main
from hmlet.errors import ConfigError, NothingHeldOut, RunError
from hmlet.models import FLOOR, MODELS
from hmlet.selection import Row, Scores, contest
from hmlet.system.progress import Advance
from hmlet.training.forecast import Pace
from hmlet.tuning import choice

NAMES = ["chance", "absent", "lightgcn"]


@pytest.fixture(autouse=True, scope="module")
def _models() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("board")


@pytest.fixture(scope="module")
def board(place: Path) -> Leaderboard:
    """A board on data of which one model learns everything and another nothing."""
    return hmlet.leaderboard(checkerboard(), place / "out", models=NAMES, device="cpu")


def by_name(board: Leaderboard) -> dict[str, Any]:
    return {row.model: row for row in board.rows}


def test_the_model_that_learns_the_data_wins(board: Leaderboard) -> None:
    assert board.best == "lightgcn"
    assert set(by_name(board)) == {*NAMES, *({FLOOR} & MODELS.keys())}
    chance = by_name(board)["chance"]
    assert chance.p < 0.001
    assert board.rows[0].p is None
    assert board.conclusion() == "lightgcn is best on validation. On test, it beats every other model (p < 0.05)."
    assert re.fullmatch(r"<Leaderboard on checkerboard: \d of \d models, best lightgcn>", repr(board))


def test_the_conclusion_says_who_did_better_or_as_well_on_test() -> None:
    def row(model: str, ndcg: float, p: float | None) -> Row:
        scores = Scores({"ndcg": ndcg}, {"ndcg": (ndcg, ndcg)})
        return Row(model, "graph", 1.0, scores, scores, p, Path(model))

    rows = row("a", 0.2, None), row("b", 0.3, 0.01), row("c", 0.21, 0.4), row("d", 0.1, 0.001), Row("e", "graph")
    assert Leaderboard("data", Path("out"), rows, None).conclusion() == (
        "a is best on validation. On test, b did better (p < 0.05). "
        "On test, c does not differ significantly from it (p ≥ 0.05)."
    )


def test_its_numbers_are_those_of_the_runs(board: Leaderboard) -> None:
    for row in board.ranked:
        run = Run.open(row.run)
        assert row.seconds == run.record.compared_seconds + run.record.timings.training_seconds
        for split, scores in (("valid", row.valid), ("test", row.test)):
            measured = run.evaluate(split).metrics
            assert scores.means == {name: measured[name] for name in ("ndcg", "recall", "precision")}
            for name, (low, high) in scores.intervals.items():
                assert low <= scores.means[name] <= high
    against = hmlet.compare(*(row.run for row in board.ranked))
    found = against.metrics["ndcg"].against["chance"].t_test_p
    assert by_name(board)["chance"].p == found


def test_a_model_is_trained_as_fit_does(board: Leaderboard, tmp_path: Path) -> None:
    """The losses are compared, and the recipe and every factor are those of the call without settings."""
    row = by_name(board)["lightgcn"]
    run, alone = Run.open(row.run), hmlet.fit(board.out / "data", "lightgcn", tmp_path / "run", device="cpu")
    assert run.record.compared.keys() == {"bpr", "multinomial", "popularity-aware multinomial"}
    assert run.record.compared == alone.record.compared
    assert (run.recipe, row.loss) == (alone.recipe, alone.recipe.objective)
    for mine, theirs in zip(run.factors, alone.factors, strict=True):
        assert (mine == theirs).all()
    assert row.cells()[1] == row.loss
    assert by_name(board)["chance"].loss is None
    assert by_name(board)["chance"].cells()[1] == "–"


def test_a_model_that_fails_is_a_row_with_the_reason(board: Leaderboard) -> None:
    row = board.rows[-1]
    assert (row.model, row.valid, row.run) == ("absent", None, None)
    assert row.note == "failed: Absent needs a library, which is not installed: pip install 'hmlet[absent]'"


def test_the_page_needs_no_other_file(board: Leaderboard) -> None:
    assert board.page is not None
    page = board.page.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert all(row.model in page for row in board.rows)
    assert f"{by_name(board)['chance'].test.means['ndcg']:.4f}" in page
    assert "pip install &#x27;hmlet[absent]&#x27;" in page
    assert str(board.serve) in page


def test_the_command_prints_the_contract(
    board: Leaderboard, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also resumes: nothing that is finished is trained again, and nothing but the reasons may change."""
    trained: list[str] = []
    real = contest.fit

    def watched(data: Any, recipe: Any, out: Path, **options: Any) -> Any:
        trained.append(out.name)
        return real(data, recipe, out, **options)

    monkeypatch.setattr(contest, "fit", watched)
    models = [part for name in NAMES for part in ("--model", name)]
    data, out = board.out / "data", board.out
    assert main(["leaderboard", str(data), "--out", str(out), "--device", "cpu", "--json", *models]) == 0
    said = json.loads(capsys.readouterr().out)
    assert trained == ["absent"]
    assert said == json.loads(json.dumps(board.as_json()))
    assert {"data", "rows", "best"} <= said.keys()
    assert all({"model", "seconds", "valid", "test", "run"} <= row.keys() for row in said["rows"])
    assert said["rows"][0]["test"].keys() == {"ndcg", "recall", "precision"}
    assert main(["leaderboard", str(data), "--out", str(out), "--device", "cpu", *models]) == 0
    shown = capsys.readouterr()
    assert f"hmlet serve {out / 'runs' / 'lightgcn'}" in shown.out
    assert "absent: failed: Absent needs a library" in shown.err


def test_the_floor_is_always_there_and_who_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "FLOOR", "chance")
    found = contest.contestants(checkerboard(), ["hmlet-all", "lightgcn", "wrmf", "hmlet-all"], "cpu")
    assert [each.name for each in found] == ["chance", "wrmf", "lightgcn", "hmlet-all"]
    costs = [each.cost for each in found]
    assert costs == sorted(costs)
    assert costs[:2] == [0.0, 0.0]
    everyone = [each.name for each in contest.contestants(checkerboard(), [], "cpu")]
    assert sorted(everyone) == sorted(MODELS)
    trained = [name for name in everyone if not MODELS[name].Config.solved]
    assert everyone[-len(trained) :] == trained
    assert trained[:2] == ["lightgcn", "hmlet-end"]  # of the quick models, before others that are cheaper
    assert trained[2] == "bpr"


# -- time ---------------------------------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_skips_with_the_reason(tmp_path: Path) -> None:
    board = hmlet.leaderboard(checkerboard(), tmp_path / "out", models=["lightgcn"], minutes=1e-9, device="cpu")
    assert board.best is None
    assert board.serve is None
    assert board.conclusion() == "No model finished."
    assert {row.note for row in board.rows} == {"skipped: no time left; run the command again to add it"}
    assert not (tmp_path / "out" / "runs").exists()


def test_a_model_that_needs_far_more_than_is_left_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest._Contest, "_need", lambda self, each: 1e9 * each.cost)
    board = hmlet.leaderboard(checkerboard(), tmp_path / "out", models=["chance", "lightgcn"], device="cpu")
    assert board.best is not None
    note = by_name(board)["lightgcn"].note
    assert re.fullmatch(
        r"skipped: it needs about \d+ hours, and 15 minutes are left; run the command again to add it", note
    )


def test_what_a_model_needs_is_foretold_from_the_training_of_the_last(
    board: Leaderboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last run trained for two seconds, which nominally take five: 0.4 seconds for each nominal one."""
    data = hmlet.Dataset.load(board.out / "data")
    entering = contest.contestants(data, ["lightgcn", "hmlet-end"], "cpu")
    found = contest._Contest(data, board.out, "cpu", 0.0, 1.0, entering)
    gated = next(each for each in entering if each.name == "hmlet-end")
    assert found._need(gated) == 0.0
    recipe = SimpleNamespace(train=SimpleNamespace(epochs=40))
    record = SimpleNamespace(epochs=20, timings=SimpleNamespace(training_seconds=2.0), compared_seconds=100.0)
    found.entries["lightgcn"] = SimpleNamespace(run=SimpleNamespace(recipe=recipe, record=record))  # type: ignore[assignment]
    monkeypatch.setattr(contest, "nominal_training_seconds", lambda *arguments: 10.0)
    assert found._need(gated) == pytest.approx(0.4 * gated.cost)


def test_a_model_gets_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last model may take all that is left; a quick one before it three times its share. Solving is not cut."""
    given: dict[str, float | None] = {}
    real = contest.fit

    def watched(data: Any, recipe: Any, out: Path, *, deadline: float | None, **options: Any) -> Any:
        given[out.name] = None if deadline is None else deadline - time.monotonic()
        return real(data, recipe, out, deadline=deadline, **options)

    monkeypatch.setattr(contest, "fit", watched)
    models = ["chance", "lr-gccf", "lightgcn"]
    found = hmlet.leaderboard(checkerboard(), tmp_path / "out", models=models, device="cpu")
    assert given["chance"] is None
    costs = {each.name: each.cost for each in contest.contestants(checkerboard(), models, "cpu")}
    share = 3 * costs["lightgcn"] / (3 * costs["lightgcn"] + costs["lr-gccf"])
    assert 0.5 < share < 0.9
    assert given["lightgcn"] == pytest.approx(900 * share, rel=0.05)
    assert given["lr-gccf"] == pytest.approx(900, rel=0.1)
    assert [row.note for row in found.ranked] == [""] * len(found.ranked)


def test_a_model_is_shortened_before_it_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take a second each, as far as budgets go: 900 s do not hold both schedules, and hold epochs of both."""
    pace = Pace(0.0, 1.0, 1.0, 0.0, 0.0)
    monkeypatch.setattr(choice, "measure_pace", lambda *arguments: (pace, 8))
    models = ["lightgcn", "lr-gccf"]
    board = hmlet.leaderboard(checkerboard(), tmp_path / "out", models=models, device="cpu")
    for name in models:
        assert re.fullmatch(r"shortened to \d+ of \d+ epochs", by_name(board)[name].note), name
    monkeypatch.setattr(choice, "measure_pace", lambda *arguments: (replace(pace, step=1e6, resting=1e6), 8))
    board = hmlet.leaderboard(checkerboard(), tmp_path / "none", models=["lightgcn"], device="cpu")
    assert (
        by_name(board)["lightgcn"].note == "skipped: not enough time left for an epoch; run the command again to add it"
    )


def test_remarks_of_a_training_are_progress(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shown: list[tuple[float, str]] = []

    @contextmanager
    def progress(title: str) -> Iterator[Advance]:
        yield lambda done, total=None, text="": shown.append((done, text))

    with caplog.at_level(logging.INFO, "hmlet"):
        hmlet.leaderboard(checkerboard(), tmp_path / "out", models=["lightgcn"], device="cpu", progress=progress)
    assert caplog.messages == []
    assert any(re.match(r"lightgcn, \d+ of \d+ epochs fit into the budget: about ", text) for _, text in shown)
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)


def test_a_stopped_call_goes_on(board: Leaderboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        ticks = count(time.monotonic(), 1.0)  # a second passes whenever somebody looks
        patch.setattr(contest, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        stopped = hmlet.leaderboard(checkerboard(), out, models=["lightgcn"], minutes=0.2, device="cpu")
    assert by_name(stopped)["lightgcn"].note == "stopped: the time is over; run the command again to go on"
    assert len((out / "runs" / "lightgcn" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) >= 5
    went_on = hmlet.leaderboard(checkerboard(), out, models=["lightgcn"], device="cpu")
    assert by_name(went_on)["lightgcn"].test.means == by_name(board)["lightgcn"].test.means


# -- what cannot be -----------------------------------------------------------------------------------------------


def test_other_data_in_the_same_directory_is_refused(board: Leaderboard) -> None:
    with pytest.raises(RunError, match=r"is for another data set \([0-9a-f]{12} there, [0-9a-f]{12} here\)"):
        hmlet.leaderboard(checkerboard(3), board.out, models=["chance"], device="cpu")


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_minutes_must_be_a_positive_number(minutes: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a positive number"):
        hmlet.leaderboard("debian", tmp_path / "out", minutes=minutes)
    assert not list(tmp_path.iterdir())


def test_a_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model 'lightgnc'"):
        hmlet.leaderboard(checkerboard(), tmp_path / "out", models=["lightgnc"])
    untested = dataset(2, 3, train=[(0, 0), (1, 1)], valid=[(0, 1)])
    with pytest.raises(NothingHeldOut, match="has nothing in the test part"):
        hmlet.leaderboard(untested, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="is neither empty nor a leaderboard"):
        hmlet.leaderboard(checkerboard(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
