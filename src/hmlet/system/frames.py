"""Results as frames: what has rows becomes a Polars or pandas frame or an Arrow table, and a table in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from hmlet.errors import ConfigError

if TYPE_CHECKING:
    import pandas
    import polars

SHOWN_ROWS = 20  # of a table in a notebook


class Framed(ABC):
    """A result with rows and columns."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""

    @overload
    def to_frame(self, kind: Literal["polars"] = "polars") -> polars.DataFrame: ...
    @overload
    def to_frame(self, kind: Literal["pandas"]) -> pandas.DataFrame: ...
    def to_frame(self, kind: str = "polars") -> Any:
        """The rows as a Polars frame, or with "pandas" as one of pandas."""
        if kind == "polars":
            import polars

            return polars.from_arrow(self.to_arrow())
        if kind != "pandas":
            raise ConfigError(f"there is no kind of frame {kind!r}", "use polars or pandas, or call to_arrow()")
        try:
            return self.to_arrow().to_pandas()
        except ImportError as error:
            raise ConfigError("a pandas frame needs pandas, which is not installed", "pip install pandas") from error

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        table = self.to_arrow()
        rows = zip(*(table[name].slice(0, SHOWN_ROWS).to_pylist() for name in table.column_names), strict=True)
        more = f" … and {len(table) - SHOWN_ROWS:,} more rows" if len(table) > SHOWN_ROWS else ""
        return html_table(table.column_names, rows, escape(repr(self)) + more)


def table_of(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> pa.Table:
    """Rows as a table with these columns, which it also has if there are no rows."""
    found = list(rows)
    return pa.table({name: [row.get(name) for row in found] for name in columns})


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> str:
    """A table as HTML; `caption` is HTML already."""

    def cells(tag: str, values: Iterable[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(_text(value))}</{tag}>" for value in values) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f"<table><caption>{caption}</caption><thead>{cells('th', columns)}</thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
