"""Adjacency text as a format of interaction files; `hmlet.data.adjacency` parses it."""

from __future__ import annotations

import polars as pl

from hmlet.data.adjacency import read_adjacency, refuse_rows
from hmlet.data.columns import Columns
from hmlet.data.dialect import Dialect, Skipping
from hmlet.data.readers.format import Format, Source
from hmlet.data.text import TextFile


class AdjacencyText(Format):
    name = "adjacency"
    suffixes = (".txt",)
    has_columns = False

    def read(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Source:
        pairs = read_adjacency(text)
        if dialect.format is None:
            refuse_rows(text, pairs)
        rows = pl.DataFrame({"user": pairs.user, "item": pairs.item}).lazy()
        names = {"user": "user", "item": "item"}
        return Source(text.shown, rows, names, lambda found: [f"pair {row + 1}" for row in found])
