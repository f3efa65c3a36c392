"""Answers in JSON that say which run they come from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from fastapi import Response
from pydantic import BaseModel
from pydantic_core import to_json

from hmlet.serving.state import Served

JsonObject = Mapping[str, object]
NO_HEADERS: Mapping[str, str] = {}


def reply(
    value: BaseModel | JsonObject | Sequence[JsonObject], *served: Served, headers: Mapping[str, str] = NO_HEADERS
) -> Response:
    """An answer from these runs."""
    if isinstance(value, BaseModel):
        content = value.model_dump_json(by_alias=True, exclude_unset=True).encode()
    else:
        content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(content, media_type="application/json", headers={**origin(*served), **headers})


def origin(*served: Served) -> dict[str, str]:
    """The header that names the runs of an answer."""
    return {"x-hmlet-run": ", ".join(each.name for each in served)} if served else {}


def with_warnings(
    name: str, lists: Sequence[JsonObject], warnings: Sequence[str] | None
) -> JsonObject | Sequence[JsonObject]:
    """Scored lists, under a name beside the warnings if there can be any."""
    return lists if warnings is None else {name: lists, "warnings": warnings}


def listed(name: str, warnings: Sequence[str] | None, blocks: Iterator[Sequence[JsonObject]]) -> Iterator[bytes]:
    """What `with_warnings` has, as parts of JSON.

    A block is computed when its part is asked for, and the end has a part of its own: nothing looks ahead.
    """
    before = b"[" if warnings is None else b'{"%s":[' % name.encode()
    for rows in blocks:
        yield before + _encoded(rows)  # in no variable: it would stay
        before = b","
    opened = b"" if before == b"," else before
    yield opened + (b"]" if warnings is None else b'],"warnings":' + to_json(warnings) + b"}")


def _encoded(lists: Sequence[JsonObject]) -> bytes:
    """Scored lists as JSON, without brackets around them.

    Pydantic's encoder takes a fifth of the time of Python's, during which no other thread runs; it would let NaN pass.
    """
    if not isfinite(sum(item["score"] for each in lists for item in each["items"])):  # type: ignore[attr-defined]
        raise ValueError("a score is not finite")
    return to_json(lists)[1:-1]
