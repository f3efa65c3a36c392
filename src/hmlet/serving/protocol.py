"""uvicorn's HTTP protocol with what it lacks: limits on clients that send slowly, read slowly, or are too many."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from hmlet.serving import lanes
from hmlet.serving.answering import Asked
from hmlet.serving.express import Express
from hmlet.serving.failures import Refusal, overloaded, shape
from hmlet.serving.lanes import Lag, Lane, Queue, is_whole_post, lane_of
from hmlet.serving.observe import SECURITY_HEADERS, Metrics
from hmlet.serving.settings import Limits

PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 503: b"Service Unavailable"}
SEND_BUFFER = 64 << 10  # bytes that the system keeps for a client (Linux doubles it); by default it is megabytes
READ_BYTES = 16 << 10  # at a time: asyncio's 256 KiB are allocated for every read, however little comes
PIPELINED_BYTES = 64 << 10  # of further requests that a client may send before its answer is complete


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 over h11, in which every wait for a client ends.

    Two clocks run here. Headers must arrive in time, counted from the connection or from the first byte of a further
    request. A client must take each part of an answer in time, counted from the moment when the system takes no more of
    it, and the whole answer in `limits.answer_seconds`. `guard` times the body, and uvicorn's keep-alive timer closes
    an idle connection. Times differ by connection, up to a fifth, so that a crowd is not closed all at once.

    A request that is not ordinary takes turns with others of its kind before it is parsed, and so do all later ones on
    the same connection.
    """

    limits: Limits
    too_slow: bytes  # the answer to headers that took too long
    # Shared by all connections of one server:
    metrics: Metrics
    express: Express
    lag: Lag
    queue: Queue
    busy: set[ImpatientProtocol]  # connections whose ordinary request has arrived and is being answered
    unread: Unread

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_clock: asyncio.TimerHandle | None = None
        self._reader_clock: asyncio.TimerHandle | None = None
        self._answer_by: float | None = None  # the time on the loop's clock by which the client must have the answer
        self._patience = self.limits.seconds * random.uniform(0.8, 1)
        self._held = False  # until the client has read the answer before
        self._queued = False
        self._bulk = False
        self._answering: asyncio.Task[None] | None = None
        self._early = bytearray()  # requests that came before the answer to the one before
        self._stopping = False
        transport.set_write_buffer_limits(high=0)  # `pause_writing` and `resume_writing` then tell of every byte
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if len(self.connections) > self.limits.connections:
            self._answer_and_close(CROWDED)
        else:
            self._wind()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._was_read()
        self.busy.discard(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.transport._read_ready_cb = None  # type: ignore[attr-defined]  # asyncio leaves a cycle: its own method

    def shutdown(self) -> None:
        if self._queued:
            self._answer_and_close(STOPPING)
        elif self._answering is not None:
            self._stopping = True
        else:
            super().shutdown()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to stay open although the client sends no more: until its ordinary request has been answered.

        A client that has left looks the same, and is not worth a large answer.
        """
        if self not in self.busy:
            return False
        self.shutdown()
        return True

    # -- requests: which lane, and when ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.lag.measure(self.loop)
        if self.conn.their_state is h11.DONE:
            self._bulk = True  # it does not wait for its answer
            if len(self.conn.trailing_data[0]) + len(data) > PIPELINED_BYTES:
                self._abort()
                return
        if self._answering is not None:
            self._wait_behind_answer(data)
            return
        if self._is_idle():
            if self._is_behind() and is_whole_post(data):
                self._shed()
                return
            if not self._bulk and (asked := self.express.taken(data)) is not None:
                self._answer_directly(asked)
                return
        super().data_received(data)
        self._tend()

    def handle_events(self) -> None:
        """Take up the next request, unless an earlier answer waits to be read, or others come first."""
        if self._queued:
            return
        if self.flow.write_paused:
            self._held = True
            self.flow.pause_reading()
            return
        if self.conn.their_state is h11.IDLE:
            lane = lane_of(self.conn.trailing_data[0])
            self._bulk = self._bulk or lane is Lane.BULK
            if self._bulk and lane is not Lane.UNKNOWN:
                self._wait_for_turn()
                return
        super().handle_events()

    def _wait_for_turn(self) -> None:
        self._stop()
        self._unset_keepalive_if_required()
        if self.queue.join(self, self.loop):
            self._queued = True
            self.flow.pause_reading()
        else:
            self.metrics.shed()
            self._answer_and_close(QUEUE_FULL)

    def take_turn(self) -> bool:
        """Parse the request that waited; False if its client has gone."""
        self._queued = False
        if self.transport.is_closing():
            return False
        self.flow.resume_reading()
        super().handle_events()
        self._tend()
        return True

    def _tend(self) -> None:
        """Set the header clock by what came, and count the connection if an ordinary request is being answered."""
        if self._queued:
            return
        if self.cycle is None or self.cycle.response_complete:
            self._wind()
            return
        self._stop()
        if not self.cycle.more_body and not self._bulk:
            self.busy.add(self)

    def on_response_complete(self) -> None:
        self.busy.discard(self)
        self._answer_by = None
        super().on_response_complete()
        if self.flow.write_paused:  # the connection is not idle before the client has read the answer
            self._unset_keepalive_if_required()

    # -- requests that need neither h11 nor the application ---------------------------------------------------------

    def _answer_directly(self, asked: Asked) -> None:
        self._stop()
        self._unset_keepalive_if_required()
        self.busy.add(self)
        self._answering = self.loop.create_task(self._answer(asked))
        self.tasks.add(self._answering)
        self._answering.add_done_callback(self.tasks.discard)

    async def _answer(self, asked: Asked) -> None:
        answer = await self.express.answer(asked, self.client, self.server_state.default_headers)
        self.busy.discard(self)
        self.server_state.total_requests += 1
        self._answering = None
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        self._answer_by = None
        if self._stopping:
            self.transport.close()
            return
        if not self.flow.write_paused:
            self._arm_keepalive()
        if waiting := bytes(self._early):
            self._early.clear()
            self.data_received(waiting)

    def _wait_behind_answer(self, data: bytes) -> None:
        """Keep a further request until the answer before it is complete. Its client does not wait for answers."""
        self._bulk = True
        self._early += data
        if len(self._early) > PIPELINED_BYTES:
            self._abort()

    # -- an event loop that is behind -----------------------------------------------------------------------------

    def _is_behind(self) -> bool:
        """Whether more is under way than is soon done. The count bounds what one round of the loop takes up."""
        late = self.lag.seconds > lanes.LATE and len(self.busy) >= lanes.BUSY
        return not self._bulk and (late or len(self.busy) >= self.limits.in_flight)

    def _shed(self) -> None:
        self.metrics.shed()
        self.transport.write(SHED)
        self._stop()
        self._arm_keepalive()

    def _is_idle(self) -> bool:
        """Whether the next byte begins a request: nothing is half received, computed or sent."""
        return self.conn.our_state is h11.IDLE and not self.conn.trailing_data[0] and not self.flow.write_paused

    def _arm_keepalive(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    # -- clients that send slowly ---------------------------------------------------------------------------------

    def _wind(self) -> None:
        if self._header_clock is None:
            self._header_clock = self.loop.call_later(self._patience, self._give_up)

    def _stop(self) -> None:
        if self._header_clock is not None:
            self._header_clock.cancel()
            self._header_clock = None

    def _give_up(self) -> None:
        self._header_clock = None
        if self.conn.their_state is h11.SEND_BODY:  # of a request that was refused, and answered, before all of it came
            self.transport.close()
        elif self.cycle is None or self.cycle.response_complete:
            self._answer_and_close(self.too_slow)

    # -- clients that read slowly ---------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Start the clock: part of an answer waits in this process, because the client does not read."""
        super().pause_writing()
        self._bulk = True  # what it asks for is more than the system takes at once
        now = self.loop.time()
        self._answer_by = self._answer_by or now + self.limits.answer_seconds
        self._reader_clock = self.loop.call_at(min(now + self._patience, self._answer_by), self._abort)
        for oldest in self.unread.add(self, self.transport.get_write_buffer_size(), self.limits.unread_bytes):
            oldest._abort()

    def resume_writing(self) -> None:
        """Go on with this client, who has read what there was."""
        super().resume_writing()
        self._was_read()
        if self.transport.is_closing():
            return
        if self._held:
            self._held = False
            self.flow.resume_reading()
            self.handle_events()
        if self._is_idle():
            self._arm_keepalive()
        else:
            self._tend()

    def _was_read(self) -> None:
        self.unread.remove(self)
        if self._reader_clock is not None:
            self._reader_clock.cancel()
            self._reader_clock = None

    def _abort(self) -> None:
        self.metrics.abort()
        self._was_read()
        self.transport.abort()  # `close` would wait for the client

    # -- answers that no application gives ------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._answer_and_close(_answer(Refusal(400, msg, "send HTTP/1.1"), CLOSE))

    def _answer_and_close(self, answer: bytes) -> None:
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(answer)
        self.transport.close()  # alone if half an answer is out: a second one inside it would be read as its text


class Unread:
    """Connections whose answers wait to be read, oldest first, and how many bytes these are together."""

    def __init__(self) -> None:
        self._sizes: dict[ImpatientProtocol, int] = {}
        self._total = 0

    def add(self, connection: ImpatientProtocol, size: int, most: int) -> list[ImpatientProtocol]:
        """Add a connection. Returns the older ones that have to go so that `most` bytes remain."""
        self.remove(connection)
        older, left = [], self._total + size
        for each, its_size in self._sizes.items():
            if left <= most:
                break
            older.append(each)
            left -= its_size
        self._sizes[connection] = size
        self._total += size
        return older

    def remove(self, connection: ImpatientProtocol) -> None:
        self._total -= self._sizes.pop(connection, 0)


def _answer(error: Refusal, *headers: tuple[bytes, bytes]) -> bytes:
    """A whole HTTP answer."""
    body = shape(error)
    kind, length = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))
    own = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    lines = [b"%s: %s\r\n" % each for each in (kind, length, *own, *headers, *SECURITY_HEADERS)]
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (error.status, PHRASES[error.status], b"".join(lines), body)


CLOSE = (b"connection", b"close")
SHED = _answer(overloaded("the service is behind"))
QUEUE_FULL = _answer(overloaded("too many large requests are waiting"), CLOSE)
CROWDED = _answer(overloaded("too many connections are open"), CLOSE)
STOPPING = _answer(Refusal(503, "the service is stopping", "try again later"), CLOSE)


def impatient(limits: Limits, metrics: Metrics, express: Express) -> type[Any]:
    """The protocol class with given limits: uvicorn takes a class and makes one object a connection."""
    slow = Refusal(408, f"the headers took longer than {limits.seconds:g} seconds", "send them at once")
    shared = {"metrics": metrics, "express": express, "lag": Lag(), "queue": Queue(), "busy": set(), "unread": Unread()}
    return type("Protocol", (ImpatientProtocol,), {"limits": limits, "too_slow": _answer(slow, CLOSE), **shared})
