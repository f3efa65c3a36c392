"""The plots in docs/pictures are those that the records make."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from lab.figures import LEFT, RIGHT, WIDTH, Point, dots, figures, ticks

ROOT = Path(__file__).resolve().parents[2]


def test_the_plots_are_what_the_records_make() -> None:
    for path, drawn in figures().items():
        assert path.read_text(encoding="utf-8") == drawn, "run `make docs` and commit"
        ElementTree.fromstring(drawn)
        assert f"pictures/{path.name}" in "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))


def test_a_dot_is_where_its_value_is() -> None:
    points = [Point("low", 1.0, "1"), Point("middle", 2.0, "2"), Point("high", 3.0, "3")]
    low, middle, high = (float(x) for x in re.findall(r'cx="([\d.]+)"', dots("", points, "", "")))
    assert abs((low + high) / 2 - middle) < 0.2
    assert LEFT < low < high < WIDTH - RIGHT


def test_ticks_are_round_and_inside() -> None:
    assert [round(each, 9) for each in ticks(0.11, 0.17)] == [0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17]
    assert ticks(-0.2, 6.1) == [0, 1, 2, 3, 4, 5, 6]
