"""The one error shape: {"error": {"code", "message", "hint"}}, for every status there is."""

from __future__ import annotations

import json
from collections.abc import Mapping

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
_STATUS_OF_CODE = {"unknown-id": 404, "run": 503}  # other mistakes are in the request itself: 422


class Refusal(HmletError):
    """A request that is not answered: the status, and the words of the error shape."""

    def __init__(
        self, status: int, message: str, hint: str = "", code: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code or STATUS_CODES.get(status, "error")
        self.headers = dict(headers or {})


def refusal(error: HmletError) -> Refusal:
    """What the service makes of an error of the library."""
    if isinstance(error, Refusal):
        return error
    return Refusal(_STATUS_OF_CODE.get(error.code, 422), error.message, error.hint, error.code)


def overloaded(message: str, headers: Mapping[str, str] | None = None) -> Refusal:
    """A refusal that says when to come back."""
    return Refusal(503, message, "try again in a second", "overloaded", {"retry-after": "1", **(headers or {})})


def shape(error: HmletError) -> bytes:
    """The error as JSON, in ASCII: what a client sent may come back in it, and need not be valid Unicode."""
    return json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}).encode("ascii")


BUG = Refusal(500, "this is a bug of hmlet", "report it with the log lines of this x-request-id")
