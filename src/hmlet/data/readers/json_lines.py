"""JSON lines: one object a line, with the columns as keys."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

import polars as pl

from hmlet.data.columns import Columns
from hmlet.data.dialect import Dialect, Skipping
from hmlet.data.guessing import SampledColumn
from hmlet.data.readers.format import ID_ROLES, Format, Source, check_type
from hmlet.data.text import TextFile, temporary_copy
from hmlet.errors import DataError
from hmlet.system.outside import parse_json


class JsonLines(Format):
    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")

    def read(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Source:
        for _ in text.blocks():  # checks the encoding and refuses NUL; the lines themselves are for the parser
            pass
        path = glob.escape(str(text.path))  # a file's name is not a pattern
        schema = pl.scan_ndjson(path, infer_schema_length=None).collect_schema()
        chosen = columns.resolve(schema.names(), text.shown)
        names = {role: schema.names()[at] for role, at in chosen.items()}
        for role in names.keys() - set(ID_ROLES):
            check_type(text.shown, role, names[role], schema[names[role]])
        # Ids are read as text so that integers of any size keep their digits; the schema finds what is not an id.
        ids = {names[role]: pl.String for role in ID_ROLES}
        text_ids = [name for name in ids if not schema[name].is_integer()]
        if any(schema[name] != pl.String for name in text_ids) or _is_doubtful(text, names, text_ids):
            problem = _first_fault(text, names)
            if problem is not None:
                raise problem
        wanted = {name: ids.get(name, schema[name]) for name in names.values()}
        rows = pl.scan_ndjson(path, schema=wanted).select(pl.col(name).alias(role) for role, name in names.items())
        integers = frozenset(role for role in ID_ROLES if schema[names[role]].is_integer())
        return Source(text.shown, rows, names, lambda found: _lines_of_objects(text, found), integers)

    @contextmanager
    def opened(self, text: TextFile, columns: Columns, dialect: Dialect, skipping: Skipping) -> Iterator[TextFile]:
        """The file, with bad lines blank if they may be skipped. That takes a look at each line, which is slow."""
        if not skipping.allowed:
            yield text
            return
        keys = dict.fromkeys(key for line in _good_lines(text) for key in cast("dict[str, Any]", parse_json(line)))
        names = list(keys)
        chosen = {role: names[at] for role, at in columns.resolve(names, text.shown).items()} if names else {}
        with temporary_copy(text) as (copy, target), text.path.open(encoding="utf-8") as source:
            for number, line in enumerate(source, 1):
                problem = _problem(line, chosen) if line.strip() else None
                if problem is not None:
                    skipping.skip(text.shown, [f"line {number}"], [problem[0]])
                target.write((line if problem is None else "\n").encode())
            target.flush()
            yield copy

    def sample(self, text: TextFile, dialect: Dialect, rows: int) -> list[SampledColumn]:
        next(text.blocks(), None)  # checks the encoding
        objects: list[dict[str, Any]] = []
        with text.path.open(encoding="utf-8") as file:
            for number, line in enumerate(islice(filter(str.strip, file), rows), 1):
                if problem := _problem(line, {}):
                    raise text.fault(number, *problem)
                objects.append(cast("dict[str, Any]", parse_json(line)))
        names = dict.fromkeys(name for each in objects for name in each)
        return [SampledColumn(name, [each.get(name) for each in objects]) for name in names]

    def explain(self, text: TextFile, error: BaseException) -> DataError:
        """The error for the first bad line, which Polars does not name."""
        return _first_fault(text, {}) or super().explain(text, error)


def _lines_of_objects(text: TextFile, rows: Sequence[int]) -> list[str]:
    with text.path.open("rb") as file:
        numbers = [number for number, line in enumerate(file, 1) if line.strip()]
    return [f"line {numbers[row]}" for row in rows]


def _good_lines(text: TextFile) -> Iterator[str]:
    with text.path.open(encoding="utf-8") as file:
        yield from (line for line in file if line.strip() and _problem(line, {}) is None)


def _is_doubtful(text: TextFile, names: dict[str, str], text_ids: list[str]) -> bool:
    """Whether Polars may hide something: a duplicate key, or an id other than a string in a column of strings, which
    it would spell out as one."""
    keys = {role: _quoted(name) for role, name in names.items()}
    other = re.compile(rb"(?:%b)\s*:\s*[^\s\"]" % b"|".join(re.escape(_quoted(name)) for name in text_ids))
    return any((text_ids and other.search(block)) or _may_repeat(block, keys) for _, block in text.blocks())


def _quoted(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode()


def _may_repeat(block: bytes, keys: dict[str, bytes]) -> bool:
    """Whether a line of a block may have a duplicate key; escapes may hide one.

    Counting decides for most blocks: if a key occurs no more often than there are lines, none of them blank, then a
    line that has it twice leaves another without it, and that one is refused. Only names may be missing.
    """
    if b"\\u00" in block and re.search(rb"\\u00[2-7]", block):
        return True
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    counted = block.startswith(b"{") and block.count(b"\n{") == lines - 1
    doubtful = [
        re.escape(key) + rb"\s*:"
        for role, key in keys.items()
        if role.endswith("_name") or not counted or block.count(key) > lines
    ]
    return any(re.search(rb"%b[^\n]*%b" % (key, key), block) for key in doubtful)


def _first_fault(text: TextFile, names: dict[str, str]) -> DataError | None:
    """The error for the first bad line, or None. Slow: it parses line by line."""
    with text.path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip() and (problem := _problem(line, names)):
                return text.fault(number, *problem)
    return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"it has the key {name[:40]!r} twice")
        result[name] = value
    return result


def _problem(line: str, names: dict[str, str]) -> tuple[str, str] | None:
    try:
        parse_json(line)
        value = json.loads(line, object_pairs_hook=_once)
    except ValueError as error:
        cut = "" if line.endswith("\n") else "; the file may end in the middle of this row"
        return f"is not JSON ({error}){cut}", "write one JSON object a line"
    if not isinstance(value, dict):
        return f"is a JSON {type(value).__name__}, not an object", 'write lines such as {"user": 1, "item": 2}'
    if any(isinstance(field, int) and field.bit_length() > 127 for field in value.values()):
        return "has an integer of more than 127 bits", "write it as a string"
    for role in ID_ROLES:
        found = value.get(names[role]) if role in names else ""
        if found is None:
            return f"has no {names[role]!r}", "give every line its user and its item"
        if isinstance(found, bool) or not isinstance(found, int | str):
            return (
                f"{names[role]!r} is {json.dumps(found)[:40]}, not a whole number or a string",
                "write ids as integers or strings",
            )
    return None
