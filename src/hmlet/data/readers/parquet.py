"""Parquet, decoded by pyarrow: on damaged pages it raises errors, while Polars may panic."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

import polars as pl
import pyarrow as pa

from hmlet.data.columns import Columns
from hmlet.data.dialect import Dialect, Skipping
from hmlet.data.guessing import SampledColumn
from hmlet.data.readers.coding import Coded, with_columns
from hmlet.data.readers.format import ID_ROLES, Format, Source, typed_source
from hmlet.data.text import TextFile
from hmlet.errors import DataError
from hmlet.system import tables
from hmlet.system.outside import first_line


class Parquet(Format):
    name = "parquet"
    suffixes = (".parquet", ".pq")

    def read(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Source:
        with _open(text) as file:
            chosen = columns.resolve(file.schema.names, text.shown)
            names = list(dict.fromkeys(file.schema.names[at] for at in chosen.values()))
            empty = _bare(file.empty(names), names)
            typed_source(text.shown, empty.lazy(), columns)  # refuses wrong types before any data is read
            ids = list(dict.fromkeys(file.schema.names[chosen[role]] for role in ID_ROLES))
            others = [name for name in names if name not in ids]
            with ThreadPoolExecutor(len(ids)) as pool:  # decoding ids takes most of the time
                reading = pool.map(lambda name: _ids(file, name), ids)
                plain = _frame(file, others) if others else pl.DataFrame()
                found = dict(zip(ids, reading, strict=True))
        coded = {name: each for name, each in found.items() if isinstance(each, Coded)}
        given = {name: each.codes if isinstance(each, Coded) else each for name, each in found.items()}
        texts = [each.decoded(name) for name, each in coded.items()]
        rows = with_columns(plain, given).lazy().with_columns(texts).select(names)
        source = typed_source(text.shown, rows, columns)
        own = {role: source.columns[role] for role in ID_ROLES}
        return replace(source, coded={role: coded[name] for role, name in own.items() if name in coded})

    def sample(self, text: TextFile, dialect: Dialect, rows: int) -> list[SampledColumn]:
        with _open(text) as file:
            names, found, needed = file.flat, [], rows
            for batch in file.batches(names, rows):
                found.append(batch.slice(0, needed))
                needed -= batch.num_rows
                if needed <= 0:
                    break
            table = pa.Table.from_batches(found, file.empty(names).schema)
            return [SampledColumn(name, table.column(name).to_pylist()) for name in names]


@contextmanager
def _open(text: TextFile) -> Iterator[tables.Parquet]:
    """The file, open; what the libraries raise on a damaged one becomes our error."""

    def fault(what: str) -> DataError:
        return DataError(f"{text.shown} {what}", "check where it comes from, or write it again")

    try:
        with tables.Parquet.open(text.path, text.path.stat().st_size, fault) as file:
            yield file
    except DataError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        raise fault(f"is not a readable Parquet file ({first_line(error)})") from error


def _frame(file: tables.Parquet, names: list[str]) -> pl.DataFrame:
    """Some columns with their values."""
    return pl.concat([_bare(batch, names) for batch in (file.empty(names), *file.batches(names))])


def _ids(file: tables.Parquet, name: str) -> Coded | pl.Series:
    """A column of ids, by the dictionaries of a file that has strings: each group of rows has one of its own."""
    parts = [batch.column(0) for batch in file.batches([name], coded=[name])]
    if not parts or not pa.types.is_dictionary(parts[0].type):
        return pl.Series(pa.chunked_array(parts, file.empty([name]).schema.field(0).type))
    groups = [list(group) for _, group in groupby(parts, lambda part: _identity(part.dictionary))]
    one = pa.chunked_array([pa.chunked_array(group).combine_chunks() for group in groups]).combine_chunks()
    codes, values = pl.Series(one.indices), pl.Series(one.dictionary)
    if codes.null_count():
        codes, values = codes.fill_null(len(values)), values.append(pl.Series([None], dtype=pl.String))
    return Coded(codes.cast(pl.UInt32), values)


def _identity(array: pa.Array) -> tuple[int, ...]:
    """What tells an array from all others that are in memory: comparing the strings would take long."""
    return (array.offset, len(array), *(buffer.address if buffer else 0 for buffer in array.buffers()))


def _bare(table: Any, names: list[str]) -> Any:
    """Some columns as a frame. Times become microseconds here, where one that does not fit is an error, not a panic."""
    columns = {name: table.column(name) for name in names}
    for name, column in columns.items():
        if pa.types.is_timestamp(column.type) and column.type.unit != "ns":
            columns[name] = column.cast(pa.timestamp("us", column.type.tz))
    return pl.from_arrow(pa.table(columns))
