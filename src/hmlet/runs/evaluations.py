"""Evaluations that a run keeps: metrics by user in per_user.parquet, coverage in the record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmlet.errors import RunError
from hmlet.ranking import metrics
from hmlet.ranking.evaluation import Evaluation
from hmlet.runs.directory import RunDirectory

PER_USER = "per_user.parquet"


def stored_evaluation(run: RunDirectory, split: str, mask: str, k: int) -> Evaluation | None:
    """The stored evaluation; None if there is none, or if it lacks a metric that was added later."""
    coverage = run.record.coverage.get(_key(split, mask, k))
    if coverage is None:
        return None
    try:
        table = run.read_table(PER_USER)
    except RunError:  # another process may be adding to it; if nobody is, the second attempt fails for good
        with run.alone():
            table = run.read_table(PER_USER)
    rows = table.filter(_is_of(table, split, mask, k))
    if not _has_all_metrics(rows):
        return None
    values = {name: rows[name].to_numpy() for name in metrics.METRICS}
    return Evaluation(split, mask, k, rows["user"].to_numpy().astype(np.int64), values, coverage)


def store_evaluation(run: RunDirectory, result: Evaluation) -> None:
    """Add an evaluation to the run, unless another process has stored it; rows that lack a metric are replaced."""
    setting = result.split, result.mask, result.k
    count = len(result.users)
    rows = pa.table(
        {
            "split": pa.array([result.split] * count, pa.string()),
            "mask": pa.array([result.mask] * count, pa.string()),
            "k": pa.array(np.full(count, result.k, dtype=np.int64)),
            "user": pa.array(result.users.astype(np.int32)),
            **{name: pa.array(values) for name, values in result.per_user.items()},
        }
    )
    with run.update():
        if PER_USER in run.record.files:
            table = run.read_table(PER_USER)
            own = _is_of(table, *setting)
            if _key(*setting) in run.record.coverage and _has_all_metrics(table.filter(own)):
                return
            others = table.filter(pc.invert(own))  # a process that was killed may have left rows without a coverage
            rows = pa.concat_tables([others, rows], promote_options="permissive")  # k was 32 bits once
        run.write_table(PER_USER, rows)
        run.record = run.record.with_coverage(_key(*setting), result.coverage)


def _key(split: str, mask: str, k: int) -> str:
    """The name of an evaluation in the record's `coverage`."""
    return f"{split} {mask} {k}"


def _is_of(table: pa.Table, split: str, mask: str, k: int) -> pa.ChunkedArray:
    """Which rows of per_user.parquet an evaluation has."""
    return pc.and_(pc.and_(pc.equal(table["split"], split), pc.equal(table["mask"], mask)), pc.equal(table["k"], k))


def _has_all_metrics(rows: pa.Table) -> bool:
    """Whether rows have a value of every metric. Rows older than a metric have nulls in its column, or no column."""
    return all(name in rows.column_names and not rows[name].null_count for name in metrics.METRICS)
