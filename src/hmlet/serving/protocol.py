"""uvicorn's HTTP protocol with what it lacks: limits on clients that send slowly, read slowly, or are too many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from hmlet.serving.failures import Refusal, overloaded, shape
from hmlet.serving.observe import LOGGER, SECURITY_HEADERS
from hmlet.serving.settings import Limits

PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 503: b"Service Unavailable"}
# A POST request is shed before it is parsed while the event loop is so many seconds behind and has so many to answer.
LATE = 0.01
BUSY = 16


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


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 over h11, in which every wait for a client ends after `limits.seconds`.

    Two clocks run here. Headers must arrive in time, counted from the connection or from the first byte of a further
    request. An answer must be read in time, counted from the moment when the system takes no more of it. `guard` times
    the body, and uvicorn's keep-alive timer closes an idle connection.
    """

    limits: Limits
    # Shared by all connections of one server:
    lag: Lag
    shed: Callable[[], None]  # is told of every request that is shed here
    busy: set[ImpatientProtocol]  # connections whose request has arrived and is being answered
    unread: dict[ImpatientProtocol, None]  # connections whose answers wait to be read, oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_clock: asyncio.TimerHandle | None = None
        self._reader_clock: asyncio.TimerHandle | None = None
        self._held = False
        transport.set_write_buffer_limits(high=0)  # `pause_writing` and `resume_writing` then tell of every byte
        if len(self.connections) > self.limits.connections:
            self._answer_and_close(overloaded("too many connections are open"))
        else:
            self._wind()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._was_read()
        self.busy.discard(self)
        super().connection_lost(exc)

    # -- clients that send slowly ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.lag.measure(self.loop)
        if self.lag.seconds > LATE and len(self.busy) >= BUSY and self._is_idle() and is_whole_post(data):
            self._shed()
            return
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wind()
        else:
            self._stop()
            if not self.cycle.more_body:
                self.busy.add(self)

    def on_response_complete(self) -> None:
        self.busy.discard(self)
        super().on_response_complete()

    def _shed(self) -> None:
        self.shed()
        self.transport.write(SHED)
        self._stop()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _is_idle(self) -> bool:
        """Whether the next byte begins a request: nothing is half received, computed or sent."""
        return self.conn.our_state is h11.IDLE and not self.conn.trailing_data[0] and not self.flow.write_paused

    def _wind(self) -> None:
        if self._header_clock is None:
            self._header_clock = self.loop.call_later(self.limits.seconds, self._give_up)

    def _stop(self) -> None:
        if self._header_clock is not None:
            self._header_clock.cancel()
            self._header_clock = None

    def _give_up(self) -> None:
        self._header_clock = None
        if self.conn.their_state is h11.SEND_BODY:  # of a request that was refused, and answered, before all of it came
            self.transport.close()
        elif self.cycle is None or self.cycle.response_complete:
            message = f"the headers took longer than {self.limits.seconds:g} seconds"
            self._answer_and_close(Refusal(408, message, "send them at once"))

    # -- clients that read slowly ---------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Start the clock: part of an answer waits in this process, because the client does not read."""
        super().pause_writing()
        self._reader_clock = self.loop.call_later(self.limits.seconds, self._abort)
        self.unread[self] = None
        waiting = sum(each.transport.get_write_buffer_size() for each in self.unread)
        for each in list(self.unread):
            if waiting <= self.limits.unread_bytes or each is self:
                break
            waiting -= each.transport.get_write_buffer_size()
            each._abort()

    def resume_writing(self) -> None:
        """Go on with this client, who has read everything."""
        super().resume_writing()
        self._was_read()
        if self._held and not self.transport.is_closing():
            self._held = False
            self.flow.resume_reading()
            self.handle_events()

    def handle_events(self) -> None:
        """Take up the next request, unless an earlier answer waits: a client has one answer in memory at a time."""
        if self.flow.write_paused:
            self._held = True
            self.flow.pause_reading()
        else:
            super().handle_events()

    def _was_read(self) -> None:
        self.unread.pop(self, None)
        if self._reader_clock is not None:
            self._reader_clock.cancel()
            self._reader_clock = None

    def _abort(self) -> None:
        LOGGER.warning("client too slow", extra={"fields": {"client": (self.client or [None])[0]}})
        self._was_read()
        self.transport.abort()  # `close` would wait for the client

    # -- answers that no application gives ------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._answer_and_close(Refusal(400, msg, "send HTTP/1.1"))

    def _answer_and_close(self, error: Refusal) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # half an answer is out already: a second one inside it would be read as its text
            return
        self.transport.write(_answer(error, (b"connection", b"close")))
        self.transport.close()


def _answer(error: Refusal, *headers: tuple[bytes, bytes]) -> bytes:
    """A whole HTTP answer."""
    body = shape(error)
    kind, length = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))
    own = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    lines = [b"%s: %s\r\n" % each for each in (kind, length, *own, *headers, *SECURITY_HEADERS)]
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (error.status, PHRASES[error.status], b"".join(lines), body)


SHED = _answer(overloaded("the service is behind"))


def is_whole_post(data: bytes) -> bool:
    """Whether the bytes are one POST request and no more; h11 reads what is not clearly that."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"POST /v1/") or not end:
        return False
    names = head.lower()
    length = names.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0].strip()
    unclear = names.count(b"content-length") != 1 or any(name in names for name in (b"transfer-enc", b"connection: c"))
    return not unclear and length.isdigit() and int(length[:10]) == len(body)


def impatient(limits: Limits, shed: Callable[[], None]) -> type[Any]:
    """The protocol class with given limits: uvicorn takes a class and makes one object a connection."""
    shared = {"limits": limits, "lag": Lag(), "shed": staticmethod(shed), "busy": set(), "unread": {}}
    return type("Protocol", (ImpatientProtocol,), shared)
