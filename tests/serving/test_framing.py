"""Each request is answered once and only the right bytes are its body: alone, in overload, behind nginx and HAProxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from exchanges import PROBE, Wire, answers, in_step, post, refusal
from framings import BODY, CHUNKED, FRAMINGS, head
from programs import flooded, in_front_of, program
from server import Server

ASK = post({"users": ["gimp", "inkscape"], "k": 3})
OURS = {501, 503, 505}  # of the statuses 5xx: neither a fault of the service's nor of a proxy's connection to it
OTHERWISE = {  # what a proxy speaks, too, and not with answers of HTTP/1
    ("nginx", "no version"): "HTTP/0.9",
    ("haproxy", "the preface of HTTP/2"): "HTTP/2",
}


@pytest.fixture(scope="module", params=["alone", "overloaded", "nginx", "haproxy"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def port(place: str, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where the service, or the proxy in front of it, listens."""
    if place == "alone":
        yield server.port
        return
    if program({"overloaded": "wrk"}.get(place, place)) is None:
        pytest.skip(f"{place} needs a program that is not installed")
    folder = tmp_path_factory.mktemp(place)
    if place == "overloaded":
        with flooded(server.port, folder):
            yield server.port
    else:
        with in_front_of(server.port, place, folder) as port:
            yield port


@pytest.mark.parametrize("pause", [0.0, 0.03], ids=["at once", "head first"])
@pytest.mark.parametrize("name", FRAMINGS)
def test_a_request_has_one_answer(port: int, place: str, name: str, pause: float) -> None:
    if (place, name) in OTHERWISE:
        pytest.skip(f"{place} takes it for {OTHERWISE[place, name]}")
    framing = FRAMINGS[name]
    first, blank, rest = framing.request.partition(b"\r\n\r\n")
    found = answers(port, [first + blank, rest] if pause else [framing.request], pause=pause)
    assert 1 <= len(found) <= framing.most, found
    for answer in found:
        assert answer.status < 500 or answer.status in OURS, answer
    if place in ("alone", "overloaded"):
        assert found[0].status in framing.statuses | ({503} if place == "overloaded" else set()), found
        if found[0].status >= 400:
            refusal(found[0])
    if place != "overloaded":
        in_step(port)


@pytest.mark.parametrize(
    "request_", [ASK, head(headers=CHUNKED) + b"13\r\n%s\r\n0\r\n\r\n" % BODY], ids=["length", "chunks"]
)
def test_a_request_may_arrive_in_any_two_pieces(port: int, place: str, request_: bytes) -> None:
    for at in range(1, len(request_)):
        (answer,) = answers(port, [request_[:at], request_[at:]], pause=0.001)
        assert answer.status == 200 or (answer.status == 503 and place == "overloaded"), (at, answer)


def test_requests_may_arrive_byte_by_byte(port: int, place: str) -> None:
    requests = ASK + head(headers=CHUNKED) + b"9;x=1\r\n%s\r\nA\r\n%s\r\n0\r\n\r\n" % (BODY[:9], BODY[9:])
    found = answers(port, [requests[at : at + 1] for at in range(len(requests))], expected=2)
    assert len(found) == 2
    assert {answer.status for answer in found} <= ({200, 503} if place == "overloaded" else {200})


@pytest.mark.parametrize("many", [2, 50])
def test_pipelined_requests_are_answered_in_their_order(port: int, place: str, many: int) -> None:
    requests = [post({"users": ["gimp"], "k": 1 + at}) for at in range(many)]
    with Wire(port) as wire:
        wire.send(b"".join(requests) + PROBE)
        for at in range(many):
            answer = wire.answer()
            assert answer is not None
            if place == "overloaded" and answer.status == 503:
                continue
            assert answer.status == 200
            assert len(answer.json()[0]["items"]) == 1 + at
        answer = wire.answer()
        assert answer is not None
        assert answer.json() == {"status": "ok"}
        assert wire.answer() is None


def test_an_answer_without_a_body_leaves_the_connection_in_step(port: int) -> None:
    with Wire(port) as wire:
        wire.send(PROBE.replace(b"GET", b"HEAD").replace(b"Connection: close\r\n", b""))
        answer = wire.answer("HEAD")
        assert answer is not None
        assert answer.status in (200, 405)  # until 0.1 a HEAD was refused
        wire.send(PROBE)
        answer = wire.answer()
        assert answer is not None
        assert answer.json() == {"status": "ok"}
