"""What the operator sees: one JSON line a request, Prometheus metrics; and the headers that every answer carries."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import threading
import time
import traceback
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hmlet.serving.failures import BUG, Refusal, shape
from hmlet.serving.guard import App, Message, Receive, Scope, Send

LOGGER = logging.getLogger("hmlet.serving")
SECURITY_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
QUEUED_LINES = 10_000  # log lines that wait to be written
CLOSING_SECONDS = 1.0
GATHERING_SECONDS = 0.05  # lines that come meanwhile are written together: waking a thread for each costs more than it
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Tally:
    """Events that may come by the thousand: at most one log line per second says how many there were."""

    def __init__(self, event: str, unit: str) -> None:
        self._event, self._unit = event, unit
        self._count, self._tell_at = 0, 0.0

    def add(self) -> None:
        self._count += 1
        if time.monotonic() >= self._tell_at:
            LOGGER.warning(self._event, extra={"fields": {self._unit: self._count}})
            self._count, self._tell_at = 0, time.monotonic() + 1


class Metrics:
    """The counters of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["route", "status"]
        self.requests = Counter("hmlet_requests", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "hmlet_request_seconds", "Time to answer.", ["route"], registry=self.registry, buckets=BUCKETS
        )
        self.in_flight = Gauge("hmlet_requests_in_flight", "Requests being answered.", registry=self.registry)
        self.reloads = Counter("hmlet_reloads", "Runs offered, by outcome.", ["outcome"], registry=self.registry)
        self._shed, self._aborted = Tally("shedding", "requests"), Tally("clients too slow", "connections")
        self.aborted = Counter("hmlet_connections_aborted", "Clients that read too slowly.", registry=self.registry)
        self.log_dropped = Gauge("hmlet_log_lines_dropped", "Lines that nobody read in time.", registry=self.registry)
        labels = ["run", "model", "arm"]
        self.run = Gauge("hmlet_run_info", "The runs that are served.", labels, registry=self.registry)
        self.lists = Counter("hmlet_recommendations", "Lists made, by arm.", ["arm"], registry=self.registry)

    def shed(self) -> None:
        """Count a request that was refused before it was parsed."""
        self.requests.labels("shed", 503).inc()
        self._shed.add()

    def abort(self) -> None:
        """Count a connection whose client read too slowly or sent too much."""
        self.aborted.inc()
        self._aborted.add()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Observe:
    """An ASGI application around all others: it counts, logs, adds headers, and turns a crash into the error shape."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, start, status = new_request(), time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [*SECURITY_HEADERS, (b"x-request-id", request.encode())]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        with self.metrics.in_flight.track_inprogress():
            try:
                await self.app(scope, receive, watched)
            except (Exception, asyncio.CancelledError) as error:
                known = failure(error, request)
                if not status:
                    await _fail(watched, known)
            finally:
                route = getattr(scope.get("route"), "path", "other")  # of a bounded number, unlike paths
                asked = scope.get("client"), scope["method"][:20], scope["path"][:200]
                record(self.metrics, route, request, *asked, status, time.perf_counter() - start)


def new_request() -> str:
    """An id for a request."""
    return os.urandom(8).hex()


def failure(error: BaseException, request: str) -> Refusal:
    """What a client is told of an error that no request should cause; the log has the details."""
    if isinstance(error, asyncio.CancelledError):  # the service stops, and this request took longer than it waits for
        LOGGER.warning("cut off", extra={"fields": {"request": request}})
        return Refusal(503, "the service is stopping", "try again later")
    details = "".join(traceback.format_exception(error))
    LOGGER.error("bug", extra={"fields": {"request": request, "traceback": details}})
    return BUG


def record(
    metrics: Metrics,
    route: str,
    request: str,
    client: tuple[str, int] | None,
    method: str,
    path: str,
    status: int,
    seconds: float,
) -> None:
    """Count and log an answer. The path is without the query: what people look for is nobody's business."""
    metrics.requests.labels(route, status).inc()
    metrics.seconds.labels(route).observe(seconds)
    fields = {
        "request": request,
        "client": client[0] if client else None,
        "method": method,
        "path": path,
        "status": status,
        "ms": round(1000 * seconds, 2),
    }
    LOGGER.info("request", extra={"fields": fields})


async def _fail(send: Send, error: Refusal) -> None:
    body = shape(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class LogWriter(logging.Handler):
    """Writes log lines in a thread of its own: a reader who stops, or a full disk, does not stop the service.

    Lines that do not fit into the queue are dropped and counted.
    """

    def __init__(self, descriptor: int, formatter: logging.Formatter, most: int = QUEUED_LINES) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.dropped = 0
        self._descriptor = descriptor  # not a stream: its lock would hold up the end of the process
        self._most = most
        self._records: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()  # in C, and so half the cost
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._records.qsize() < self._most:
            self._records.put(record)
        else:
            self.dropped += 1

    def _write(self) -> None:
        closing = False
        while not closing:
            records = [self._records.get()]
            with suppress(queue.Empty):
                while True:
                    records.append(self._records.get_nowait())
            closing = None in records
            lines = b"".join(self.format(record).encode() + b"\n" for record in records if record is not None)
            with suppress(OSError):
                while lines:
                    lines = lines[os.write(self._descriptor, lines) :]
            if not closing:
                time.sleep(GATHERING_SECONDS)

    def close(self) -> None:
        """Write what waits, but not for longer than a moment."""
        super().close()
        self._records.put(None)
        self._thread.join(CLOSING_SECONDS)


class JsonLines(logging.Formatter):
    """One JSON object a line, in which the token is blotted out wherever it came from."""

    def __init__(self, token: str | None = None) -> None:
        super().__init__()
        self.token = token

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Before it is JSON: there a quote or a backslash of the token would look different.
        return json.dumps({name: self._blotted(value) for name, value in line.items()}, ensure_ascii=True)

    def _blotted(self, value: object) -> int | float | str | None:
        """A number as it is, anything else as text without the token."""
        if value is None or isinstance(value, int | float):
            return value
        return str(value).replace(self.token, "[token]") if self.token else str(value)
