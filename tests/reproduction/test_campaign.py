"""The campaign: killed anywhere it goes on, what is recorded is never trained again, and time is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_run import small_data
from planted import checkerboard
from planted_records import plant
from scipy import stats

from hmlet.cli import main
from hmlet.data import Dataset
from hmlet.errors import DataError, MissingExtra, RunError
from hmlet.reproduction import campaign, reproduce_choices
from hmlet.reproduction.campaign import CampaignProgress, Outcome, plan_runs, run_campaign
from hmlet.reproduction.plan import Choice
from hmlet.reproduction.records import RECORD_FILES, Records, pack, read_pack
from hmlet.runs.record import Hardware
from hmlet.training.loop import fit
from hmlet.training.trainer import Interrupted

BOARD = checkerboard()
TINY = ("train.epochs=4", "train.batch_size=256", "model.embedding_size=4", "train.validate_every=1")
# A checkpoint after every step: a kill then loses nothing, and the test sees where the run went on.
CHOICE = Choice("checkerboard", models=("lightgcn", "bpr"), seeds=2, overrides=(*TINY, "train.checkpoint_seconds=0"))


class Killed(BaseException):
    """Stands for a process that ends without a word."""


def go(out: Path, choice: Choice = CHOICE, data: Dataset = BOARD, **options: Any) -> Outcome:
    return run_campaign(plan_runs([choice]), {data.name: data}, out, device="cpu", **options)


def scores(out: Path) -> dict[str, dict[str, float]]:
    return {record.path.name: record.scores["train"] for record in Records.read(out).all}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which runs were trained, by directory, and in which epoch each began."""
    begun: list[tuple[str, int]] = []

    def noting(data: Dataset, recipe: Any, place: Path, *, listener: Callable[..., None], **options: Any) -> Any:
        epochs: list[int] = []

        def listen(event: dict[str, Any]) -> None:
            epochs.append(event["epoch"])
            listener(event)

        try:
            return fit(data, recipe, place, listener=listen, **options)
        finally:
            begun.append((place.name, epochs[0] if epochs else 0))

    monkeypatch.setattr(campaign, "fit", noting)
    return begun


