"""Adjacency text as a format of interaction files; `hmlet.data.adjacency` parses it."""

from __future__ import annotations

import polars as pl

from hmlet.data.adjacency import read_adjacency
from hmlet.data.columns import Columns
from hmlet.data.readers.format import Format, Source
from hmlet.data.text import TextFile


class AdjacencyText(Format):
    name = "adjacency"
    suffixes = (".txt",)
    has_columns = False

    def read(self, text: TextFile, columns: Columns, delimiter: str | None) -> Source:
        pairs = read_adjacency(text)
        rows = pl.DataFrame({"user": pairs.user, "item": pairs.item}).lazy()
        return Source(text.shown, rows, {"user": "user", "item": "item"}, lambda row: f"pair {row + 1}")
