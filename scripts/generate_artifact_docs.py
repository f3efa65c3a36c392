"""Writes the table of run.json in docs/artifacts.md from the types in hmlet.runs.record (`make docs`).

tests/test_docs.py compares the document with what this writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hmlet.runs.record import RunRecord

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "artifacts.md"
BEGIN = "<!-- run.json: written by `make docs` from hmlet.runs.record; do not edit -->"
END = "<!-- end of run.json -->"


def document() -> str:
    """The whole document, with a current table between its two marks."""
    before, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def table() -> str:
    """The keys of run.json in Markdown, nested ones with a dot."""
    schema = RunRecord.model_json_schema(mode="serialization")
    rows = [f"| `{key}` | {kind} | {text} |" for key, kind, text in keys(schema, schema["$defs"])]
    return "\n".join(["| key | type | content |", "|---|---|---|", *rows])


def keys(schema: dict[str, Any], parts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of every key of a JSON schema, each object before its own keys."""
    for name, about in schema["properties"].items():
        choices = [parts.get(each.get("$ref", "").rpartition("/")[2], each) for each in about.get("anyOf", [about])]
        part = next((each for each in choices if "properties" in each), None)
        kinds = [each["type"] for each in choices]
        yield f"{prefix}{name}", " or ".join(kinds), " ".join(about.get("description", "").split())
        if part is not None:
            yield from keys(part, parts, f"{prefix}{name}.")


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
