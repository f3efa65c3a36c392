"""Sheets as Markdown, and the blocks of a document that are made from records and nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hmlet.errors import ConfigError
from hmlet.ranking.statistics import markdown_table
from hmlet.reproduction.records import Record
from hmlet.reproduction.sheets import Links, Sheet, Value

_RECORD_BLOCK = re.compile(r"(<!-- made from records: ([\w -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


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


def fill(text: str, make: Callable[[Sequence[str]], str]) -> str:
    """A document whose blocks `<!-- made from records: WORDS -->` … `<!-- end -->` hold what `make(WORDS)` returns."""
    if text.count("<!-- made from records:") != len(_RECORD_BLOCK.findall(text)):
        raise ConfigError("a block made from records has no end", "close it with <!-- end -->")
    return _RECORD_BLOCK.sub(lambda found: f"{found[1]}\n{make(found[2].split())}\n{found[4]}", text)
