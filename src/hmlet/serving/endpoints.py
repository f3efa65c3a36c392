"""An endpoint: what it takes and gives, and the way from bytes to a type, to work, to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from hmlet.serving.errors import Refusal
from hmlet.serving.guard import Bodies, Receive, Scope, Send
from hmlet.serving.loaded_run import LoadedRun

JSON = "application/json"
to_json = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Answer:
    """What an endpoint answers: the content, whole or in blocks, and the run that it comes from."""

    content: bytes | AsyncIterator[bytes]
    run: LoadedRun | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    kind: str = JSON

    @classmethod
    def of(cls, value: object, run: LoadedRun | None = None, **headers: str) -> Answer:
        """A value as JSON."""
        return cls(to_json(value), run, headers)


@dataclass(frozen=True, eq=False)
class Endpoint:
    """One operation, as an ASGI application. /openapi.json is generated from these fields and the work's docstring."""

    method: str
    path: str
    work: Callable[[Any], Awaitable[Answer]]
    takes: type | None = None  # a body of JSON, or the query of a GET
    gives: Any = None  # the type of the answer; None: not JSON
    tag: str = ""  # of the group in the documentation; without one it is not described
    statuses: Sequence[int] = ()  # of its own errors
    bodies: Bodies | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self.work(await self._request(scope, receive))
        await _send(answer, scope, receive, send)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self.takes)

    async def _request(self, scope: Scope, receive: Receive) -> Any:
        if self.takes is None:
            return None
        try:
            if self.bodies is None:
                query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
                return msgspec.convert(query, self.takes, strict=False)
            return self._decoder.decode(await self.bodies.receive(scope, receive))
        except msgspec.ValidationError as error:
            raise Refusal(422, str(error), "GET /openapi.json describes the request, with examples") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = f"the body is not JSON in UTF-8 ({error})"
            raise Refusal(422, wrong, "send one object, like the examples of /openapi.json") from None


async def _send(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", answer.kind.encode()), (b"x-content-type-options", b"nosniff")]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    if answer.run is not None:
        scope["run"] = answer.run.name
        headers.append((b"x-hmlet-run", answer.run.name.encode()))
    if isinstance(answer.content, bytes):
        headers.append((b"content-length", b"%d" % len(answer.content)))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})
        return
    gone = asyncio.ensure_future(receive())  # the body is read, so this waits for the client to leave
    try:
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for block in answer.content:
            if gone.done():
                return
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        gone.cancel()


def listed(name: str, warnings: Mapping[str, None] | None, blocks: Iterator[Sequence[object]]) -> Iterator[bytes]:
    """Lists as JSON, block by block: an array, or under a name beside the warnings if there can be any.

    A block is computed when its part is asked for, and the end has a part of its own: nothing looks ahead.
    """
    before = b"[" if warnings is None else b'{"%s":[' % name.encode()
    for block in blocks:
        text = before + to_json(block)[1:-1]
        del block  # a block takes ten times the memory of its text, and a client may be slow to read that
        yield text
        before = b","
    opened = b"" if before == b"," else before
    yield opened + (b"]" if warnings is None else b'],"warnings":' + to_json(list(warnings)) + b"}")
