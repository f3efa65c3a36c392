"""What gates chose: tables that are written and read again, the branch of a probability, the classes one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from gated_run import gates_table as written
from gated_run import make_run, small_data

from hmlet.errors import RunError
from hmlet.runs.choices import CLASSES, Choices, gates_table, is_nonlinear


def test_a_gate_chooses_the_likelier_branch_and_the_linear_one_in_a_tie() -> None:
    probability = [0.0, 0.4999, 0.5, 0.5001, 1.0]
    assert is_nonlinear(torch.tensor(probability)).tolist() == [False, False, False, True, True]
    assert is_nonlinear(np.array(probability)).tolist() == [False, False, False, True, True]


def test_what_is_written_is_read_again() -> None:
    gates = {4: torch.tensor([0.25, 0.75, 0.5]), 2: torch.tensor([1.0, 0.0, 0.75])}
    got = Choices.from_table(gates_table(gates), 3, "gates")
    assert got.layers == (2, 4)
    assert got.probability_NL.tolist() == [[1.0, 0.25], [0.0, 0.75], [0.75, 0.5]]
    assert got.nonlinear_NL.tolist() == [[True, False], [False, True], [True, False]]


def test_a_run_without_gates_chose_nothing(tmp_path: Path) -> None:
    data = small_data(6, 4)
    assert Choices.read(make_run(tmp_path / "plain", data, model="lightgcn"), 10) is None
    got = Choices.read(make_run(tmp_path / "end", data, probability=np.full((10, 2), 0.75)), 10)
    assert got is not None
    assert got.nonlinear_NL.all()


def test_a_table_in_any_order_gives_the_same_choices() -> None:
    rng = np.random.default_rng(0)
    nonlinear = rng.random((7, 2)) < 0.5
    rows = written(np.where(nonlinear, 0.9, 0.1))
    for order in (np.arange(14), rng.permutation(14)):
        got = Choices.from_table(rows.take(pa.array(order)), 7, "gates")
        assert got.layers == (3, 4)
        np.testing.assert_array_equal(got.nonlinear_NL, nonlinear)
        np.testing.assert_allclose(got.probability_NL, np.where(nonlinear, 0.9, 0.1), atol=1e-7)


@pytest.mark.parametrize("broken", ["a row is missing", "a node stands twice", "empty"])
def test_an_incomplete_table_is_refused(broken: str) -> None:
    rows = written(np.ones((5, 2)))
    order = {"a row is missing": list(range(9)), "a node stands twice": [0, *range(9)], "empty": []}[broken]
    with pytest.raises(RunError, match=r"gates\.parquet has"):
        Choices.from_table(rows.take(pa.array(order, pa.int64())), 5, "gates.parquet")


def test_classes_one_by_one() -> None:
    chosen = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], dtype=bool)
    got = Choices((1, 2), chosen, chosen.astype(np.float32))
    assert [CLASSES[code] for code in got.classes] == ["fnl", "pnl", "pnl", "fl"]
    assert got.count.tolist() == [2, 1, 1, 0]
