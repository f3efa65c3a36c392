"""Timestamps of every spelling as whole numbers.

Integers stay what they are; fractional numbers are seconds and become microseconds; dates become microseconds since
1970, in UTC where they name no zone. Dates are ISO 8601 or, if the user says so, begin with the day.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from hmlet.data.dialect import Dialect, or_skip
from hmlet.data.readers.format import Check, Source
from hmlet.errors import DataError
from hmlet.system.spelling import option


def timestamp(source: Source, time_kinds: dict[str, str], dialect: Dialect) -> pl.Expr:
    """The expression that makes the timestamp int64, of the one kind that fits every row of every file."""
    kind, misfits = time_kind(source, dialect)
    if misfits:
        raise or_skip(source.first_fault(*time_check(kind)))
    for other, file in time_kinds.items():
        if other != kind:
            raise DataError(f"{source.shown} has {kind} as timestamps, and {file} has {other}", "write them in one way")
    time_kinds[kind] = source.shown
    return _TIME_KINDS[kind](pl.col("timestamp")).alias("timestamp")


def time_kind(source: Source, dialect: Dialect) -> tuple[str, int]:
    """The first kind that fits every row, or the one that fits most, and the number of rows that it does not fit."""
    column, dtype = pl.col("timestamp"), source.rows.collect_schema()["timestamp"]
    misfits = {}
    for kind, types in _TIME_TYPES.items():
        if kind == ("ISO dates" if dialect.day_first else "day-first dates"):
            continue
        if dtype in types or (kind == "whole numbers" and dtype.is_integer()):
            misfits[kind] = (
                source.rows.select(_TIME_KINDS[kind](column).null_count()).collect(engine="streaming").item()
            )
            if misfits[kind] == 0:
                return kind, 0
    meant = min(misfits, key=lambda kind: misfits[kind])
    return meant, misfits[meant]


def time_check(kind: str) -> Check:
    return Check(
        "timestamp",
        _TIME_KINDS[kind](pl.col("timestamp")).is_null(),
        f"the timestamp {{value}} is not one of the column's {kind}",
        f"write whole numbers, seconds or ISO 8601 dates throughout (if the day comes first, pass "
        f"{option('day_first', True)})",
    )


def _seconds(column: pl.Expr) -> pl.Expr:
    seconds = column.cast(pl.Float64, strict=False)
    fits = seconds.is_finite() & (seconds.abs() < 9.2e12)
    return pl.when(fits).then((seconds * 1e6).round()).cast(pl.Int64)


def _date(column: pl.Expr) -> pl.Expr:
    """Microseconds since 1970 of dates, or of their ISO 8601 text with or without time and zone."""
    text = column.str.replace(" ", "T").str.replace("Z$", "+00:00")
    zoned = text.str.to_datetime(
        "%Y-%m-%dT%H:%M:%S%.f%:z", time_unit="us", time_zone="UTC", strict=False
    ).dt.replace_time_zone(None)
    local = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
    day = text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us"))
    return pl.coalesce(zoned, local, day).cast(pl.Int64)


def _day_first(column: pl.Expr) -> pl.Expr:
    """Microseconds since 1970 of dates such as 31/12/2024 or 31.12.2024, with or without a time."""
    text = column.str.replace_all(r"[./]", "-")
    forms = ("%d-%m-%Y %H:%M:%S%.f", "%d-%m-%Y %H:%M")
    times = [text.str.to_datetime(form, time_unit="us", strict=False) for form in forms]
    day = text.str.to_date("%d-%m-%Y", strict=False).cast(pl.Datetime("us"))
    return pl.coalesce(*times, day).cast(pl.Int64)


_TIME_KINDS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "whole numbers": lambda column: column.cast(pl.Int64, strict=False),
    "seconds": _seconds,
    "dates": lambda column: column.dt.epoch("us"),
    "ISO dates": _date,
    "day-first dates": _day_first,
}
_TIME_TYPES: dict[str, tuple[Any, ...]] = {
    "whole numbers": (pl.String,),
    "seconds": (pl.String, pl.Float32, pl.Float64),
    "dates": (pl.Date, pl.Datetime),
    "ISO dates": (pl.String,),
    "day-first dates": (pl.String,),
}
