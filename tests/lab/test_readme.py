"""lab/README.md names every room that the laboratory imports from."""

from __future__ import annotations

import ast
import re
from pathlib import Path

LAB = Path(__file__).resolve().parents[2] / "lab"


def test_every_room_that_is_imported_is_named() -> None:
    rooms = set()
    for path in LAB.rglob("*.py"):
        if "benchmarks" not in path.parts:
            modules = [
                node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
            ]
            rooms |= {module.split(".")[1] for module in modules if module.startswith("hmlet.")}
    rows = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|", (LAB / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == rooms
