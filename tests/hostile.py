"""Bodies of at most 1 MiB that cost a careless parser seconds, and small ones that only a lenient parser reads.

A name says what is in the body; the statuses are those that may answer it. Where a body is not valid, but some parsers
take it for something that is (a key twice, a whole number as 20.0), both are listed.
"""

from __future__ import annotations

import json
from typing import Any

MOST = 1 << 20
REFUSED = frozenset({400, 422})
Body = tuple[bytes, frozenset[int]]


def filled(first: bytes, each: bytes, last: bytes) -> bytes:
    """As many repetitions as fit into the largest body."""
    return first + each * ((MOST - len(first) - len(last)) // len(each)) + last


def keys(count: int, repeated: int = 0, first: bytes = b"") -> bytes:
    """An object of so many keys, with the first ones of them repeated at its end."""
    return b"{" + first + b",".join(b'"%x":0' % at for at in (*range(count), *range(repeated))) + b"}"


def large(user: Any, item: Any) -> dict[str, Body]:
    """Large bodies, for a run that has this user and this item."""
    ask, of = json.dumps({"users": [user]})[:-1].encode(), json.dumps([item] * 10_000)
    unknown, others = (json.dumps([f"{name}{at:07}" for at in range(10_000)]) for name in ("nope", "nopf"))
    wrong = json.dumps([None] * 10_000)
    ok, refused, lost = frozenset({200}), REFUSED, frozenset({404})
    filters = b'%s, "allow": %s, "deny": %s%s}'
    return {
        "109,000 keys, one repeated": (keys(109_000, 1), refused),
        "79,000 keys, 30,000 repeated": (keys(79_000, 30_000), refused),
        "90,000 unknown keys": (keys(90_000, first=ask[1:] + b","), refused),
        "120,000 times k": (filled(ask, b',"k":5', b"}"), ok | refused),
        "900,000 brackets": (b"[" * 900_000, refused),
        "lists of lists, 30 deep": (filled(b'{"users":[[]', b"," + b"[" * 30 + b"]" * 30, b"]}"), refused),
        "empty lists as users": (filled(b'{"users":[[]', b",[]", b"]}"), refused),
        "empty lists": (filled(b"[[]", b",[]", b"]"), refused),
        "empty objects": (filled(b'{"users":[{}', b",{}", b"]}"), refused),
        "objects": (filled(b'{"users":[{"a":0}', b',{"a":0}', b"]}"), refused),
        "150,000 ids": (b'{"users":[' + b",".join(b"%d" % at for at in range(150_000)) + b"]}", refused | {413}),
        "zeros": (filled(b"[0", b",0", b"]"), refused),
        "a number of 1 MB": (filled(b'{"users":[', b"9", b"]}"), refused),
        "a text of 1 MB": (filled(b'{"users":["', b"x", b'"]}'), refused),
        "escapes": (filled(b'{"users":["', b"\\u0041", b'"]}'), refused),
        "spaces": (filled(ask, b" ", b"}"), ok),
        "10,000 + 10,000 ids": (filters % (ask, of.encode(), of.encode(), b""), ok),
        "10,000 + 10,000 unknown ids, skipped": (
            filters % (ask, unknown.encode(), others.encode(), b', "on_unknown": "skip"'),
            ok,
        ),
        "20,000 unknown ids": (filters % (ask, unknown.encode(), others.encode(), b""), lost),
        "10,000 wrong ids": (b'%s, "deny": %s}' % (ask, wrong.encode()), refused),
        "1,000 unknown users": (json.dumps({"users": [f"x{at}" for at in range(1000)]}).encode(), lost),
    }


def small(user: Any, item: Any) -> dict[str, Body]:
    """Small bodies, most of which are no JSON, or no JSON that two parsers read alike."""
    name = json.dumps(user).encode()

    def ask(rest: bytes = b"", first: bytes = b"") -> bytes:
        return b'%s{"users": [%s]%s}' % (first, name, rest)

    bodies: dict[str, tuple[bytes, set[int]]] = {
        "NaN": (ask(b', "k": NaN'), set()),
        "Infinity": (ask(b', "k": -Infinity'), set()),
        "a number beyond floats": (ask(b', "k": 1e400'), set()),
        "a number beyond floats as an id": (b'{"users": [1e400]}', set()),
        "a huge whole number": (ask(b', "k": 1' + b"0" * 30), set()),
        "a number of 5,000 digits": (ask(b', "k": ' + b"9" * 5000), set()),
        "an id of 5,000 digits": (b'{"users": [' + b"9" * 5000 + b"]}", set()),
        "an id beyond 64 bits": (b'{"users": [18446744073709551616]}', {404}),
        "a negative id beyond 64 bits": (b'{"users": [-9223372036854775809]}', {404}),
        "a whole number as a float": (ask(b', "k": 2.0'), {200}),
        "a fraction": (ask(b', "k": 2.5'), set()),
        "a number as a text": (ask(b', "k": "2"'), set()),
        "true as a number": (ask(b', "k": true'), set()),
        "true as an id": (b'{"users": [true]}', set()),
        "null as an id": (b'{"users": [null]}', set()),
        "a float as an id": (b'{"users": [1.5]}', set()),
        "a number that begins with zero": (ask(b', "k": 05'), set()),
        "a plus sign": (ask(b', "k": +5'), set()),
        "a key twice": (ask(b', "k": 5, "k": 6'), {200}),
        "users twice": (ask(b', "users": [%s]' % name), {200}),
        "a byte order mark": (ask(first=b"\xef\xbb\xbf"), set()),
        "text behind": (ask() + b"x", set()),
        "a second object": (ask() * 2, set()),
        "a comma too many": (b'{"users": [%s,]}' % name, set()),
        "a comment": (ask(b"/* all */"), set()),
        "single quotes": (b"{'users': ['gimp']}", set()),
        "not UTF-8": (b'{"users": ["\xff"]}', set()),
        "an overlong encoding": (b'{"users": ["\xc0\xaf"]}', set()),
        "UTF-16": (ask().decode().encode("utf-16"), set()),
        "a surrogate": (b'{"users": ["\\ud800"]}', {404}),
        "an encoded surrogate": (b'{"users": ["\xed\xa0\x80"]}', set()),
        "a surrogate as a key": (b'{"\\ud800": 1}', set()),
        "a control character in a text": (b'{"users": ["a\nb"]}', set()),
        "NUL in a text": (b'{"users": ["a\\u0000b"]}', {404}),
        "an unknown key": (ask(b', "more": 1'), set()),
        "both": (ask(b', "items": [%s]' % json.dumps(item).encode()), set()),
        "neither": (b"{}", set()),
        "no users": (b'{"users": []}', set()),
        "a list": (b"[]", set()),
        "null": (b"null", set()),
        "a text": (b'"users"', set()),
        "nothing": (b"", set()),
        "half": (ask()[:-3], set()),
    }
    return {name: (body, REFUSED | more) for name, (body, more) in bodies.items()}