def test_a_killed_campaign_goes_on_where_it_was(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    go(tmp_path / "whole")
    whole, trained[:] = [name for name, _ in trained], []
    assert len(whole) == 3  # two seeds of LightGCN, one of BPR

    def kill(progress: CampaignProgress) -> None:
        if progress.run.recipe.seed == 2 and progress.share > 0.5:
            raise Killed

    with pytest.raises(Killed):
        go(tmp_path / "cut", listener=kill)
    assert [name for name, _ in trained] == whole[:2]
    trained.clear()
    outcome = go(tmp_path / "cut")
    assert outcome.found == 1
    assert [path.name for path in outcome.trained] == whole[1:]
    assert trained == [(whole[1], 3), (whole[2], 1)]  # the second went on in the epoch that it was killed in
    assert scores(tmp_path / "cut") == scores(tmp_path / "whole")
    trained.clear()
    assert go(tmp_path / "cut") == Outcome(found=3)
    assert trained == []


def test_a_kill_while_recording_costs_no_training(
    tmp_path: Path, trained: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = Choice("checkerboard", models=("bpr",), overrides=TINY)

    def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(campaign, "write_paired", killed)
        with pytest.raises(Killed):
            go(tmp_path, choice)
    assert Records.read(tmp_path).all == []
    assert len(go(tmp_path, choice).trained) == 1
    assert [epoch for _, epoch in trained] == [1, 0]  # the second call found it trained


def test_only_small_files_stay(tmp_path: Path) -> None:
    choice = Choice("checkerboard", models=("bpr",), overrides=TINY)
    (place,) = go(tmp_path / "small", choice).trained
    assert {path.name for path in place.iterdir()} < set(RECORD_FILES)
    (place,) = go(tmp_path / "kept", choice, keep=True).trained
    assert (place / "factors.safetensors").is_file()
    assert go(tmp_path / "kept", choice).found == 1
    assert not (place / "factors.safetensors").exists()  # a campaign without --keep lets go of what it finds


def test_what_lost_its_weights_too_early_is_trained_again(tmp_path: Path) -> None:
    choice = Choice("checkerboard", models=("bpr",), overrides=TINY)
    (place,) = go(tmp_path, choice).trained
    (place / "paired.parquet").unlink()
    assert go(tmp_path, choice).trained == [place]
    assert Records.read(tmp_path).all[0].paired is not None


def test_no_run_is_started_that_would_not_fit(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    seen: list[float | None] = []
    (run, *others) = CHOICE.runs()
    plant(tmp_path, BOARD, run.recipe, (0.1, 0.1, 0.1), users=np.ones((4, 3)), seconds=600.0)
    outcome = go(tmp_path, minutes=9.0, listener=lambda progress: seen.append(progress.seconds_left))
    assert (outcome.found, outcome.trained, trained) == (1, [], [])
    assert outcome.left == [f"checkerboard/{each.name}" for each in others]
    assert len(go(tmp_path, minutes=60.0).trained) == 2


def test_the_first_of_its_kind_is_tried_and_the_rest_is_foretold(tmp_path: Path) -> None:
    told: list[CampaignProgress] = []
    go(tmp_path, minutes=5.0, listener=told.append)
    assert told[0].seconds_left is None
    last = told[-1]
    assert (last.share, last.done, last.wanted) == (1.0, 3, 3)
    assert last.seconds_left == pytest.approx(0.0, abs=0.01)
    assert [each.done for each in told] == sorted(each.done for each in told)


def test_a_new_kind_takes_its_epochs_at_the_pace_of_the_nearest(tmp_path: Path) -> None:
    here = Hardware.of("cpu").device
    recipe = CHOICE.runs()[0].recipe.changed(["train.epochs=10"])
    for at, seconds in enumerate((20.0, 30.0, 400.0)):  # a slow one is no measure for all
        plant(tmp_path, BOARD, recipe.changed([f"train.l2=0.{at + 1}"]), (0.1, 0.1, 0.1), seconds=seconds)
    records = Records.read(tmp_path)
    assert records.seconds("checkerboard", recipe.changed(["train.epochs=5"]), here) == pytest.approx(15.0)
    assert records.seconds("checkerboard", recipe.changed(["train.l2=0.3"]), here) == 400.0
    assert records.seconds("checkerboard", recipe, "another device") is None


def test_a_model_that_cannot_run_here_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(data: Dataset, recipe: Any, *arguments: Any, **options: Any) -> Any:
        if recipe.model.name == "lightgcn":
            raise MissingExtra("LightGCN", "a library", "wrmf")
        return fit(data, recipe, *arguments, **options)

    monkeypatch.setattr(campaign, "fit", without)
    outcome = go(tmp_path)
    assert len(outcome.trained) == 1
    assert len(outcome.skipped) == 2
    assert all("a library" in reason for reason in outcome.skipped.values())


def test_a_campaign_that_is_asked_to_stop_leaves_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> Any:
        raise Interrupted("stopped in epoch 2; everything is saved", "go on with --resume")

    monkeypatch.setattr(campaign, "fit", stopped)
    with pytest.raises(Interrupted, match="call it again"):
        reproduce_choices([CHOICE], {BOARD.name: BOARD}, tmp_path, device="cpu")
    assert "0 of 3 runs" in (tmp_path / "reproduction.html").read_text(encoding="utf-8")


def test_other_data_under_the_same_name_counts_for_nothing(tmp_path: Path) -> None:
    choice = Choice("small", models=("bpr",), overrides=TINY)
    one, other = small_data(seed=1), small_data(seed=2)
    one.name = other.name = "small"
    assert len(go(tmp_path, choice, one).trained) == 1
    records = Records.read(tmp_path)
    (run,) = choice.runs()
    assert records.find("small", run.recipe, one.fingerprint) is not None
    assert records.find("small", run.recipe, other.fingerprint) is None


# -- one file for all -----------------------------------------------------------------------------------------------


def test_packed_records_are_the_same_elsewhere(tmp_path: Path) -> None:
    packed = tmp_path / "here" / "records.jsonl"
    outcome = go(tmp_path / "there", packed=packed)
    assert scores(tmp_path / "here") == scores(tmp_path / "there")
    assert go(tmp_path / "here").found == len(outcome.trained)
    before, after = (Records.read(tmp_path / place).all for place in ("there", "here"))
    assert [each.name for each in before] == [each.name for each in after]
    for one, other in zip(before, after, strict=True):
        assert one.run.metrics() == other.run.metrics()
        assert (one.paired is None) == (other.paired is None)
        if one.paired is not None and other.paired is not None:
            np.testing.assert_array_equal(one.paired.users, other.paired.users)


@pytest.mark.parametrize(
    "line",
    [
        {"run": "../x", "file": "run.json", "content": ""},
        {"run": "a/..", "file": "run.json", "content": ""},
        {"run": "/etc/x", "file": "run.json", "content": ""},
        {"run": "a/b/c", "file": "run.json", "content": ""},
        {"run": "a/b", "file": "weights.bin", "content": ""},
        {"run": "a/b", "file": "../run.json", "content": ""},
        {"run": "a/b", "file": "run.json"},
        {"run": "a/b", "file": "run.json", "content": 1},
        {"run": "a/b", "file": "paired.parquet", "base64": "?"},
        ["a/b"],
    ],
)
def test_a_line_that_is_no_records_is_refused(line: object, tmp_path: Path) -> None:
    pack = tmp_path / "hostile.jsonl"
    pack.write_text(json.dumps(line) + "\n")
    with pytest.raises(DataError, match="line 1"):
        read_pack(pack)


def test_a_packed_file_that_was_changed_is_noticed(tmp_path: Path) -> None:
    pack = tmp_path / "records.jsonl"
    go(tmp_path / "there", packed=pack)
    text = pack.read_text()
    assert '"content": "seed = 1\\n' in text
    pack.write_text(text.replace('"content": "seed = 1\\n', '"content": "seed = 1\\n\\n'))
    with pytest.raises(RunError, match=r"records\.jsonl.*is damaged"):
        Records.read(tmp_path)


def test_packing_takes_nothing_but_records(tmp_path: Path) -> None:
    (place,) = go(tmp_path, Choice("checkerboard", models=("bpr",), overrides=TINY), keep=True).trained
    pack([place], tmp_path / "all.jsonl")
    (files,) = read_pack(tmp_path / "all.jsonl").values()
    assert {"config.toml", "run.json"} <= set(files) < set(RECORD_FILES)
    assert all((place / name).read_bytes() == data for name, data in files.items())


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_runs_end_to_end_on_the_embedded_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What CI runs of the campaign: three models on debian, small, then once more to find everything done."""
    tiny = ["train.epochs=2", "train.batch_size=16384", "model.embedding_size=4"]
    sizes = [word for override in tiny for word in ("--set", override)]
    models = [word for name in ("hmlet-end", "lightgcn", "bpr") for word in ("--model", name)]
    command = [
        "reproduce",
        "--dataset",
        "debian",
        "--seeds",
        "1",
        *models,
        *sizes,
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["found"], len(found["trained"]), found["left"], found["skipped"]) == (0, 3, [], {})
    table = found["datasets"]["debian"]["main"]
    assert {name: row["seeds"] for name, row in table.items()} == {"hmlet-end": 1, "lightgcn": 1, "bpr": 1}
    assert 0 < table["hmlet-end"]["ndcg"]["mean"] < 1
    assert found["datasets"]["debian"]["claims"]["HMLET(End) beats every baseline"] == gain_verdict(tmp_path)
    page = Path(found["page"]).read_text(encoding="utf-8")
    assert "HMLET, reproduced: debian" in page
    assert "train.epochs=2" in page
    assert main([*command, "--plan", "--json"]) == 0
    assert [run["done"] for run in json.loads(capsys.readouterr().out)["runs"]] == [True] * 3
    (first, *_) = Records.read(tmp_path).all
    before = first.path.stat().st_mtime_ns
    assert main(command) == 0
    assert "3 already recorded, 0 trained" in capsys.readouterr().out
    assert first.path.stat().st_mtime_ns == before


def gain_verdict(out: Path) -> str:
    """Whether HMLET(End) beats both baselines, by SciPy's paired test of the recorded users; one seed has no other."""
    ndcg = {record.recipe.model.name: record.paired.per_user["ndcg"] for record in Records.read(out).all}
    ours = ndcg.pop("hmlet-end")
    tests = [stats.ttest_rel(ours, theirs) for theirs in ndcg.values()]
    if any(test.pvalue < 0.05 and test.statistic < 0 for test in tests):
        return "does not hold"
    return "holds" if all(test.pvalue < 0.05 for test in tests) else "too weak to say"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "nowhere"], "nowhere"),
        (["--table", "figures"], "figures"),
        (["--model", "svd"], "svd"),
        (["--minutes", "0"], "--minutes 0"),
        (["--preset", "paper"], "no recipe for"),
        (["--set", "train.epoch=3"], "train.epoch"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_a_wrong_call_says_what_to_do(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert not (tmp_path / "out").exists()
