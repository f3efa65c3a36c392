"""Two lanes, chosen before a request is parsed: ordinary requests go ahead, all others take turns."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum
from typing import Protocol

ORDINARY_BODY = 1 << 10  # bytes: a POST request with a longer body takes turns
TURN_SECONDS = 0.01  # one turn each: parsing and checking a large request takes the event loop 1 to 3 ms
MOST_QUEUED = 512  # connections: at most five seconds of waiting
LATE = 0.01  # seconds: an event loop that is further behind sheds ordinary POST requests,
BUSY = 16  # if it also has this many ordinary requests to answer


class Lane(Enum):
    """Where a request belongs, by its first bytes."""

    UNKNOWN = "the head is not complete"
    ORDINARY = "one small request and nothing after it"
    BULK = "anything else"


def lane_of(data: bytes) -> Lane:
    """The lane of a request that begins with these bytes. Its body may still be on the way."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:  # h11 also ends a head at a bare line feed
        return Lane.BULK if b"\n\n" in data or b"\n\r\n" in data else Lane.UNKNOWN
    length = _body_length(head)
    return Lane.ORDINARY if length is not None and len(rest) <= length <= ORDINARY_BODY else Lane.BULK


def is_whole_post(data: bytes) -> bool:
    """Whether the bytes are exactly one ordinary POST request, which can be answered without parsing it."""
    head, _, body = data.partition(b"\r\n\r\n")
    plain = head.startswith(b"POST /v1/") and b"connection: c" not in head.lower()
    return plain and lane_of(data) is Lane.ORDINARY and len(body) == _body_length(head)


def _body_length(head: bytes) -> int | None:
    """The length of the body that a head announces; None unless it is clear at a glance."""
    names = head.lower()
    if b"transfer-encoding" in names:
        return None
    announced = names.count(b"content-length")
    if announced == 0 and head.startswith((b"GET ", b"HEAD ")):
        return 0
    length = names.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0].strip()
    return int(length[:10]) if announced == 1 and head.startswith(b"POST ") and length.isdigit() else None


class Queued(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self) -> bool:
        """Go on; False if the connection has closed and the turn is still free."""


class Queue:
    """Connections in the bulk lane. One goes ahead every `TURN_SECONDS`, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[Queued] = deque()
        self._running = False

    def join(self, connection: Queued, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether there is room to wait."""
        if len(self._waiting) >= MOST_QUEUED:
            return False
        self._waiting.append(connection)
        if not self._running:
            self._running = True
            loop.call_soon(self._next, loop)
        return True

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            if self._waiting.popleft().take_turn():
                loop.call_later(TURN_SECONDS, self._next, loop)
                return
        self._running = False


class Lag:
    """How far the event loop is behind: the work it does until it has come round twice, measured while requests come.

    Requests that arrive meanwhile wait at least as long before anything counts them. Work is processor time: a loop
    that waits for a processor is late too, but shedding would not help it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._measuring = False

    def measure(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._measuring:
            self._measuring = True
            loop.call_soon(loop.call_soon, self._come_round, loop, time.thread_time())

    def _come_round(self, loop: asyncio.AbstractEventLoop, began: float) -> None:
        self.seconds, self._measuring = time.thread_time() - began, False
        if self.seconds > LATE:  # until it has caught up: nobody might come and measure
            self.measure(loop)
