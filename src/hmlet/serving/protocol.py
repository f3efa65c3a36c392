"""uvicorn's HTTP protocol with what it lacks: a client has so many seconds for its headers, and then it is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from hmlet.serving.failures import Refusal, shape


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 over h11. From connecting, or from the first byte of a further request, its headers must be in in time.

    Bodies and answers have their own clock in `guard`, and an idle connection has uvicorn's keep-alive clock.
    """

    header_seconds = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._clock: asyncio.TimerHandle | None = None
        self._wind()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wind()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wind(self) -> None:
        if self._clock is None:
            self._clock = self.loop.call_later(self.header_seconds, self._give_up)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _give_up(self) -> None:
        self._clock = None
        if self.cycle is None or self.cycle.response_complete:
            message = f"the headers took longer than {self.header_seconds:g} seconds"
            self._answer_and_close(b"408 Request Timeout", Refusal(408, message, "send them at once"))

    def send_400_response(self, msg: str) -> None:
        self._answer_and_close(b"400 Bad Request", Refusal(400, msg, "send HTTP/1.1"))

    def _answer_and_close(self, status: bytes, error: Refusal) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # half an answer is out already: a second one inside it would be read as its text
            return
        body = shape(error)
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self.transport.close()


def impatient(seconds: float) -> type[Any]:
    """The protocol class with a given patience: uvicorn takes a class and makes one object a connection."""
    return type("Protocol", (ImpatientProtocol,), {"header_seconds": seconds})
