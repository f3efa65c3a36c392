"""Files of any registered format, or a frame, become interactions.

Ids keep their type: 64-bit integers stay integers, everything else is a string. In CSV and TSV, where nothing has a
type, spaces around a field do not count, and a column is integers if each of its values is one in plain spelling (`7`,
not `007`). Indices follow the sorted ids (integers by value, strings by their UTF-8 bytes), so the order of the rows
never matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from hmlet.data.columns import Columns, NamesColumns
from hmlet.data.dialect import Dialect, Skipping, or_skip
from hmlet.data.guessing import SampledColumn
from hmlet.data.interactions import Interactions, Ints, Vocabulary, merge
from hmlet.data.readers import FORMATS
from hmlet.data.readers.coding import Coded, code, ranked, with_columns
from hmlet.data.readers.format import ID_ROLES, Check, Format, Source, typed_source
from hmlet.data.readers.times import time_check, time_kind, timestamp
from hmlet.data.record import FileRead, Provenance
from hmlet.data.text import PACKED_SUFFIXES, open_text, require_file
from hmlet.errors import DataError
from hmlet.system.spelling import option

_PLAIN_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
_WHOLE_FLOAT = r"^-?[0-9]+\.0*$"
_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
_STORED = {"rating": pl.Float64, "weight": pl.Float32}  # weights are added up as float64
_PART_WORDS = {"train": 0, "training": 0, "valid": 1, "validation": 1, "val": 1, "dev": 1, "test": 2, "testing": 2}


def read(
    sources: Sequence[Path | Any],
    columns: Columns,
    dialect: Dialect = Dialect(),  # noqa: B008 - frozen
    min_rating: float | None = None,
    parts: Sequence[int] | None = None,
    skipping: Skipping | None = None,
) -> tuple[Interactions, npt.NDArray[np.uint8] | None]:
    """The interactions of files and frames, and the part of each: by `parts`, that of its source, or by a column."""
    skipping = skipping or Skipping()
    if not any(isinstance(given, Path) for given in sources):
        _refuse_options_of_files(dialect)
    loaded, described = [], []
    kinds: dict[str, str] = {}
    for number, given in enumerate(sources):
        before = len(skipping.rows)
        with _source(given, columns, dialect, skipping) as (source, file, format):
            rows = _load(source, min_rating, kinds, dialect, skipping)
        if parts is not None:
            rows = replace(rows, frame=rows.frame.with_columns(pl.lit(parts[number], pl.UInt8).alias("part")))
        loaded.append(rows)
        skipped = {"skipped": len(skipping.rows) - before} if len(skipping.rows) > before else {}
        below = rows.read - rows.frame.height
        described.append(FileRead(file=file, format=format, rows=rows.read, below_min_rating=below, **skipped))
    return _encode(loaded, described, min_rating)


def _refuse_options_of_files(dialect: Dialect) -> None:
    for name in ("format", "delimiter", "columns"):
        if getattr(dialect, name):
            raise DataError(
                f"{option(name)} is for files, and a frame has columns with names",
                f"leave {option(name)} out, and name its columns with {option('user')}, {option('item')} and so on",
            )


def sample_file(path: Path, dialect: Dialect, rows: int) -> list[SampledColumn] | None:
    """The first rows of every column of a file; None where its format has no columns."""
    require_file(path)
    used = _format(path, dialect)
    used.check_options(path, dialect)
    with open_text(path) as text, used.opened(text, Columns(), dialect, Skipping()) as ready:
        return used.sample(ready, dialect, rows)


def read_names(given: Path | Any, kind: str) -> dict[str, str]:
    """The readable name of each id (as text), from a file or a frame with a column of ids and one of names."""
    if isinstance(given, Path):
        require_file(given)
        if not format_of(given).has_columns:
            *most, last = [each.name for each in FORMATS.values() if each.has_columns]
            raise DataError(
                f"{given} has no columns", f"give a {', '.join(most)} or {last} file with the columns id and name"
            )
    with _source(given, NamesColumns(kind=kind), Dialect(), Skipping()) as (source, file, _):
        frame = source.rows.select(pl.col("user").cast(pl.String), pl.col("item").cast(pl.String)).collect()
    if frame["user"].null_count() or frame["user"].is_duplicated().any():
        raise DataError(f"{file or 'the frame of names'} has a duplicate or empty {kind} id", "give each id one line")
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


def _format(path: Path, dialect: Dialect) -> Format:
    if dialect.format is None:
        return format_of(path)
    if dialect.format not in FORMATS:
        raise DataError(f"there is no format {dialect.format!r}", f"use one of {', '.join(FORMATS)}")
    return FORMATS[dialect.format]


@contextmanager
def _source(
    given: Path | Any, columns: Columns, dialect: Dialect, skipping: Skipping
) -> Iterator[tuple[Source, str | None, str]]:
    """The rows of a file or a frame, readable inside the block, with the file's name and its format."""
    if not isinstance(given, Path):
        yield typed_source("the frame", as_polars(given).lazy(), columns, first=0), None, "frame"
        return
    require_file(given)  # before its name is asked for a format
    format = _format(given, dialect)
    format.check_options(given, dialect)
    with open_text(given) as text, format.opened(text, columns, dialect, skipping) as ready:
        try:
            yield format.read(ready, columns, dialect, skipping), given.name, format.name
        except _POLARS_ERRORS as error:
            raise format.explain(ready, error) from error


