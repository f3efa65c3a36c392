"""The body of a request as the JSON standard has it. Lenient parsers would each read a bad one in their own way."""

from __future__ import annotations

from hmlet.serving.failures import Refusal
from hmlet.system.outside import parse_json

_HINT = "send one JSON object in UTF-8, like the examples of /openapi.json"


def parse(body: bytes) -> object:
    """The JSON value of a body: UTF-8, finite numbers, no key twice, no deep nesting."""
    try:
        return parse_json(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8 (byte {error.start})", _HINT) from None
    except ValueError as error:  # also an integer of more digits than Python reads
        raise Refusal(422, f"the body is not JSON ({str(error)[:100]})", _HINT) from None
