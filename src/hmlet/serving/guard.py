"""What every request passes, whatever it asks for: who may call, how much may come, one log line, one error shape."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from hmlet.serving.errors import CLOSE, Refusal, overloaded, shape
from hmlet.serving.observe import Metrics, log_failure, log_request
from hmlet.serving.settings import Limits, Settings
from hmlet.system.spelling import option

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROBES = frozenset({"/v1/health", "/v1/ready"})  # answered to anyone: a kubelet knows no name and no token
READING = ("GET", "HEAD")
ONCE = (b"host", b"authorization", b"origin", b"content-length", b"transfer-encoding")  # they decide who may enter
SMALL_BODY = 1 << 16  # bytes: beyond it a body counts as large while it is received


class Guard:
    """An ASGI application around the router: it checks headers, counts, logs, and turns every error into an answer."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics, public: frozenset[str]) -> None:
        self.app = app
        self.hosts, self.token = settings.hosts, settings.token
        self.metrics = metrics
        self.public = public  # paths that need no token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, start, status = os.urandom(8).hex(), time.perf_counter(), 0
        scope["app"] = self  # the router then raises 404 and 405 instead of answering them
        scope["run"] = None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request.encode()))
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, watched)
        except (Exception, asyncio.CancelledError) as error:
            known = log_failure(error, request)
            if not status:
                await _refuse(watched, known)
            else:
                raise  # half an answer is out: the server closes the connection
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("endpoint"), "path", "other")  # of a bounded number, unlike paths
            self.metrics.answered(route, status, seconds)
            log_request(scope, request, status, seconds)

    def _check(self, scope: Scope) -> None:
        """Refuse a request whose headers say that it may not enter."""
        headers, reading = _headers(scope), scope["method"] in READING
        if not (reading and scope["path"] in PROBES):
            host = headers.get(b"host", b"").decode("latin-1")
            if _hostname(host) not in self.hosts:
                fix = f"start it with {option('allow_hosts')}"
                raise Refusal(400, f"host {host[:100]!r} is not allowed", fix, "bad-host")
            self._check_token(scope, headers)
            if not reading:
                _check_origin(headers.get(b"origin"), host)

    def _check_token(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if self.token is None or scope["path"] in self.public:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token.encode()):
            raise Refusal(
                401,
                "this service asks for a token, and the request has none or another",
                "send the header `Authorization: Bearer TOKEN`",
                headers={"www-authenticate": "Bearer"},
            )


class Bodies:
    """Receives bodies, each within limits of size and time, and few large ones at once."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._large = 0

    async def receive(self, scope: Scope, receive: Receive) -> bytearray:
        """The whole body. Raises a Refusal if it is too large, too slow or not JSON."""
        headers = dict(scope["headers"])
        _check_content_type(headers)
        announced = headers.get(b"content-length", b"0")
        if len(announced) > 20 or int(announced) > self.limits.body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._whole(receive)
        except TimeoutError:
            slow = f"the body took longer than {self.limits.seconds:g} seconds"
            raise Refusal(408, slow, "send it at once", headers=CLOSE) from None

    async def _whole(self, receive: Receive) -> bytearray:
        body, counted = bytearray(), False
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the client closed the connection", "send the whole body")
                body += message.get("body", b"")
                if len(body) > self.limits.body_bytes:
                    raise self._too_large()
                if not message.get("more_body"):
                    return body
                if len(body) > SMALL_BODY and not counted:
                    if self._large >= self.limits.large_bodies:
                        raise overloaded(f"{self._large} large bodies are being received")
                    self._large, counted = self._large + 1, True
        finally:
            self._large -= counted

    def _too_large(self) -> Refusal:
        most = f"the body is larger than {self.limits.body_bytes:,} bytes"
        return Refusal(413, most, "send fewer ids at a time")


async def _refuse(send: Send, error: Refusal) -> None:
    """Answer with the error. What is left of the body is read and thrown away by the server, for a limited time."""
    body = shape(error)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """Names and values. Refuses what two readers of one request could take for two different requests."""
    found = dict(scope["headers"])
    if len(found) < len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        for name in ONCE:
            if names.count(name) > 1:
                raise Refusal(400, f"the header {name.decode()} is sent twice", "send it once", headers=CLOSE)
    if b"content-length" in found and b"transfer-encoding" in found:  # RFC 9112, section 6.1
        raise Refusal(400, "both content-length and transfer-encoding are sent", "send one of them", headers=CLOSE)
    if found.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
        raise Refusal(
            400, "this transfer-encoding is not supported", "send `chunked`, or no such header", headers=CLOSE
        )
    return found


def _hostname(host: str) -> str:
    """The name in a Host header, without its port and an address's brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _check_origin(origin: bytes | None, host: str) -> None:
    """A browser says which page a POST comes from; only our own page may send one."""
    if origin is not None and origin.decode("latin-1").lower() not in (
        f"http://{host}".lower(),
        f"https://{host}".lower(),
    ):
        page = origin.decode("latin-1")[:100]
        raise Refusal(403, f"a page of {page!r} may not call this service", "call it from its own page")


def _check_content_type(headers: dict[bytes, bytes]) -> None:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        sent = kind.decode("latin-1")[:60] or "of no type"
        raise Refusal(415, f"the body is {sent}", "send `Content-Type: application/json`")
