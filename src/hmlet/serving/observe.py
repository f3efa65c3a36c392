"""What the operator sees: one JSON line per request, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import time
import traceback
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache
from logging.handlers import QueueHandler, QueueListener
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from hmlet.serving.errors import Refusal, refusal

if TYPE_CHECKING:
    from hmlet.serving.service import Service

LOGGER = logging.getLogger("hmlet.serving")
QUEUED_LINES = 10_000  # that wait to be written
CLOSING_SECONDS = 1.0
GATHERED_BYTES = 1 << 16  # of lines that are written at once, also while further ones keep coming
GATHERING_SECONDS = 0.05
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client adds up the workers' counters in this directory


class Metrics:
    """Counters of the service; those of several workers are added up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("hmlet_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self._seconds = Histogram(
            "hmlet_request_seconds", "Time to answer.", ["route"], registry=self.registry, buckets=BUCKETS
        )
        self.reloads = Counter("hmlet_reloads", "Runs offered, by outcome.", ["outcome"], registry=self.registry)
        self.log_dropped = Counter("hmlet_log_lines_dropped", "Lines that nobody read in time.", registry=self.registry)

        self._of_answers = cache(
            lambda route, status: (self._requests.labels(route, status), self._seconds.labels(route))
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        count, histogram = self._of_answers(route, status)  # looking labels up takes longer than counting
        count.inc()
        histogram.observe(seconds)

    def text(self, service: Service) -> bytes:
        """All metrics, in the format of Prometheus."""
        registry = CollectorRegistry()
        if SHARED_METRICS in os.environ:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        else:
            registry.register(self.registry)
        registry.register(_ServedRun(service))
        return generate_latest(registry)


class _ServedRun(Collector):
    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The run that is served, and the requests that wait; of several workers, those of this one."""
        served = self.service.current
        yield GaugeMetricFamily("hmlet_requests_in_flight", "Requests that wait.", value=self.service.in_flight)
        info = GaugeMetricFamily("hmlet_run_info", "The run that is served.", labels=["run", "model"])
        info.add_metric([served.name, served.run.record.model], 1)
        yield info


def log_request(scope: MutableMapping[str, Any], request: str, status: int, seconds: float) -> None:
    """Log an answer. The path is without the query: what people look for is nobody's business."""
    client = scope.get("client")
    fields = {
        "request": request,
        "client": client[0] if client else None,
        "method": scope["method"][:20],
        "path": scope["path"][:400],  # cut again once it has no token
        "status": status,
        "ms": round(1000 * seconds, 2),
        "run": scope["run"],
    }
    LOGGER.info("request", extra={"fields": fields})


def log_failure(error: BaseException, request: str) -> Refusal:
    """The answer to an error. One that no request should cause is logged with its traceback."""
    if isinstance(error, asyncio.CancelledError):  # the service stops, and this request took longer than it waits for
        LOGGER.warning("cut off", extra={"fields": {"request": request}})
        return Refusal(503, "the service is stopping", "try again later")
    known = refusal(error)
    if known.status == 500:
        details = "".join(traceback.format_exception(error))
        LOGGER.error("internal error", extra={"fields": {"request": request, "traceback": details}})
    return known


class DroppingQueue(QueueHandler):
    """Hands log records to the thread that writes them, and drops and counts them while nobody reads the log."""

    def __init__(self, lines: queue.SimpleQueue[logging.LogRecord], dropped: Counter) -> None:
        super().__init__(lines)
        self.lines, self.dropped = lines, dropped

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # the listener is in this process, and formats it

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.lines.qsize() < QUEUED_LINES:
            self.lines.put(record)
        else:
            self.dropped.inc()


class GatheringListener(QueueListener):
    """Writes lines twenty times a second, many together: waking a thread for each costs more than the line itself."""

    def __init__(self, lines: queue.SimpleQueue[logging.LogRecord], writer: logging.Handler) -> None:
        super().__init__(lines, writer)
        self.lines = lines

    def dequeue(self, block: bool) -> logging.LogRecord:
        while True:
            try:
                return self.lines.get_nowait()
            except queue.Empty:
                for handler in self.handlers:
                    handler.flush()
                time.sleep(GATHERING_SECONDS)


class JsonLines(logging.Formatter):
    """One JSON object per line, with the token redacted."""

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
        return msgspec.json.encode({name: self._redacted(value) for name, value in line.items()}).decode()

    def _redacted(self, value: object) -> int | float | str | None:
        """A number as it is, anything else as text without the token."""
        if value is None or isinstance(value, int | float):
            return value
        text = str(value).encode("utf-8", "backslashreplace").decode()  # a path may hold halves of surrogate pairs
        return text.replace(self.token, "[token]") if self.token else text


class DescriptorHandler(logging.Handler):
    """Writes to a file descriptor. The locks of a stream or a handler would hold up the end of the process."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor, self.lines = descriptor, bytearray()

    def createLock(self) -> None:
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += self.format(record).encode() + b"\n"
        if len(self.lines) >= GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        lines, self.lines = bytes(self.lines), bytearray()
        with suppress(OSError):
            while lines:
                lines = lines[os.write(self.descriptor, lines) :]


@contextmanager
def logging_to(descriptor: int, token: str | None, dropped: Counter) -> Iterator[None]:
    """Send our log lines and uvicorn's to a file descriptor, by a thread, so that a slow reader stops nothing."""
    # As "Optimization" in Python's "Logging HOWTO" says: what no line shows is not looked up for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    writer = DescriptorHandler(descriptor)
    writer.setFormatter(JsonLines(token))
    for name in ("hmlet.serving", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [DroppingQueue(lines, dropped)], False
        logger.setLevel(logging.INFO)
    GatheringListener(lines, writer).start()
    try:
        yield
    finally:  # its `stop` would wait for the reader of the log
        end = time.monotonic() + CLOSING_SECONDS
        while not (lines.empty() and not writer.lines) and time.monotonic() < end:
            time.sleep(0.01)
