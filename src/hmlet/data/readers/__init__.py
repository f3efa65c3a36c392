"""Interaction files in, rows out: one file per format. This package is the home of Polars."""

from hmlet.data.readers.adjacency import AdjacencyText
from hmlet.data.readers.delimited import CSV, TSV, MovieLens, RecBole
from hmlet.data.readers.format import Format
from hmlet.data.readers.json_lines import JsonLines
from hmlet.data.readers.parquet import Parquet

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        CSV(),
        TSV(),
        Parquet(),
        JsonLines(),
        MovieLens(),
        RecBole(),
        AdjacencyText(),
    )
}
