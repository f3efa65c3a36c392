"""The door: host, token, origin, size, time and load are checked before any endpoint sees a request."""

from __future__ import annotations

import asyncio
import hmac
import random
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from hmlet.serving import strict_json
from hmlet.serving.failures import Refusal, overloaded, shape
from hmlet.serving.settings import Settings
from hmlet.system.spelling import option

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROBES = frozenset({"/v1/health", "/v1/ready"})  # answered to anyone: a kubelet knows no name and no token
AT_ANY_LOAD = PROBES | {"/metrics"}
ONCE = ("host", "authorization", "origin", "content-length", "transfer-encoding")  # headers that decide who may enter
SMALL_BODY = 1 << 14  # bytes: a body up to here is always received, whatever others hold
LINGER_SECONDS = 2.0
CLOSE = {"connection": "close"}  # of an answer to a request that is not read to its end


class Guard:
    """An ASGI application that lets a request through to another, whole and checked, or refuses it.

    A request takes one of the `in_flight` slots when its body has arrived, and leaves it when its answer begins. So a
    client that sends or reads slowly holds no slot. An endpoint whose answer takes long, and which limits such calls on
    its own, leaves the slot early with `scope["leave"]`.
    """

    def __init__(self, app: App, settings: Settings, public: frozenset[str]) -> None:
        self.app = app
        self.settings = settings
        self.limits = settings.limits
        self.public = public  # paths that need no token
        self.in_flight = 0
        self.arriving = 0  # bytes of large bodies that are being received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = self.checked(scope)
            self._check_load(scope)
            body = await self._body(headers, receive)
            if body is None:
                return
            self._check_load(scope)  # again: others may have come while the body arrived
            if body and scope["method"] == "POST":
                scope["json"] = strict_json.parse(body)
        except Refusal as error:
            await _refuse(error, receive, send)
            return
        await self._admit(scope, _replay(body, receive), send)

    def checked(self, scope: Scope) -> dict[str, str]:
        """The headers of a request that may enter; raises a Refusal for any other."""
        headers = _headers(scope)
        is_reading = scope["method"] in ("GET", "HEAD")
        if not (is_reading and scope["path"] in PROBES):
            self._check_host(headers)
            self._check_token(scope, headers)
        if not is_reading:
            self._check_origin(headers)
            _check_content_type(scope, headers)
        return headers

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application compute the answer in a slot of its own."""
        slots = 1
        self.in_flight += slots

        def leave() -> None:
            nonlocal slots
            self.in_flight -= slots
            slots = 0

        scope["leave"] = leave

        async def leaving(message: Message) -> None:
            leave()
            await send(message)

        try:
            await self.app(scope, receive, leaving)
        finally:
            leave()

    def _check_load(self, scope: Scope) -> None:
        if scope["path"] not in AT_ANY_LOAD and self.in_flight >= self.limits.in_flight:
            raise overloaded(f"{self.in_flight} requests are being answered")

    def _check_host(self, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if _hostname(host) not in self.settings.hosts:
            raise Refusal(
                400, f"host {host[:100]!r} is not allowed", f"start it with {option('allow_hosts')}", "bad-host"
            )

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
        origin, host = headers.get("origin"), headers["host"].lower()
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise Refusal(403, f"a page of {origin[:100]!r} may not call this service", "call it from its own page")

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | None:
        """The whole body within the limits of size and time, or None where the client has gone."""
        limit, announced = self.limits.body_bytes, headers.get("content-length", "0")
        too_large = Refusal(413, f"the body is larger than {limit:,} bytes", "send fewer ids at a time", headers=CLOSE)
        if announced.isascii() and announced.isdigit() and int(announced[:20]) > limit:
            raise too_large
        parts, size, counted = [], 0, 0
        try:
            async with asyncio.timeout(self.limits.seconds * random.uniform(0.8, 1)):  # a crowd does not end at once
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
                    if size > SMALL_BODY:
                        self.arriving, counted = self.arriving + size - counted, size
                        if self.arriving > self.limits.arriving_bytes:
                            raise overloaded("too many large bodies are being received", CLOSE)
        except TimeoutError:
            slow = f"the body took longer than {self.limits.seconds:g} seconds"
            raise Refusal(408, slow, "send it at once", headers=CLOSE) from None
        finally:
            self.arriving -= counted


def _headers(scope: Scope) -> dict[str, str]:
    """Names and values. Refuses what two readers of one request could take for two different requests."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in found and key in ONCE:
            raise Refusal(400, f"the header {key} is sent twice", "send it once", headers=CLOSE)
        found[key] = value.decode("latin-1")
    if "content-length" in found and "transfer-encoding" in found:  # RFC 9112, section 6.1
        raise Refusal(400, "both content-length and transfer-encoding are sent", "send one of them", headers=CLOSE)
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


async def _refuse(error: Refusal, receive: Receive, send: Send) -> None:
    """Answer with the error, and close where the request was not read to its end.

    A connection that is closed while its client still sends is reset, and the answer may be lost with it. So after the
    whole answer has gone out, what still comes is thrown away for a moment.
    """
    body = shape(error)
    unread = CLOSE.items() <= error.headers.items()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
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
