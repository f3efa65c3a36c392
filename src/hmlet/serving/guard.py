"""The door: host, token, origin, size, time and load are checked before any endpoint sees a request."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from hmlet.serving import strict_json
from hmlet.serving.failures import Refusal, shape
from hmlet.serving.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROBES = frozenset({"/v1/health", "/v1/ready", "/metrics"})  # answered at any load
LINGER_SECONDS = 2.0


class Guard:
    """An ASGI application that lets a request through to another, whole and checked, or refuses it."""

    def __init__(self, app: App, settings: Settings, public: frozenset[str]) -> None:
        self.app = app
        self.settings = settings
        self.limits = settings.limits
        self.public = public  # paths that need no token
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = _hurried(send, self.limits.seconds)
        try:
            headers = _headers(scope)
            self._check_host(headers)
            self._check_token(scope, headers)
            if scope["method"] not in ("GET", "HEAD"):
                self._check_origin(headers)
                _check_content_type(scope, headers)
            if scope["path"] not in PROBES and self.in_flight >= self.limits.in_flight:
                raise Refusal(
                    503,
                    f"{self.in_flight} requests are being answered",
                    "try again in a second",
                    "overloaded",
                    {"retry-after": "1"},
                )
        except Refusal as error:
            await _refuse(error, receive, send)
            return
        self.in_flight += 1
        try:
            await self._admit(scope, headers, receive, send)
        finally:
            self.in_flight -= 1

    async def _admit(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        try:
            body = await self._body(headers, receive)
            if body and scope["method"] == "POST":
                strict_json.check(body)
        except Refusal as error:
            await _refuse(error, receive, send)
            return
        if body is not None:
            await self.app(scope, _replay(body, receive), send)

    def _check_host(self, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if _hostname(host) not in self.settings.hosts:
            raise Refusal(400, f"this service is not called {host[:100]!r}", "start it with --allow-host", "bad-host")

    def _check_token(self, scope: Scope, headers: dict[str, str]) -> None:
        if self.settings.token is None or scope["path"] in self.public:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        expected = self.settings.token.encode()
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("utf-8", "replace"), expected):
            raise Refusal(
                401,
                "this service asks for a token, and the request has none or another",
                "send the header `Authorization: Bearer TOKEN`",
                headers={"www-authenticate": "Bearer"},
            )

    def _check_origin(self, headers: dict[str, str]) -> None:
        """A browser says which page a POST comes from; only our own page may send one."""
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != headers["host"].lower():
            raise Refusal(403, f"a page of {origin[:100]!r} may not call this service", "call it from its own page")

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | None:
        """The whole body within the limits of size and time, or None where the client has gone."""
        limit, announced = self.limits.body_bytes, headers.get("content-length", "0")
        too_large = Refusal(413, f"the body is larger than {limit:,} bytes", "send fewer ids at a time")
        if announced.isdigit() and int(announced[:20]) > limit:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(
                408, f"the body took longer than {self.limits.seconds:g} seconds", "send it at once"
            ) from None


def _headers(scope: Scope) -> dict[str, str]:
    """Names and values; a header that decides who may enter must not stand there twice."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in found and key in ("host", "authorization", "origin", "content-length"):
            raise Refusal(400, f"the header {key} stands twice", "send it once")
        found[key] = value.decode("latin-1")
    return found


def _hostname(host: str) -> str:
    """The name in a Host header, without its port and an address's brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _check_content_type(scope: Scope, headers: dict[str, str]) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if scope["method"] == "POST" and kind != "application/json":
        raise Refusal(415, f"the body is {kind[:60] or 'of no type'}", "send `Content-Type: application/json`")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands over the body once, and listens to the client after that."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _hurried(send: Send, seconds: float) -> Send:
    """A `send` that gives up on a client who does not read; the server then closes the connection."""

    async def hurried(message: Message) -> None:
        async with asyncio.timeout(seconds):
            await send(message)

    return hurried


async def _refuse(error: Refusal, receive: Receive, send: Send) -> None:
    """Answer with the error, and close where the request was not read to its end.

    A connection that is closed while its client still sends is reset, and the answer may be lost with it. So after the
    whole answer has gone out, what still comes is thrown away for a moment.
    """
    body = shape(error)
    unread = error.status in (408, 413)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    if unread:
        headers["connection"] = "close"
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": unread})
    if not unread:
        return
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})
