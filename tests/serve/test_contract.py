"""schemathesis: whatever its own OpenAPI description makes of a request, the service keeps to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from serving import client_of
from starlette.testclient import TestClient

from hmlet.serve.settings import Settings

HEADERS = {"host": "127.0.0.1"}


@pytest.fixture(scope="module")
def service(runs: Path) -> Iterator[TestClient]:
    with client_of(runs / "first", Settings(reload_root=runs)) as client:
        yield client


@pytest.fixture(scope="module")
def schema(service: TestClient) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", service.app, headers=HEADERS)


def check(schema: Any, examples: int) -> None:
    """Send every operation so many requests, good and bad, and hold the answers against the description."""
    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def one(case: Any) -> None:
            case.call_and_validate(headers=HEADERS)

        one()


def test_the_service_keeps_to_its_description(schema: Any) -> None:
    check(schema, 100)


@pytest.mark.slow
def test_the_service_keeps_to_its_description_for_long(schema: Any) -> None:
    check(schema, 10_000)


def test_every_operation_has_an_example_of_its_body(service: TestClient) -> None:
    description = service.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    assert {"ForUsers", "ForNewcomer", "Explain", "Reload"} <= set(schemas)
    for name in ("ForUsers", "ForNewcomer", "Explain"):
        assert schemas[name]["examples"]
    for example in schemas["ForUsers"]["examples"] + schemas["ForNewcomer"]["examples"]:
        assert service.post("/v1/recommend", json=example).status_code == 200
    for example in schemas["Explain"]["examples"]:
        assert service.post("/v1/explain", json=example).status_code == 200
