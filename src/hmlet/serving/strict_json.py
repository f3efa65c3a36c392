"""JSON as the standard has it: UTF-8, no NaN or Infinity, no key twice, no number or nesting that only costs time."""

from __future__ import annotations

import json
from typing import NoReturn

from hmlet.serving.failures import Refusal

_HINT = "send one JSON object in UTF-8, like the examples of /openapi.json"


def check(body: bytes) -> None:
    """Refuse a body that lenient parsers would read, each in its own way."""
    try:
        json.loads(body.decode("utf-8"), parse_constant=_constant, parse_float=_float, object_pairs_hook=_object)
    except Refusal:
        raise
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not UTF-8 (byte {error.start})", _HINT) from None
    except RecursionError:
        raise Refusal(422, "the body is nested too deeply", _HINT) from None
    except ValueError as error:  # JSONDecodeError, and integers of more digits than Python reads
        raise Refusal(422, f"the body is not JSON ({str(error)[:100]})", _HINT) from None


def _constant(name: str) -> NoReturn:
    raise Refusal(422, f"{name} is not JSON", "send a finite number")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Refusal(422, f"the number {text[:40]} is too large", "send a finite number")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise Refusal(422, "the body has one key twice", "send each key once")
    return result
