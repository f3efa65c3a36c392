"""Requests that two readers could frame differently, and the statuses that one reader may give each of them.

Sources: RFC 9112, sections 2 to 7, and what a hostile test sent. Where several statuses are listed, parsers differ and
each is safe: the request is answered once, and what follows it is not taken for its body, nor its body for a request.
"""

from __future__ import annotations

from dataclasses import dataclass

from exchanges import HOST, TYPE

BODY = b'{"users": ["gimp"]}'
CHUNKED = b"Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b'5\r\n{"use\r\nE\r\nrs": ["gimp"]}\r\n0\r\n\r\n'
SMUGGLED = b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"
REFUSED = frozenset({400, 413, 431, 501, 505})
EITHER = REFUSED | {200}


@dataclass(frozen=True)
class Framing:
    request: bytes
    statuses: frozenset[int]
    most: int = 1  # answers: a second one refuses the bytes behind the request


def head(line: bytes = b"POST /v1/recommend HTTP/1.1", headers: bytes = b"") -> bytes:
    return line + b"\r\n" + HOST + TYPE + headers + b"\r\n"


def get(line: bytes, headers: bytes = HOST) -> bytes:
    return line + b"\r\n" + headers + b"\r\n"


def sized(length: bytes, body: bytes = BODY) -> bytes:
    return head(headers=b"Content-Length: " + length + b"\r\n") + body


def encoded(headers: bytes, body: bytes = IN_CHUNKS) -> bytes:
    return head(headers=headers) + body


def _refused(*requests: tuple[str, bytes]) -> dict[str, Framing]:
    return {name: Framing(request, REFUSED) for name, request in requests}


def _either(*requests: tuple[str, bytes]) -> dict[str, Framing]:
    return {name: Framing(request, EITHER) for name, request in requests}


def _right(*requests: tuple[str, bytes]) -> dict[str, Framing]:
    return {name: Framing(request, frozenset({200})) for name, request in requests}


def _malformed(*requests: tuple[str, bytes]) -> dict[str, Framing]:
    """Bodies whose framing breaks off: they may be found out after the request has been refused for another reason."""
    return {name: Framing(request, EITHER | {408}, most=2) for name, request in requests}


