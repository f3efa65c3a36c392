"""Evaluations that a run keeps: metrics by user in per_user.parquet, coverage in the record."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hmlet.errors import RunError
from hmlet.ranking import metrics
from hmlet.ranking.evaluation import Evaluation
from hmlet.runs.directory import RunDirectory
from hmlet.system.tables import Column

PER_USER = "per_user.parquet"
SETTING = {
    "split": Column((pa.string(),)),
    "mask": Column((pa.string(),)),
    "k": Column((pa.int64(),)),
    "user": Column((pa.int32(),)),
}


def stored_evaluation(run: RunDirectory, split: str, mask: str, k: int) -> Evaluation | None:
    """The stored evaluation; None if there is none, or if it lacks a metric that was added later."""
    coverage = run.record.coverage.get(_key(split, mask, k))
    if coverage is None:
        return None
    try:
        table = _read(run)
    except RunError:  # another process may be adding to it; if nobody is, the second attempt fails for good
        with run.alone():
            table = _read(run)
    rows = table.filter(_is_of(table, split, mask, k))
    if not _has_all_metrics(rows):
        return None
    values, users = {name: rows[name].to_numpy() for name in metrics.METRICS}, rows["user"].to_numpy().astype(np.int64)
    _require_sound(users, values, run)
    return Evaluation(split, mask, k, users, values, coverage)


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
            table = _read(run)
            own = _is_of(table, *setting)
            if _key(*setting) in run.record.coverage and _has_all_metrics(table.filter(own)):
                return
            others = table.filter(pc.invert(own))  # a process that was killed may have left rows without a coverage
            rows = pa.concat_tables([others, rows], promote_options="default")  # which may lack a newer metric
        run.write_table(PER_USER, rows)
        run.record = run.record.with_coverage(_key(*setting), result.coverage)


def _read(run: RunDirectory) -> pa.Table:
    """per_user.parquet: the setting of each row, and metrics, which older rows may lack."""
    number = Column((pa.float64(),), required=False, nulls=True)
    return run.read_table(PER_USER, SETTING | dict.fromkeys(metrics.METRICS, number))


def _require_sound(
    users: npt.NDArray[np.int64], values: Mapping[str, npt.NDArray[np.float64]], run: RunDirectory
) -> None:
    """Refuse an evaluation of nobody, users that are not in the run or in order, and metrics that are no numbers."""
    origin, count = run.origin(PER_USER), run.nodes[0]
    if not len(users) or users[0] < 0 or users[-1] >= count or (np.diff(users) <= 0).any():
        raise origin.fault(f": column 'user': it is not an ascending list of users from 0 to {count - 1}")
    for name, column in values.items():
        if not np.isfinite(column).all():
            raise origin.fault(f": column {name!r}: it has numbers that are not finite")


def _key(split: str, mask: str, k: int) -> str:
    """The name of an evaluation in the record's `coverage`."""
    return f"{split} {mask} {k}"


def _is_of(table: pa.Table, split: str, mask: str, k: int) -> pa.ChunkedArray:
    """Which rows of per_user.parquet an evaluation has."""
    return pc.and_(pc.and_(pc.equal(table["split"], split), pc.equal(table["mask"], mask)), pc.equal(table["k"], k))


def _has_all_metrics(rows: pa.Table) -> bool:
    """Whether rows have a value of every metric. Rows older than a metric have nulls in its column, or no column."""
    return all(name in rows.column_names and not rows[name].null_count for name in metrics.METRICS)