@dataclass(frozen=True)
class _Loaded:
    """The checked rows of one source that reach the threshold, with ids as their positions in `ids`."""

    shown: str  # as in Source
    frame: pl.DataFrame
    ids: dict[str, pl.Series]  # of each role, those that some row has, rarely one of them twice
    read: int  # rows before the threshold
    untyped: frozenset[str]  # as in Source


def _load(
    source: Source, min_rating: float | None, time_kinds: dict[str, str], dialect: Dialect, skipping: Skipping
) -> _Loaded:
    if skipping.allowed:
        source = _without_bad(source, dialect, skipping)
    wanted = [pl.col(role) for role in ID_ROLES if role not in source.coded]
    wanted.append(pl.col("^(user|item)_name$").cast(pl.String))
    wanted += [_number(source, role, dialect).alias(role) for role in ("rating", "weight") if role in source.columns]
    if "timestamp" in source.columns:
        wanted.append(timestamp(source, time_kinds, dialect))
    if "part" in source.columns:
        wanted.append(_part().alias("part"))
    frame = source.rows.select(wanted).collect(engine="streaming")
    frame, ids = _used(frame, source.coded)
    _require_all(source, frame)
    if frame.height == 0:
        raise DataError(f"{source.shown} has no rows", "give a file with interactions")
    frame, others = code(frame, [role for role in ID_ROLES if role not in ids])
    ids |= others
    _require_readable(source, ids)
    for check in _value_checks(source, dialect):
        column = frame[check.role]
        if column.null_count() or (check.role != "part" and not _is_sound(column, check.role)):
            raise or_skip(source.first_fault(*check))
    rows = frame.height
    if "rating" in source.columns:
        if min_rating is not None:
            frame = frame.filter(pl.col("rating") >= min_rating)
            frame, ids = _used(frame, {role: Coded(frame[role], ids[role]) for role in ID_ROLES})
        frame = frame.drop("rating")
    return _Loaded(source.shown, frame, ids, rows, source.untyped)


def _used(frame: pl.DataFrame, coded: Mapping[str, Coded]) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
    """The frame with codes in each of these columns, and the values that they stand for, all of them used."""
    used = {role: each.used() for role, each in coded.items()}
    codes = {role: each.codes for role, each in used.items()}
    return with_columns(frame, codes), {role: each.values for role, each in used.items()}


def _without_bad(source: Source, dialect: Dialect, skipping: Skipping) -> Source:
    """The rows of a source that can be used; the others are remembered as skipped."""
    rows = source.rows.with_row_index("row number").collect(engine="streaming")
    _require_all(source, rows)
    checks = [*_id_checks(), *_value_checks(source, dialect)]
    if "timestamp" in source.columns:
        checks.append(time_check(time_kind(source, dialect)[0]))
    for check in checks:
        bad = rows.filter(check.bad)
        if bad.height:
            reasons = [source.problem(check.role, check.what, value) for value in bad[check.role].to_list()]
            skipping.skip(source.shown, source.places(bad["row number"].to_list()), reasons)
            rows = rows.filter(~check.bad.fill_null(False))
    return replace(source, rows=rows.drop("row number").lazy(), expected=rows.height, coded={})


