"""The one error shape, for every status: {"error": {"code", "message", "hint"}}."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.exceptions import HTTPException

from hmlet.errors import HmletError

STATUS_CODES = {  # the code of an error that has none of its own
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "timeout",
    409: "conflict",
    413: "too-large",
    415: "unsupported-media-type",
    422: "invalid",
    500: "internal",
    503: "unavailable",
}
_STATUS_OF_CODE = {"unknown-id": 404, "run": 503}  # other errors of the library are in the request itself: 422
CLOSE = {"connection": "close"}


class Refusal(HmletError):
    """A request that is not answered: the status, and the words of the error shape."""

    def __init__(
        self, status: int, message: str, hint: str = "", code: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code or STATUS_CODES.get(status, "error")
        self.headers = dict(headers or {})


def refusal(error: BaseException) -> Refusal:
    """The answer to any error: one of the service, of the router, of the library, or an internal one."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, HTTPException):
        hint = "GET /openapi.json lists every path and method"
        return Refusal(error.status_code, str(error.detail), hint, headers=error.headers)
    if isinstance(error, HmletError):
        return Refusal(_STATUS_OF_CODE.get(error.code, 422), error.message, error.hint, error.code)
    return Refusal(500, "internal error", "report it with the log lines of this x-request-id")


def overloaded(message: str) -> Refusal:
    """A refusal that says when to come back."""
    return Refusal(503, message, "try again in a second", "overloaded", {"retry-after": "1"})


def shape(error: HmletError) -> bytes:
    """The error as JSON, in ASCII: it may quote what a client sent, which need not be valid Unicode."""
    return json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}).encode("ascii")
