"""Timestamps of every spelling as whole numbers.

Integers stay what they are; fractional numbers are seconds and become microseconds; dates become microseconds since
1970, in UTC where they name no zone. Dates are ISO 8601 or, if the user says so, begin with the day.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    misfits, rows = dict[str, int](), 0
    for kind, types in _TIME_TYPES.items():
        if kind == ("ISO dates" if dialect.day_first else "day-first dates"):
            continue
        if dtype in types or (kind == "whole numbers" and dtype.is_integer()):
            counts = source.rows.select(_TIME_KINDS[kind](column).null_count().alias("misfits"), rows=pl.len())
            misfits[kind], rows = counts.collect(engine="streaming").row(0)
            if misfits[kind] == 0:
                return kind, 0
    likely = sorted(misfits, key=lambda kind: misfits[kind])
    meant = likely[-1] if misfits[likely[0]] == rows else likely[0]  # text that fits none is meant as a date
    return meant, misfits[meant]


def time_check(kind: str) -> Check:
    return Check(
        "timestamp",
        _TIME_KINDS[kind](pl.col("timestamp")).is_null(),
        f"the timestamp {{value}} is not one of the column's {kind}",
        f"write whole numbers, seconds or ISO 8601 dates, with four-digit years, throughout (if the day comes first, "
        f"pass {option('day_first', True)})",
    )


def _seconds(column: pl.Expr) -> pl.Expr:
    seconds = column.cast(pl.Float64, strict=False)
    fits = seconds.is_finite() & (seconds.abs() < 9.2e12)
    return pl.when(fits).then((seconds * 1e6).round()).cast(pl.Int64)


def _date(column: pl.Expr) -> pl.Expr:
    """Microseconds since 1970 of dates, or of their ISO 8601 text with or without time and zone."""
    text = _with_year(column.str.replace(" ", "T", literal=True), r"^\d{4}")
    forms = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y%m%dT%H%M%S%.f", "%Y%m%dT%H%M")
    zoned = [
        text.str.to_datetime(f"{form}%#z", time_unit="us", time_zone="UTC", strict=False).dt.replace_time_zone(None)
        for form in forms
    ]
    return _moment(text, forms, "%Y-%m-%d", zoned)


def _day_first(column: pl.Expr) -> pl.Expr:
    """Microseconds since 1970 of dates such as 31/12/2024 or 31.12.2024, with or without a time."""
    text = _with_year(column.str.replace_all(r"[./]", "-"), r"^\d{1,2}-\d{1,2}-\d{4}")
    return _moment(text, ("%d-%m-%Y %H:%M:%S%.f", "%d-%m-%Y %H:%M"), "%d-%m-%Y")


def _with_year(text: pl.Expr, pattern: str) -> pl.Expr:
    """The text where it has a year of four digits, which parsing does not ask for."""
    return pl.when(text.str.contains(pattern)).then(text)


def _moment(text: pl.Expr, forms: Sequence[str], day: str, more: Sequence[pl.Expr] = ()) -> pl.Expr:
    times = [text.str.to_datetime(form, time_unit="us", strict=False) for form in forms]
    midnight = text.str.to_date(day, strict=False).cast(pl.Datetime("us"))
    return pl.coalesce(*more, *times, midnight).cast(pl.Int64)


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
