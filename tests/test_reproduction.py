"""The numbers in docs/reproduction.md are those of the recorded runs that the same row links to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
ROWS = [
    line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.search(r"\]\([^)]*test_mask-[^)]*\)", line)
]


def test_there_are_rows() -> None:
    assert len(ROWS) >= 4


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_what_its_record_says(row: str) -> None:
    link = re.search(r"\]\(([^)]*test_mask-[^)]*)\)", row)
    assert link is not None
    record = json.loads((PAGE.parent / link.group(1)).read_text(encoding="utf-8"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert record["mask"] == cells[1]
    assert cells[2:5] == [f"{record['metrics'][name]:.4f}" for name in ("ndcg", "recall", "precision")]
