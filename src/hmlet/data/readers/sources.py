"""Files of any registered format, or a frame, become interactions.

Ids keep their type: 64-bit integers stay integers, everything else is a string. In CSV and TSV, where nothing has a
type, a column is integers if each of its values is one in plain spelling (`7`, not `007`). Indices follow the sorted
ids (integers by value, strings by their UTF-8 bytes), so the order of the rows never matters.

Timestamps: integers stay what they are; fractional numbers are seconds and become microseconds; ISO 8601 dates become
microseconds since 1970, in UTC where they name no zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from hmlet.data.columns import Columns, NamesColumns
from hmlet.data.guessing import SampledColumn
from hmlet.data.interactions import Interactions, Vocabulary, merge
from hmlet.data.readers import FORMATS
from hmlet.data.readers.format import ID_ROLES, Format, Source, typed_source
from hmlet.data.record import FileRead, Provenance
from hmlet.data.text import PACKED_SUFFIXES, open_text, require_file
from hmlet.errors import DataError
from hmlet.system.spelling import option

_PLAIN_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
_WHOLE_FLOAT = r"^-?[0-9]+\.0*$"
_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


def read_files(
    files: Sequence[Path],
    columns: Columns,
    format: str | None = None,
    min_rating: float | None = None,
    by_file: bool = False,
    delimiter: str | None = None,
) -> tuple[Interactions, npt.NDArray[np.uint8] | None]:
    """The interactions of one or more files and, with `by_file`, the number of the file that each is from."""
    frames, untyped, described = [], [], []
    kinds: dict[str, str] = {}
    for number, path in enumerate(files):
        require_file(path)  # before its name is asked for a format
        used = _named_format(format) if format else format_of(path)
        with _open(path, used, columns, delimiter) as source:
            frame, rows = _load(source, min_rating, kinds)
        frames.append(frame.with_columns(pl.lit(number, pl.UInt8).alias("part")) if by_file else frame)
        untyped.append(source.untyped)
        described.append(FileRead(file=path.name, format=used.name, rows=rows, below_min_rating=rows - frame.height))
    return _encode(frames, untyped, described, min_rating)


def sample_file(path: Path, format: str | None, delimiter: str | None, rows: int) -> list[SampledColumn] | None:
    """The first rows of every column of a file; None where its format has no columns."""
    require_file(path)
    used = _named_format(format) if format else format_of(path)
    used.check_options(path, delimiter)
    with open_text(path) as text:
        return used.sample(text, delimiter, rows)


def read_frame(frame: Any, columns: Columns, min_rating: float | None = None) -> Interactions:
    """The interactions of a Polars or pandas frame or a pyarrow table."""
    lazy = _as_polars(frame).lazy()
    source = typed_source("the frame", lazy, columns, lambda row: f"row {row}")
    loaded, rows = _load(source, min_rating, {})
    described = FileRead(file=None, format="frame", rows=rows, below_min_rating=rows - loaded.height)
    return _encode([loaded], [source.untyped], [described], min_rating)[0]


def read_names(path: Path, kind: str) -> dict[str, str]:
    """The readable name of each id (as text) from a file of two columns, id and name."""
    require_file(path)
    format = format_of(path)
    if not format.has_columns:
        *most, last = [each.name for each in FORMATS.values() if each.has_columns]
        raise DataError(
            f"{path} has no columns", f"give a {', '.join(most)} or {last} file with the columns id and name"
        )
    with _open(path, format, NamesColumns()) as source:
        frame = source.rows.select(pl.col("user").cast(pl.String), pl.col("item").cast(pl.String)).collect()
    if frame["user"].null_count() or frame["user"].is_duplicated().any():
        raise DataError(f"{path} names the same {kind} twice or leaves an id empty", "give each id one line")
    return dict(zip(frame["user"].to_list(), frame["item"].to_list(), strict=True))


def format_of(path: Path) -> Format:
    """The format that a file's name promises; `.gz` and `.zst` after it do not count."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    claimed = {suffix: format for format in FORMATS.values() for suffix in format.suffixes}
    found = claimed.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise DataError(
            f"the format of {path} cannot be guessed from its name",
            f"pass {option('format')} ({', '.join(FORMATS)}), or use one of {', '.join(claimed)}",
        )
    return found


def _named_format(name: str) -> Format:
    if name not in FORMATS:
        raise DataError(f"there is no format {name!r}", f"use one of {', '.join(FORMATS)}")
    return FORMATS[name]