HEALTH = b"GET /v1/health HTTP/1.1"
FRAMINGS: dict[str, Framing] = {
    **_right(
        ("a length", sized(b"19")),
        ("a length with spaces", sized(b"  19\t")),
        ("chunked", encoded(CHUNKED)),
        ("chunked, with another case", encoded(b"tRANSFER-eNCODING: Chunked\r\n")),
        ("chunk sizes with zeros", encoded(CHUNKED, b"00000013\r\n" + BODY + b"\r\n000\r\n\r\n")),
        ("trailers", encoded(CHUNKED, b"13\r\n" + BODY + b"\r\n0\r\nX-Trailer: 1\r\n\r\n")),
        ("expect 100", head(headers=b"Expect: 100-continue\r\nContent-Length: 19\r\n") + BODY),
        ("HTTP/1.0", get(b"GET /v1/health HTTP/1.0")),
        (
            "upgrade to h2c",
            get(HEALTH, HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n"),
        ),
        ("40 headers", get(HEALTH, HOST + b"".join(b"X-%d: 1\r\n" % at for at in range(40)))),
    ),
    **_refused(
        ("both lengths", encoded(b"Content-Length: 19\r\n" + CHUNKED) + SMUGGLED),
        ("both lengths, the other way round", encoded(CHUNKED + b"Content-Length: 19\r\n") + SMUGGLED),
        ("both lengths, for a second request", encoded(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n") + SMUGGLED),
        ("two lengths", sized(b"19\r\nContent-Length: 20") + SMUGGLED),
        ("a list of lengths", sized(b"19, 20") + SMUGGLED),
        ("a negative length", sized(b"-1") + SMUGGLED),
        ("a signed length", sized(b"+19") + SMUGGLED),
        ("a hexadecimal length", sized(b"0x13") + SMUGGLED),
        ("a length with an exponent", sized(b"1e1") + SMUGGLED),
        ("a length with a space inside", sized(b"1 9") + SMUGGLED),
        ("a length of other digits", sized("１９".encode()) + SMUGGLED),
        ("a length beyond 64 bits", sized(b"99999999999999999999") + SMUGGLED),
        ("a length that wraps around", sized(b"18446744073709551635") + SMUGGLED),
        ("no length", sized(b"") + SMUGGLED),
        ("a space before the colon", head(headers=b"Content-Length : 19\r\n") + BODY + SMUGGLED),
        ("chunked twice", encoded(CHUNKED + CHUNKED) + SMUGGLED),
        ("chunked twice in a list", encoded(b"Transfer-Encoding: chunked, chunked\r\n") + SMUGGLED),
        ("gzip, chunked", encoded(b"Transfer-Encoding: gzip, chunked\r\n") + SMUGGLED),
        ("chunked, gzip", encoded(b"Transfer-Encoding: chunked, gzip\r\n") + SMUGGLED),
        ("identity", encoded(b"Transfer-Encoding: identity\r\n") + SMUGGLED),
        ("xchunked", encoded(b"Transfer-Encoding: xchunked\r\n") + SMUGGLED),
        ("chunked with a control character", encoded(b"Transfer-Encoding: \x0bchunked\r\n") + SMUGGLED),
        ("NUL in a value", get(HEALTH, HOST + b"X-Nul: a\0b\r\n")),
        ("NUL in a name", get(HEALTH, HOST + b"X-\0: a\r\n")),
        ("a bracket in a name", get(HEALTH, HOST + b"X[0]: a\r\n")),
        ("no colon", get(HEALTH, HOST + b"nonsense\r\n")),
        ("no name", get(HEALTH, HOST + b": nameless\r\n")),
        ("a header before the first", get(HEALTH + b"\r\n X-Folded: 1")),
        ("CR in a value", get(HEALTH, HOST + b"X-Cr: a\rContent-Length: 5\r\n")),
        ("no host", get(b"GET /v1/model HTTP/1.1", b"")),
        ("an empty host", get(b"GET /v1/model HTTP/1.1", b"Host:\r\n")),
        ("two hosts", get(b"GET /v1/model HTTP/1.1", HOST + b"Host: evil.example\r\n")),
        ("a header of 128 KiB", get(HEALTH, HOST + b"X-Long: " + b"x" * (1 << 17) + b"\r\n")),
        ("a path of 128 KiB", get(b"GET /" + b"x" * (1 << 17) + b" HTTP/1.1")),
        ("not HTTP", b"\x16\x03\x01 hello\r\n\r\n"),
    ),
    **_either(
        ("no version", b"GET /v1/health\r\nHost: localhost\r\n\r\n"),
        ("chunked in HTTP/1.0", head(b"POST /v1/recommend HTTP/1.0", CHUNKED) + IN_CHUNKS + SMUGGLED),
        ("a length with zeros", sized(b"0" * 20 + b"19")),
        ("two equal lengths", sized(b"19\r\nContent-Length: 19")),
        ("a list of equal lengths", sized(b"19, 19")),
        ("a chunk extension", encoded(CHUNKED, b'13;name="a;b"\r\n' + BODY + b"\r\n0;last\r\n\r\n")),
        ("a long chunk extension", encoded(CHUNKED, b"13;" + b"x" * 20_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("a folded header", get(HEALTH, HOST + b"X-Folded: a\r\n b\r\n")),
        ("a folded length", head(headers=b"Content-Length:\r\n 19\r\n") + BODY),
        ("bare LF", b"GET /v1/health HTTP/1.1\nHost: localhost\n\n"),
        ("bare LF before a body", sized(b"19").replace(b"\r\n", b"\n")),
        ("bare LF in a header", get(HEALTH, HOST + b"X-Lf: a\nX-Other: b\r\n")),
        ("empty lines first", b"\r\n\r\n" + get(HEALTH)),
        ("bytes beyond ASCII", get(HEALTH, HOST + b"X-Byte: \xff\xe9\r\n")),
        ("HTTP/2.0", get(b"GET /v1/health HTTP/2.0")),
        ("HTTP/9.9", get(b"GET /v1/health HTTP/9.9")),
        ("HTTP/1.2", get(b"GET /v1/health HTTP/1.2")),
        ("HTTP/1", get(b"GET /v1/health HTTP/1")),
        ("no version", b"GET /v1/health\r\nHost: localhost\r\n\r\n"),
        ("two spaces in the first line", get(b"GET  /v1/health HTTP/1.1")),
        ("300 headers", get(HEALTH, HOST + b"".join(b"X-%d: 1\r\n" % at for at in range(300)))),
        ("a body of GET", get(HEALTH, HOST + b"Content-Length: %d\r\n" % len(SMUGGLED)) + SMUGGLED),
        ("a body of GET in chunks", get(HEALTH, HOST + CHUNKED) + IN_CHUNKS),
        (
            "upgrade to a web socket",
            get(HEALTH, HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"),
        ),
    ),
    **_malformed(
        ("a chunk size of no digits", encoded(CHUNKED, b"xyz\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("a negative chunk", encoded(CHUNKED, b"-5\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("a chunk in Python's notation", encoded(CHUNKED, b"1_3\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("a chunk in C's notation", encoded(CHUNKED, b"0x13\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("a chunk beyond 64 bits", encoded(CHUNKED, b"F" * 17 + b"\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("a chunk longer than it says", encoded(CHUNKED, b"5\r\n" + BODY + b"\r\n0\r\n\r\n")),
        ("chunks with bare LF", encoded(CHUNKED, b"13\n" + BODY + b"\n0\n\n")),
    ),
    "another expectation": Framing(head(headers=b"Expect: 200-ok\r\nContent-Length: 19\r\n") + BODY, EITHER | {417}),
    "a length with zeros of a request": Framing(sized(b"%020d" % len(SMUGGLED), SMUGGLED), frozenset({400, 422})),
    "a short length": Framing(sized(b"10"), frozenset({422}), most=2),
    "a body without a length": Framing(head(), frozenset({400, 411, 422})),
    "absolute form": Framing(get(b"GET http://localhost/v1/health HTTP/1.1"), EITHER | {404}),
    "absolute form of another host": Framing(get(b"GET http://evil.example/v1/model HTTP/1.1"), EITHER | {404, 421}),
    "an asterisk": Framing(get(b"OPTIONS * HTTP/1.1"), EITHER | {404, 405}),
    "CONNECT": Framing(get(b"CONNECT localhost:80 HTTP/1.1"), REFUSED | {404, 405}),
    "a method in small letters": Framing(get(b"get /v1/health HTTP/1.1"), REFUSED | {405}),
    "a method of its own": Framing(get(b"BREW /v1/health HTTP/1.1"), REFUSED | {405}),
    "the preface of HTTP/2": Framing(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", REFUSED | {404, 405}, most=2),
}
