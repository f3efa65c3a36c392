"""Stored evaluations after a metric has been added: what lacks it is computed again and replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gated_run import make_run, small_data
from torch import Tensor

from hmlet.ranking import evaluation, metrics
from hmlet.ranking.evaluation import Evaluation
from hmlet.runs.evaluations import PER_USER
from hmlet.runs.finished import FinishedRun

NEW = "first_hit"
compute = metrics.per_user


def with_one_more(hits_BK: Tensor, relevant_B: Tensor, k: int) -> dict[str, Tensor]:
    return {**compute(hits_BK, relevant_B, k), NEW: hits_BK[:, 0].double()}


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    """A run that has stored two evaluations."""
    directory = make_run(tmp_path / "run", small_data(), model="lightgcn")
    for k in (5, 10):
        FinishedRun(directory).evaluate(k=k)
    return FinishedRun.open(directory.path)


@pytest.fixture
def one_more_metric(run: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (*metrics.METRICS, NEW)
    monkeypatch.setattr(metrics, "METRICS", names)
    monkeypatch.setattr(evaluation, "METRICS", names)
    monkeypatch.setattr(evaluation, "per_user", with_one_more)


def test_an_added_metric_is_computed_for_every_stored_evaluation(
    run: FinishedRun, request: pytest.FixtureRequest
) -> None:
    before = {k: run.evaluate(k=k) for k in (5, 10)}
    request.getfixturevalue("one_more_metric")
    # The first finds no column. It writes one, in which the second's rows have no values.
    for k, old in before.items():
        new = FinishedRun.open(run.directory.path).evaluate(k=k)
        assert np.isfinite(new.per_user[NEW]).all()
        assert new.metrics == old.metrics | {NEW: float(new.per_user[NEW].mean())}
    table = FinishedRun.open(run.directory.path).directory.read_table(PER_USER, {})
    users = len(before[5].users)
    assert table["k"].to_pylist() == [5] * users + [10] * users  # each row once
    assert table[NEW].null_count == 0


@pytest.mark.usefixtures("one_more_metric")
def test_what_was_computed_again_is_stored(run: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    new = run.evaluate(k=5)

    def fail(*arguments: object) -> None:
        raise AssertionError("evaluated once more")

    monkeypatch.setattr("hmlet.runs.finished.evaluate_at", fail)
    assert FinishedRun.open(run.directory.path).evaluate(k=5).metrics == new.metrics


def test_what_does_not_fit_on_a_device_is_evaluated_on_the_cpu(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A spelling of the CPU that is not "cpu" stands for the device."""
    assert run.evaluate(k=7, device="cpu:0").metrics == run.evaluate(k=7).metrics
    tried: list[type] = []

    def short_of_memory(scored: tuple[Tensor, Any], *arguments: Any, **options: Any) -> list[Evaluation]:
        tried.append(type(scored[1]))
        if isinstance(scored[1], Tensor):
            raise torch.OutOfMemoryError("full")
        return evaluation.evaluate_at(scored, *arguments, **options)

    monkeypatch.setattr("hmlet.runs.finished.evaluate_at", short_of_memory)
    found = run.evaluate(k=8, device="cpu:0")
    assert tried == [Tensor, type(run.scored[1])]
    assert "evaluated on the CPU" in caplog.text
    monkeypatch.undo()
    assert found.metrics == run.evaluate(k=8).metrics