@contextmanager
def _open(path: Path, format: Format, columns: Columns, delimiter: str | None = None) -> Iterator[Source]:
    """The rows of one file, readable while it is open."""
    format.check_options(path, delimiter)
    with open_text(path) as text:
        try:
            yield format.read(text, columns, delimiter)
        except _POLARS_ERRORS as error:
            raise format.explain(text, error) from error


def _load(source: Source, min_rating: float | None, time_kinds: dict[str, str]) -> tuple[pl.DataFrame, int]:
    """The checked rows of one source that reach the threshold, and the number of rows before that."""
    wanted = [pl.col("^(user|item|user_name|item_name)$")]
    if "rating" in source.columns:
        wanted.append(pl.col("rating").cast(pl.Float64, strict=False))
    if "timestamp" in source.columns:
        wanted.append(_timestamp(source, time_kinds))
    frame = source.rows.select(wanted).collect(engine="streaming")
    if source.expected not in (None, frame.height):
        raise DataError(
            f"{source.shown} has {source.expected} rows, and {frame.height} could be read", "save it as Parquet"
        )
    if frame.height == 0:
        raise DataError(f"{source.shown} has no rows", "give a file with interactions")
    _require_ids(source, frame)
    rows = frame.height
    if "rating" in source.columns:
        if not frame["rating"].is_finite().fill_null(False).all():
            number = pl.col("rating").cast(pl.Float64, strict=False)
            raise source.first_fault(
                "rating",
                ~number.is_finite().fill_null(False),
                "the rating {value} is not a finite number",
                "correct or remove the row",
            )
        if min_rating is not None:
            frame = frame.filter(pl.col("rating") >= min_rating)
        frame = frame.drop("rating")
    return frame, rows


def _require_ids(source: Source, frame: pl.DataFrame) -> None:
    """Refuse rows without a readable user and item."""
    for role in ID_ROLES:
        text = pl.col(role).cast(pl.String)
        faults = {
            f"the {role} is empty": (pl.col(role).is_null() | (text == ""), "give the row an id or remove it"),
            f"the {role} {{value}} is blank": (text.str.strip_chars() == "", "give the row a readable id"),
            f"the {role} {{value}} has a NUL character": (
                text.str.contains("\0", literal=True),
                "remove the character",
            ),
        }
        whole_numbers = frame[role].dtype != pl.String
        for what, (bad, fix) in list(faults.items())[: 1 if whole_numbers else None]:
            if frame.select(bad.any()).item():
                raise source.first_fault(role, bad, what, fix)


def _timestamp(source: Source, time_kinds: dict[str, str]) -> pl.Expr:
    """The expression that makes the timestamp int64, of the one kind that fits every row of every file."""
    kind = _time_kind(source)
    for other, file in time_kinds.items():
        if other != kind:
            raise DataError(f"{source.shown} has {kind} as timestamps, and {file} has {other}", "write them in one way")
    time_kinds[kind] = source.shown
    return _TIME_KINDS[kind](pl.col("timestamp")).alias("timestamp")


def _time_kind(source: Source) -> str:
    """The first kind that fits every row. If none does, the one that fits most was meant, and a row breaks it."""
    column, dtype = pl.col("timestamp"), source.rows.collect_schema()["timestamp"]
    misfits = {}
    for kind, types in _TIME_TYPES.items():
        if dtype in types or (kind == "whole numbers" and dtype.is_integer()):
            misfits[kind] = (
                source.rows.select(_TIME_KINDS[kind](column).null_count()).collect(engine="streaming").item()
            )
            if misfits[kind] == 0:
                return kind
    meant = min(misfits, key=lambda kind: misfits[kind])
    bad, what = _TIME_KINDS[meant](column).is_null(), f"the timestamp {{value}} is not one of the column's {meant}"
    raise source.first_fault("timestamp", bad, what, "write whole numbers, seconds or ISO 8601 dates throughout")


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


_TIME_KINDS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "whole numbers": lambda column: column.cast(pl.Int64, strict=False),
    "seconds": _seconds,
    "dates": lambda column: column.dt.epoch("us"),
    "ISO dates": _date,
}
_TIME_TYPES: dict[str, tuple[Any, ...]] = {
    "whole numbers": (pl.String,),
    "seconds": (pl.String, pl.Float32, pl.Float64),
    "dates": (pl.Date, pl.Datetime),
    "ISO dates": (pl.String,),
}


