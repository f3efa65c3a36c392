"""Parquet, decoded by pyarrow: on damaged pages it raises errors, while Polars may panic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hmlet.data.columns import Columns
from hmlet.data.guessing import SampledColumn
from hmlet.data.readers.format import Format, Source, first_line, typed_source
from hmlet.data.text import FREE_EXPANSION, MAX_EXPANSION, TextFile
from hmlet.errors import DataError


class Parquet(Format):
    name = "parquet"
    suffixes = (".parquet", ".pq")

    def read(self, text: TextFile, columns: Columns, delimiter: str | None) -> Source:
        with _readable(text), pq.ParquetFile(text.path) as file:
            schema = file.schema_arrow
            _refuse_bomb(text, file.metadata.num_rows)
            chosen = columns.resolve(schema.names, text.shown)
            names = list(dict.fromkeys(schema.names[at] for at in chosen.values()))
            empty = _bare(schema.empty_table(), names)
            typed_source(text.shown, empty.lazy(), columns, str)  # refuses wrong types before any data is read
            frames = [empty]
            for batch in file.iter_batches(1 << 20, columns=names):
                batch.validate(full=True)
                frames.append(_bare(batch, names))
            rows = pl.concat(frames).lazy()
        return typed_source(text.shown, rows, columns, lambda row: f"row {row + 1}")

    def sample(self, text: TextFile, delimiter: str | None, rows: int) -> list[SampledColumn]:
        with _readable(text), pq.ParquetFile(text.path) as file:
            _refuse_bomb(text, file.metadata.num_rows)
            flat = [field.name for field in file.schema_arrow if not pa.types.is_nested(field.type)]
            batch = next(file.iter_batches(rows, columns=flat), file.schema_arrow.empty_table().select(flat))
            batch.validate(full=True)
            return [SampledColumn(name, batch.column(name).to_pylist()) for name in flat]


@contextmanager
def _readable(text: TextFile) -> Iterator[None]:
    """Turn what the libraries raise on a damaged file into our error."""
    try:
        yield
    except DataError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        message = f"{text.shown} is not a readable Parquet file ({first_line(error)})"
        raise DataError(message, "write or download it again") from error


def _bare(table: Any, names: list[str]) -> Any:
    """Some columns as a frame, without the file's metadata: it may be any bytes, and Polars wants text."""
    return pl.from_arrow(pa.table({name: table.column(name) for name in names}))


def _refuse_bomb(text: TextFile, rows: int) -> None:
    """Refuse a file whose few bytes say that one value repeats a billion times; real interactions differ."""
    if rows > max(FREE_EXPANSION, MAX_EXPANSION * text.path.stat().st_size) // 8:
        raise DataError(
            f"{text.shown} has {rows} rows in {text.path.stat().st_size} bytes", "check where it comes from"
        )
