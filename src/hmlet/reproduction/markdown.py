"""Sheets as Markdown, and the blocks of a document that are made from records and nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hmlet.errors import ConfigError
from hmlet.ranking.statistics import markdown_table
from hmlet.reproduction.records import SCORE_FILES
from hmlet.reproduction.sheets import Links, Sheet, Value

_RECORD_BLOCK = re.compile(r"(<!-- made from records: ([\w -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def sheet_markdown(sheet: Sheet, home: Path, *, heading: str | None = "###") -> str:
    """A sheet with its heading and its remark; links lead from `home` to the records."""
    head = [] if heading is None else [f"{heading} {sheet.title}\n", f"{sheet.see}\n"]
    rows = [list(sheet.columns), *([_text(value, home) for value in row] for row in sheet.rows)]
    return "\n".join([*head, markdown_table(rows)]) + "\n"


def _text(value: Value, home: Path) -> str:
    if not isinstance(value, Links):
        return value.replace("|", "\\|")
    return " ".join(
        f"[{record.recipe.seed}]({Path(os.path.relpath(record.path / SCORE_FILES['train'], home)).as_posix()})"
        for record in value
    )


def fill(text: str, make: Callable[[Sequence[str]], str]) -> str:
    """A document whose blocks `<!-- made from records: WORDS -->` … `<!-- end -->` hold what `make(WORDS)` returns."""
    if text.count("<!-- made from records:") != len(_RECORD_BLOCK.findall(text)):
        raise ConfigError("a block made from records has no end", "close it with <!-- end -->")
    return _RECORD_BLOCK.sub(lambda found: f"{found[1]}\n{make(found[2].split())}\n{found[4]}", text)