def _encode(
    frames: list[pl.DataFrame], untyped: list[frozenset[str]], files: list[FileRead], min_rating: float | None
) -> tuple[Interactions, npt.NDArray[np.uint8] | None]:
    """Ids become indices into their sorted vocabularies, and duplicates are merged."""
    integers = {
        role: all(role in roles or frame[role].dtype == pl.Int64 for roles, frame in zip(untyped, frames, strict=True))
        for role in ID_ROLES
    }
    for role in ID_ROLES:
        if {frame[role].dtype for frame in frames} != {pl.Int64}:
            frames = [frame.with_columns(pl.col(role).cast(pl.String)) for frame in frames]
    frame = pl.concat(frames)
    if frame.height == 0:
        raise DataError(f"no row reaches the rating that {option('min_rating')} asks for", "lower it")
    lookup = {role: _sorted_ids(frame[role], role, files[0], integers[role]) for role in ID_ROLES}
    columns = [name for name in ("part", "timestamp") if name in frame.columns]
    indexed = frame.lazy().select("user", "item", *columns)
    for role in ID_ROLES:
        indexed = indexed.join(lookup[role].lazy().select(role, f"{role} index"), on=role).drop(role)
    arrays = {name: column.to_numpy() for name, column in indexed.collect(engine="streaming").to_dict().items()}
    user, item, part, timestamp = merge(
        arrays["user index"], arrays["item index"], arrays.get("part"), arrays.get("timestamp"), lookup["item"].height
    )
    rows, below = sum(file.rows for file in files), sum(file.below_min_rating for file in files)
    provenance = Provenance(
        files=files,
        rows=rows,
        below_min_rating=below,
        duplicates=rows - below - len(user),
        min_rating=min_rating,
    )
    users, items = (_vocabulary(role, lookup[role], frame) for role in ID_ROLES)
    return Interactions(user, item, users, items, timestamp, provenance), part


def _sorted_ids(column: pl.Series, role: str, first: FileRead, integers: bool) -> pl.DataFrame:
    """Each id as the column has it, its final value and its index, sorted by value."""
    distinct = column.unique()
    value = distinct
    if distinct.dtype == pl.String:
        file = first.file or "the frame"
        if integers and distinct.str.contains(_WHOLE_FLOAT).all():
            raise DataError(
                f"{file} has {role} ids such as {distinct.min()}, whole numbers written as floats",
                "write them as integers (missing values turn whole numbers into floats)",
            )
        if integers and distinct.str.contains(_PLAIN_INTEGER).all():
            value = distinct.cast(pl.Int64, strict=False)
            value = distinct if value.null_count() else value
    ids = pl.DataFrame({role: distinct, "value": value}).sort("value")
    if ids.height >= 2**31:
        raise DataError(f"there are {ids.height} distinct {role} ids", "hmlet's indices have 31 bits: split the data")
    return ids.with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias(f"{role} index"))


def _vocabulary(role: str, ids: pl.DataFrame, frame: pl.DataFrame) -> Vocabulary:
    names = None
    if f"{role}_name" in frame.columns:
        # One name an id, whatever the order of the rows: the least.
        named = frame.lazy().group_by(role).agg(pl.col(f"{role}_name").cast(pl.String).min()).collect()
        names = ids.join(named, on=role, how="left").sort(f"{role} index")[f"{role}_name"]
    return Vocabulary(role, _plain_array(ids["value"]), None if names is None else _plain_array(names))


def _plain_array(series: pl.Series) -> Any:
    """A contiguous pyarrow array of int64 or string (Polars' own string layouts are newer than some readers)."""
    array = pa.array(series.to_arrow())
    return array.cast(pa.string()) if series.dtype == pl.String else array


def _as_polars(frame: Any) -> pl.DataFrame:
    convert = {"polars": _collected, "pandas": pl.from_pandas, "pyarrow": pl.from_arrow}.get(
        type(frame).__module__.partition(".")[0]
    )
    fix = "give a Polars or pandas DataFrame or a pyarrow Table, with ids of one type a column"
    try:
        table = convert(frame) if convert else None
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"the {type(frame).__name__} cannot be read ({error})", fix) from error
    if not isinstance(table, pl.DataFrame):
        raise DataError(f"cannot read interactions from a {type(frame).__name__}", fix)
    return table


def _collected(frame: Any) -> Any:
    return frame.collect() if isinstance(frame, pl.LazyFrame) else frame
