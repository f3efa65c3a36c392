"""`hmlet compare` and `hmlet tune`: the contract of CLI.md, on runs that were trained and stored."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from searched import planted

from hmlet.api import Run, fit
from hmlet.cli import main
from hmlet.config import resolve
from hmlet.models import FLOOR
from hmlet.ranking.statistics import TABLE
from hmlet.runs.comparison import compare_runs

QUICK = ["train.epochs=3", "train.validate_every=1", "train.batch_size=32", "model.embedding_size=8"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted().save(tmp_path_factory.mktemp("data") / "planted")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """bpr with two seeds, and lightgcn."""
    place = tmp_path_factory.mktemp("runs")
    for name, model, seed in (("bpr-1", "bpr", 1), ("bpr-2", "bpr", 2), ("gcn", "lightgcn", 1)):
        fit(planted(), resolve(model, overrides=QUICK, seed=seed), place / name, device="cpu")
    return {path.name: path for path in place.iterdir()}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The standard output of a command that must succeed and say nothing else."""
    assert main([str(argument) for argument in arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_a_terminal_shows_the_best_in_bold(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns stay as wide as in a pipe, which gets Markdown."""
    command = ("compare", runs["gcn"], runs["bpr-1"])
    piped = run(capsys, *command)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = run(capsys, *command)
    (best,) = {word for line in piped.splitlines()[2:4] for word in re.findall(r"\*\*(.+?)\*\*", line.split(" | ")[1])}
    assert f"\x1b[1m{best}\x1b[0m" in shown
    assert "*" not in shown
    plain = re.sub(r"\x1b\[\d+m", "", shown)
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in piped.splitlines()]


def test_json_has_what_the_contract_names(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    answer: dict[str, Any] = json.loads(run(capsys, "compare", *runs.values(), "-k", 5, "--json"))
    assert (answer["split"], answer["mask"], answer["k"], answer["users"]) == ("test", "train", 5, 16)
    evaluations = {name: Run.open(path).evaluate("test", "train", 5) for name, path in runs.items()}
    bpr = (evaluations["bpr-1"].per_user["ndcg"] + evaluations["bpr-2"].per_user["ndcg"]) / 2
    gcn = evaluations["gcn"].per_user["ndcg"]
    ndcg = answer["metrics"]["ndcg"]
    assert ndcg["means"] == pytest.approx({"bpr": bpr.mean(), "lightgcn": gcn.mean()})
    assert ndcg["stds"]["lightgcn"] is None
    seeds = [evaluations[name].metrics["ndcg"] for name in ("bpr-1", "bpr-2")]
    assert ndcg["stds"]["bpr"] == pytest.approx(np.std(seeds, ddof=1))
    gap = abs(gcn.mean() - bpr.mean())
    assert ndcg["difference_percent"] == pytest.approx(100 * gap / min(gcn.mean(), bpr.mean()))
    assert ndcg["t_test_p"] == pytest.approx(scipy.stats.ttest_rel(bpr, gcn).pvalue)
    assert ndcg["wilcoxon_p"] == pytest.approx(scipy.stats.wilcoxon(bpr, gcn).pvalue)
    assert ndcg["interval"][0] <= ndcg["difference"] <= ndcg["interval"][1]
    assert set(answer["metrics"]) >= {"ndcg", "recall", "precision"}


def test_the_table_ends_in_a_plain_sentence(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "compare", runs["bpr-1"], runs["gcn"]).splitlines()
    assert lines[0].split("|")[2].strip() == "NDCG@20"
    assert sum("**" in line for line in lines) >= 1
    assert lines[-2] == ""
    assert lines[-1].endswith(".")
    assert "NDCG@20" in lines[-1]


def test_the_floor_is_popularity_counted_by_hand(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Each user's list is the most popular items of training that the user lacks, ties by number."""
    data = Run.open(runs["gcn"]).data
    counts = np.bincount(data.csr("train").items, minlength=data.n_items)
    by_count = sorted(range(data.n_items), key=lambda item: (-counts[item], item))
    recalls = []
    for user in range(data.n_users):
        known, wanted = set(data.csr("train").row(user)), set(data.csr("test").row(user))
        if wanted:
            listed = [item for item in by_count if item not in known][:5]
            recalls.append(len(wanted & set(listed)) / len(wanted))
    answer = json.loads(run(capsys, "compare", runs["bpr-1"], runs["gcn"], "-k", 5, "--json"))
    assert answer["floor"]["model"] == FLOOR
    assert answer["floor"]["means"]["recall"] == pytest.approx(np.mean(recalls))
    assert answer["floor"]["means"].keys() == answer["metrics"].keys()
    assert set(answer["metrics"]["ndcg"]["means"]) == {"bpr", "lightgcn"}  # the contract's keys are of the runs alone
    lines = run(capsys, "compare", runs["bpr-1"], runs["gcn"], "-k", 5).splitlines()
    (last,) = [at for at, line in enumerate(lines) if line.startswith("| best against")]
    cells = [cell.strip() for cell in lines[last - 1].split("|")[1:-1]]
    assert cells == ["popularity (floor)", *(f"{answer['floor']['means'][name]:.4f}" for name in TABLE)]


def test_a_run_of_the_floor_is_the_floor(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    floor = fit(planted(), FLOOR, tmp_path / "floor", device="cpu")
    computed = compare_runs([Run.open(runs["gcn"]), Run.open(runs["bpr-1"])]).floor
    assert computed is not None
    stored = floor.evaluate().metrics
    assert computed == {name: stored[name] for name in computed}
    assert compare_runs([Run.open(runs["gcn"]), floor]).floor is None
    assert "(floor)" not in run(capsys, "compare", runs["gcn"], tmp_path / "floor")


def test_without_the_data_runs_are_compared_without_the_floor(
    runs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = []
    for name in ("bpr-1", "gcn"):
        Run.open(runs[name]).evaluate()
        shutil.copytree(runs[name], tmp_path / name)
        shutil.rmtree(tmp_path / name / "data")
        opened.append(Run.open(tmp_path / name))
    assert compare_runs(opened).floor is None
    assert "popularity, the floor, could not be computed: the data of " in caplog.text


def test_a_run_is_level_with_itself(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "compare", runs["gcn"], runs["gcn"], "--json"))
    for metric in answer["metrics"].values():
        assert (metric["difference"], metric["t_test_p"], metric["wilcoxon_p"]) == (0.0, 1.0, 1.0)


def test_progress_reaches_the_last_run(runs: dict[str, Path]) -> None:
    told: list[tuple[float, float]] = []
    compare_runs([Run.open(path) for path in runs.values()], advance=lambda *step: told.append(step))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_one_run_is_nothing_to_compare(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs["gcn"])]) == 2
    assert capsys.readouterr().err.startswith("error: only lightgcn to compare")


def test_other_data_is_refused(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(planted(18), resolve("bpr", overrides=QUICK), tmp_path / "other", device="cpu")
    assert main(["compare", str(runs["gcn"]), str(tmp_path / "other")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "was trained on planted (" in err
    assert "compare runs on one data set" in err


def test_tune_writes_a_recipe_that_train_takes(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "space.toml").write_text('[space]\n"train.learning_rate" = [1e-3, 1e-1]\n')
    command = ["tune", data, "--model", "bpr", "--out", tmp_path / "my search", "--space", tmp_path / "space.toml"]
    options = ["--device", "cpu", *(word for value in QUICK for word in ("--set", value))]
    answer = json.loads(run(capsys, *command, *options, "--json"))
    assert answer["trials"] == {"complete": 2}
    assert answer["config"] == str(tmp_path / "my search" / "best.toml")
    told = run(capsys, *command, *options)
    assert "best of 2 trials" in told
    assert shlex.split(told.splitlines()[1])[-3:] == [answer["config"], "--out", "RUN"]  # ready to be pasted
    train = [
        "train",
        data,
        "--model",
        "bpr",
        "--config",
        answer["config"],
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
    ]
    assert main([str(word) for word in [*train, "--json"]]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["valid"]["ndcg"] == answer["best"]["value"]  # one recipe, one result
