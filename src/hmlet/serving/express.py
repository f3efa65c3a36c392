"""The shortest way of the most frequent request: POST /v1/recommend from bytes to bytes, without h11 and ASGI."""

from __future__ import annotations

import asyncio
import re
import time
from functools import lru_cache
from http import HTTPStatus

from pydantic import ValidationError

from hmlet.errors import HmletError
from hmlet.serving import schemas, strict_json
from hmlet.serving.answering import Asked, few, is_small
from hmlet.serving.direct import PATH, REQUEST
from hmlet.serving.failures import refusal, shape
from hmlet.serving.guard import Guard
from hmlet.serving.lanes import ORDINARY_BODY
from hmlet.serving.observe import SECURITY_HEADERS, failure, new_request, record
from hmlet.serving.replies import origin
from hmlet.serving.service import Service

FIRST_LINE = b"POST %s HTTP/1.1" % PATH.encode()
LONGEST_HEAD = 2 << 10  # bytes
REMEMBERED = 1024  # heads: clients repeat theirs, so nearly every head has been judged before
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\x21-\x7e][\x20-\x7e]*)")
GENERAL = {b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"}  # what only the general way understands
ALWAYS = b"".join(b"%s: %s\r\n" % each for each in ((b"content-type", b"application/json"), *SECURITY_HEADERS))
Client = tuple[str, int] | None


class Express:
    """Answers requests for a few users' lists that arrive whole and are valid.

    Everything else takes the general way, which reads HTTP in all its forms and says what is wrong with a request.
    """

    def __init__(self, service: Service, guard: Guard) -> None:
        self.service, self.guard = service, guard
        self.body_length = lru_cache(REMEMBERED)(self._body_length)

    def taken(self, data: bytes) -> Asked | None:
        """What a request asks for; None if it has to take the general way."""
        head, _, body = data.partition(b"\r\n\r\n")
        if not head.startswith(FIRST_LINE) or len(head) > LONGEST_HEAD or len(body) != self.body_length(head):
            return None
        try:
            request = REQUEST.validate_python(strict_json.parse(body))
            if not isinstance(request, schemas.ForUsers):
                return None
            asked = Asked.of(self.service.lineup, request)
            return asked if is_small(self.service, len(asked.users), asked.k, "users") else None
        except (HmletError, ValidationError):
            return None

    def _body_length(self, head: bytes) -> int | None:
        """The length of the body behind a head that is plain and may enter; None for any other.

        It depends on nothing but the head and the settings, so it can be remembered.
        """
        first, *lines = head.split(b"\r\n")
        matches = [HEADER.fullmatch(line) for line in lines]
        headers = [(match[1].lower(), match[2]) for match in matches if match]
        if first != FIRST_LINE or len(headers) < len(lines) or any(name in GENERAL for name, _ in headers):
            return None
        if any(value.lower() != b"keep-alive" for name, value in headers if name == b"connection"):
            return None
        try:
            found = self.guard.checked({"method": "POST", "path": PATH, "headers": headers})
        except HmletError:
            return None
        length = found.get("content-length", "")
        return int(length) if re.fullmatch("[0-9]{1,4}", length) and int(length) <= ORDINARY_BODY else None

    async def answer(self, asked: Asked, client: Client, dated: list[tuple[bytes, bytes]]) -> bytes:
        """The whole answer, counted and logged like any other. `dated` are the headers that uvicorn adds."""
        request, start, metrics = new_request(), time.perf_counter(), self.service.metrics
        status, headers = b"200 OK", origin(*asked.served)
        self.guard.in_flight += 1
        metrics.in_flight.inc()
        try:
            body = await few(self.service, asked)
        except (Exception, asyncio.CancelledError) as error:
            known = refusal(error) if isinstance(error, HmletError) else failure(error, request)
            phrase = HTTPStatus(known.status).phrase.encode()
            status, headers, body = b"%d %s" % (known.status, phrase), known.headers, shape(known)
        finally:
            self.guard.in_flight -= 1
            metrics.in_flight.dec()
        record(metrics, PATH, request, client, "POST", PATH, int(status[:3]), time.perf_counter() - start)
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        added = b"".join(b"%s: %s\r\n" % each for each in dated)
        length = b"content-length: %d\r\nx-request-id: %s\r\n" % (len(body), request.encode())
        return b"".join((b"HTTP/1.1 ", status, b"\r\n", added, own.encode("latin-1"), length, ALWAYS, b"\r\n", body))