def _require_all(source: Source, frame: pl.DataFrame) -> None:
    """Reject a source if Polars has not read every row."""
    if source.expected not in (None, frame.height):
        raise DataError(
            f"{source.shown} has {source.expected} rows, and {frame.height} could be read", "save it as Parquet"
        )


def _id_checks() -> list[Check]:
    """What makes an id unusable."""
    checks = []
    for role in ID_ROLES:
        text = pl.col(role).cast(pl.String)
        checks += [
            Check(
                role, pl.col(role).is_null() | (text == ""), f"the {role} is empty", "give the row an id or remove it"
            ),
            Check(role, text.str.strip_chars() == "", f"the {role} {{value}} is blank", "give the row a readable id"),
            Check(
                role,
                text.str.contains("\0", literal=True),
                f"the {role} {{value}} has a NUL character",
                "remove the character",
            ),
        ]
    return checks


def _require_readable(source: Source, ids: dict[str, pl.Series]) -> None:
    """Refuse rows without a readable user and item, by the distinct ids: there are fewer of them than rows."""
    for check in _id_checks():
        found = ids[check.role]
        whole_numbers = found.dtype != pl.String
        if whole_numbers and "empty" not in check.what:
            continue
        if found.to_frame(check.role).select(check.bad.any()).item():
            raise or_skip(source.first_fault(*check))


def _value_checks(source: Source, dialect: Dialect) -> list[Check]:
    """What makes a rating, a weight or a part unusable."""
    checks = []
    for role in ("rating", "weight"):
        if role in source.columns:
            number = _number(source, role, dialect).cast(_STORED[role])
            bad = ~number.is_finite().fill_null(False)
            what = f"the {role} {{value}} is not a finite number"
            if role == "weight":
                bad, what = (
                    bad | (number <= 0).fill_null(False),
                    f"the {role} {{value}} is not a positive 32-bit float",
                )
            fix = "correct or remove the row"
            if dialect.decimal == "." and source.rows.collect_schema()[role] == pl.String:
                fix += f" (if decimals follow a comma, pass {option('decimal', ',')})"
            checks.append(Check(role, bad, what, fix))
    if "part" in source.columns:
        bad = _part().is_null()
        checks.append(Check("part", bad, "{value} is not a part", "use train, valid or test"))
    return checks


def _is_sound(numbers: pl.Series, role: str) -> bool:
    numbers = numbers.cast(_STORED[role])
    return bool(numbers.is_finite().all()) and (role != "weight" or bool((numbers > 0).all()))


def _number(source: Source, role: str, dialect: Dialect) -> pl.Expr:
    """A rating or weight as a number; null where it is none."""
    column = pl.col(role)
    if dialect.decimal == "," and source.rows.collect_schema()[role] == pl.String:
        column = column.str.replace(",", ".", literal=True)
    return column.cast(pl.Float64, strict=False)


def _part() -> pl.Expr:
    """The number of the part that a word names; null where it names none."""
    word = pl.col("part").cast(pl.String).str.strip_chars().str.to_lowercase()
    return word.replace_strict(_PART_WORDS, default=None, return_dtype=pl.UInt8)


def _encode(
    loaded: list[_Loaded], files: list[FileRead], min_rating: float | None
) -> tuple[Interactions, npt.NDArray[np.uint8] | None]:
    """Ids become indices into their sorted vocabularies, and duplicates are merged."""
    for each in loaded:
        _require_same_columns(loaded[0], each)
    if not any(each.frame.height for each in loaded):
        raise DataError(f"no row has a rating of at least {option('min_rating')}", "lower it")
    user, item = (_numbered(loaded, role, files[0]) for role in ID_ROLES)
    given = [name for name in loaded[0].frame.columns if name not in ID_ROLES]
    columns = {name: pl.concat([each.frame[name] for each in loaded]) for name in given}
    part, timestamp, weight = (
        columns[name].to_numpy() if name in columns else None for name in ("part", "timestamp", "weight")
    )
    found = merge(user.indices, item.indices, part, timestamp, len(item.ids), weight)
    rows, below = sum(file.rows for file in files), sum(file.below_min_rating for file in files)
    provenance = Provenance(
        files=files,
        rows=rows,
        below_min_rating=below,
        duplicates=rows - below - len(found.user),
        min_rating=min_rating,
    )
    if skipped := sum(file.skipped for file in files):
        provenance = provenance.model_copy(update={"skipped": skipped})
    users = _vocabulary("user", user, columns.get("user_name"))
    items = _vocabulary("item", item, columns.get("item_name"))
    interactions = Interactions(found.user, found.item, users, items, found.timestamp, provenance, found.weight)
    return interactions, found.part


