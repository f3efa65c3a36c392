"""Sheets as Markdown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hmlet.ranking.statistics import markdown_table
from hmlet.reproduction.records import Record
from hmlet.reproduction.sheets import Links, Sheet, Value


def sheet_markdown(
    sheet: Sheet, home: Path, *, heading: str | None = "###", address: Callable[[Record], str] | None = None
) -> str:
    """A sheet with its heading and its remark; links lead from `home` to the records, or to their `address`."""

    def text(value: Value) -> str:
        if not isinstance(value, Links):
            return value.replace("|", "\\|")
        to = address or (lambda record: Path(os.path.relpath(record.file, home)).as_posix())
        return " ".join(f"[{record.recipe.seed}]({to(record)})" for record in value)

    head = [] if heading is None else [f"{heading} {sheet.title}\n", f"{sheet.see}\n"]
    rows = [list(sheet.columns), *(list(map(text, row)) for row in sheet.rows)]
    return "\n".join([*head, markdown_table(rows)]) + "\n"
