"""Recommendations without the framework's layers: the same answers as through FastAPI, whatever is asked."""

from __future__ import annotations

import pytest
from served import BODIES, GIMP
from starlette.testclient import TestClient

from hmlet.serving import direct


@pytest.mark.parametrize("body", BODIES)
def test_answers_are_those_of_the_framework(client: TestClient, monkeypatch: pytest.MonkeyPatch, body: object) -> None:
    found = client.post("/v1/recommend", json=body)
    monkeypatch.setattr(direct, "PATH", "")
    expected = client.post("/v1/recommend", json=body)
    assert (found.status_code, found.content) == (expected.status_code, expected.content)
    own = {"x-request-id"}
    assert {name: value for name, value in found.headers.items() if name not in own} == {
        name: value for name, value in expected.headers.items() if name not in own
    }


def test_the_framework_sees_no_valid_request(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the comparison above compares two ways."""
    seen = []
    monkeypatch.setattr("hmlet.serving.answering.recommended", lambda *asked: seen.append(asked))
    assert client.post("/v1/recommend", json=GIMP).status_code == 200
    assert seen == []


def test_requests_are_counted_by_their_route(client: TestClient) -> None:
    assert client.post("/v1/recommend", json=GIMP).status_code == 200
    assert 'hmlet_requests_total{route="/v1/recommend",status="200"}' in client.get("/metrics").text
