"""Parquet, decoded by pyarrow: on damaged pages it raises errors, while Polars may panic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
            batches = list(file.batches(names, coded=[file.schema.names[chosen[role]] for role in ID_ROLES]))
            if not batches:
                return typed_source(text.shown, empty.lazy(), columns)
            with_dictionary = [name for name in names if pa.types.is_dictionary(batches[0].schema.field(name).type)]
            coded = {name: _coded([batch.column(name) for batch in batches]) for name in with_dictionary}
            others = [name for name in names if name not in coded]
            plain = pl.concat([_bare(batch, others) for batch in batches]) if others else pl.DataFrame()
        rows = with_columns(plain, {name: each.codes for name, each in coded.items()}).lazy()
        texts = [each.decoded(name) for name, each in coded.items()]
        source = typed_source(text.shown, rows.with_columns(texts).select(names), columns)
        return replace(source, coded={role: coded[name] for role, name in source.columns.items() if name in coded})

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


def _coded(parts: Sequence[pa.DictionaryArray]) -> Coded:
    """A column whose batches have dictionaries, those of one group of rows the same."""
    groups = [list(group) for _, group in groupby(parts, lambda part: _identity(part.dictionary))]
    whole = pa.chunked_array([pa.chunked_array(group).combine_chunks() for group in groups]).combine_chunks()
    codes, values = pl.Series(whole.indices), pl.Series(whole.dictionary)
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
