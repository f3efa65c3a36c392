"""Parquet from outside: decoded within a bound, and checked against the columns that it has to have.

A few bytes of Parquet can say that one string of 100 KB repeats a million times (a dictionary), or that a thousand
strings share their first megabyte (delta encoding). So dictionaries are read as such, and their size is added up before
they are spelled out; delta-encoded strings are read a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hmlet.errors import HmletError
from hmlet.system.outside import Content, first_line, most_decoded
from hmlet.system.units import readable

BATCH_ROWS = 1 << 20
_DELTA = "DELTA_BYTE_ARRAY"


@dataclass(frozen=True)
class Column:
    """What a column of a table has to be."""

    types: tuple[pa.DataType, ...]
    required: bool = True
    nulls: bool = False


def read_table(content: Content, columns: Mapping[str, Column]) -> pa.Table:
    """The table in a Parquet file that has these columns, and perhaps others. Strings come without dictionaries."""
    origin = content.origin
    try:
        with Parquet.open(pa.BufferReader(content.data), len(content.data), origin.fault) as file:
            names = file.flat
            table = pa.Table.from_batches(file.batches(names), _plain(file.schema, names)).combine_chunks()
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise origin.fault(f"is not a readable Parquet file ({first_line(error)})") from error
    for name, column in columns.items():
        count = table.column_names.count(name)
        if count == 0 and not column.required:
            continue
        if count != 1:
            raise origin.fault(
                f": column {name!r}: the table has {count or 'no'} column{'s' * (count > 1)} of this name"
            )
        if table[name].type not in column.types:
            expected = " or ".join(map(str, column.types))
            raise origin.fault(f": column {name!r}: its type is {table[name].type}, not {expected}")
        if table[name].null_count and not column.nulls:
            raise origin.fault(f": column {name!r}: {table[name].null_count} values are missing")
    return table


@dataclass(frozen=True)
class Parquet:
    """A Parquet file of `size` bytes, open. This thread alone reads it: a process that has torch loaded and ends soon
    after pyarrow's threads have read something may abort on its way out."""

    source: Path | pa.BufferReader
    size: int
    fault: Callable[[str], HmletError]
    schema: pa.Schema
    metadata: pq.FileMetaData

    @classmethod
    @contextmanager
    def open(cls, source: Path | pa.BufferReader, size: int, fault: Callable[[str], HmletError]) -> Iterator[Parquet]:
        """The file; `fault` makes the error that refuses it."""
        with pq.ParquetFile(source, pre_buffer=False) as file:
            yield cls(source, size, fault, file.schema_arrow, file.metadata)

    @property
    def flat(self) -> list[str]:
        """The columns that are not nested."""
        return [field.name for field in self.schema if not pa.types.is_nested(field.type)]

    def empty(self, names: Collection[str]) -> pa.Table:
        """Some columns without their rows."""
        return pa.Table.from_batches([], _plain(self.schema, names))

    def batches(
        self, names: Collection[str], most_rows: int = BATCH_ROWS, coded: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some columns, strings with a dictionary only in those of `coded` whose file has them so; refused
        before they are decoded if they take more than `most_decoded`."""
        most = most_decoded(self.size)
        too_large = f"decodes to more than {readable(most)}"
        if self.metadata.num_rows * 8 > most:
            raise self.fault(f"has {self.metadata.num_rows} rows in {self.size} bytes")
        chunks = [each for each in self._chunks() if each.path_in_schema in names]
        if sum(each.total_uncompressed_size for each in chunks) > most:
            raise self.fault(too_large)
        strings = {each.path_in_schema for each in chunks if each.physical_type == "BYTE_ARRAY"}
        delta = [each for each in chunks if _DELTA in each.encodings]
        # No string is longer than its encoded column, so this many rows fit into the bound, with room for a decoder.
        longest = max((each.total_uncompressed_size for each in delta), default=0)
        rows = max(1, min(most_rows, most // max(4 * longest, 1)))
        with_dictionary = sorted(strings - {each.path_in_schema for each in delta})
        decoded, schema = 0, _plain(self.schema, names)
        with pq.ParquetFile(self._again(), pre_buffer=False, read_dictionary=with_dictionary) as file:
            for batch in file.iter_batches(rows, columns=list(names), use_threads=False):
                batch.validate(full=True)
                decoded += sum(map(_decoded_bytes, batch.columns))
                if decoded > most:
                    raise self.fault(too_large)
                columns = [
                    each if field.name in coded and _has_texts(each.type) else each.cast(field.type)
                    for each, field in zip(batch.columns, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema.names)

    def _again(self) -> Path | pa.BufferReader:
        if not isinstance(self.source, Path):
            self.source.seek(0)
        return self.source

    def _chunks(self) -> Iterator[pq.ColumnChunkMetaData]:
        for group in map(self.metadata.row_group, range(self.metadata.num_row_groups)):
            yield from map(group.column, range(group.num_columns))


def numbers(values: npt.NDArray[Any]) -> pa.Array:
    """A NumPy array of numbers as an Arrow array. `pa.array` would import pandas if it is installed, for 0.1 s."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def texts(values: Iterable[str]) -> pa.Array:
    """A few strings as an Arrow array, also without pandas."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def _plain(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """The schema of some columns without dictionaries and views, and without metadata, which may be any bytes."""
    return pa.schema([(field.name, _plain_type(field.type)) for field in schema if field.name in names])


def _plain_type(type: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type):
        return _plain_type(type.value_type)
    # Arrow makes no views of what it has read as a dictionary.
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(type, type)


def _has_texts(type: pa.DataType) -> bool:
    """Whether it is a dictionary of strings."""
    return pa.types.is_dictionary(type) and type.value_type in (pa.string(), pa.large_string())


def _decoded_bytes(column: pa.Array) -> int:
    """What a column takes without its dictionary."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary)
    return int(pc.sum(pc.take(lengths, column.indices)).as_py() or 0) + 8 * len(column)