def _require_same_columns(one: _Loaded, other: _Loaded) -> None:
    """Refuse two sources of which only one has times, weights, names or parts."""
    for has, lacks in ((one, other), (other, one)):
        for role in has.frame.columns:
            if role not in lacks.frame.columns:
                raise DataError(
                    f"{has.shown} has a {role.replace('_', ' ')} column, and {lacks.shown} has none",
                    "give every file this column, or remove it from all of them",
                )


class _Numbered(NamedTuple):
    indices: Ints  # of each row's id
    ids: pl.Series  # the distinct ones, in the order of their indices


def _numbered(loaded: list[_Loaded], role: str, first: FileRead) -> _Numbered:
    """The ids of all sources by their order."""
    own = [each.ids[role] for each in loaded]
    integers = all(ids.dtype == pl.Int64 for ids in own)
    ids = pl.concat([each if integers else each.cast(pl.String) for each in own])
    if all(role in each.untyped or each.ids[role].dtype == pl.Int64 for each in loaded):
        ids = _as_integers(ids, role, first.file or "the frame")
    rank, distinct = ranked(ids)
    if len(distinct) >= 2**31:
        raise DataError(
            f"there are {len(distinct)} distinct {role} ids", "hmlet's indices have 31 bits: split the data"
        )
    ranks = np.split(rank, np.cumsum([len(each) for each in own])[:-1])
    indices = [rank[each.frame[role].to_numpy()] for rank, each in zip(ranks, loaded, strict=True)]
    return _Numbered(np.concatenate(indices), distinct)


def _as_integers(ids: pl.Series, role: str, shown: str) -> pl.Series:
    """Ids as integers if all are integers in plain spelling."""
    if ids.dtype == pl.String:
        if ids.str.contains(_WHOLE_FLOAT).all():
            raise DataError(
                f"{shown} has {role} ids such as {ids.min()}, whole numbers written as floats",
                "write them as integers (missing values turn whole numbers into floats)",
            )
        if ids.str.contains(_PLAIN_INTEGER).all():
            numbers = ids.cast(pl.Int64, strict=False)
            return ids if numbers.null_count() else numbers
    return ids


def _vocabulary(role: str, numbered: _Numbered, name: pl.Series | None) -> Vocabulary:
    names = None
    if name is not None:
        # One name per id, independent of the row order: the smallest.
        named = pl.DataFrame({"index": numbered.indices, "name": name}).group_by("index").agg(pl.col("name").min())
        names = _plain_array(named.sort("index")["name"])
    return Vocabulary(role, _plain_array(numbered.ids), names)


def _plain_array(series: pl.Series) -> Any:
    """A contiguous pyarrow array of int64 or string (Polars' own string layouts are newer than some readers)."""
    array = pa.array(series.to_arrow())
    return array.cast(pa.string()) if series.dtype == pl.String else array


def as_polars(frame: Any) -> pl.DataFrame:
    """A pandas or Polars frame, an Arrow table or any other object with Arrow's interface, as a Polars frame."""
    convert = {"polars": _collected, "pandas": pl.from_pandas}.get(type(frame).__module__.partition(".")[0])
    if convert is None and hasattr(frame, "__arrow_c_stream__"):
        convert = pl.from_arrow
    fix = "give a pandas or Polars frame, an Arrow table, a SciPy matrix or a file, with ids of one type in a column"
    try:
        table = convert(frame) if convert else None
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"the {type(frame).__name__} cannot be read ({error})", fix) from error
    if not isinstance(table, pl.DataFrame):
        raise DataError(f"cannot read interactions from a {type(frame).__name__}", fix)
    return table


def _collected(frame: Any) -> Any:
    return frame.collect() if isinstance(frame, pl.LazyFrame) else frame
