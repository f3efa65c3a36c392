"""Answers in JSON that say which run they come from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from pydantic_core import to_json

from hmlet.errors import HmletError
from hmlet.serving.failures import refusal, shape
from hmlet.serving.guard import Receive, Scope, Send
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


def refused(error: HmletError) -> Response:
    """The answer to a request that is not served, or whose answer is an error of the library."""
    known = refusal(error)
    return Response(shape(known), known.status, known.headers, "application/json")


def origin(*served: Served) -> dict[str, str]:
    """The header that names the runs of an answer."""
    return {"x-hmlet-run": ", ".join(each.name for each in served)} if served else {}


class StreamedReply(StreamingResponse):
    """An answer in blocks, which ends when its client has gone.

    Starlette cancels a task for that. A crowd that is cut off would then leave thousands of tracebacks in cycles, and
    collecting these stops every request.
    """

    def __init__(self, blocks: AsyncIterator[bytes], *served: Served) -> None:
        super().__init__(blocks, media_type="application/json", headers=origin(*served))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for block in self.body_iterator:
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": block, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()


def listed_reply(name: str, lists: Sequence[JsonObject], warnings: Sequence[str] | None, *served: Served) -> Response:
    """Scored lists, under a name beside the warnings if there can be any."""
    return Response(listed_content(name, lists, warnings), media_type="application/json", headers=origin(*served))


def listed_content(name: str, lists: Sequence[JsonObject], warnings: Sequence[str] | None) -> bytes:
    """What `listed_reply` has, as JSON."""
    return b"".join(listed(name, warnings, iter([lists] if lists else [])))


def listed(name: str, warnings: Sequence[str] | None, blocks: Iterator[Sequence[JsonObject]]) -> Iterator[bytes]:
    """What `listed_content` has, in parts.

    A block is computed when its part is asked for, and the end has a part of its own: nothing looks ahead.
    """
    before = b"[" if warnings is None else b'{"%s":[' % name.encode()
    encoded = map(_encoded, blocks)
    with suppress(StopIteration):
        while True:
            yield before + next(encoded)  # no loop variable: it would keep the block until the client has read it
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
