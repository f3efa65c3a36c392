"""schemathesis: whatever its own OpenAPI description makes of a request, the service keeps to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, get_origin, get_type_hints

import hypothesis
import pytest
import schemathesis
from served import client_of
from starlette.testclient import TestClient

from hmlet.recommend import explanation
from hmlet.serving import schemas
from hmlet.serving.settings import Settings

HEADERS = {"host": "127.0.0.1"}


@pytest.fixture(scope="module")
def schema(runs: Path) -> Iterator[Any]:
    """The description, with an application of its own: schemathesis starts and stops it as it likes."""
    with client_of(runs / "first", Settings(reload_root=runs)) as client:
        yield schemathesis.openapi.from_asgi("/openapi.json", client.app, headers=HEADERS)


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
    check(schema, 40)


@pytest.mark.slow
def test_the_service_keeps_to_its_description_for_long(schema: Any) -> None:
    check(schema, 10_000)


def test_the_examples_of_bodies_are_answered(client: TestClient) -> None:
    components = client.get("/openapi.json").json()["components"]["schemas"]
    paths = {"ForUsers": "/v1/recommend", "ForNewcomer": "/v1/recommend", "Explain": "/v1/explain"}
    paths["Similar"] = "/v1/similar"
    for name, path in paths.items():
        (example,) = components[name]["examples"]
        assert client.post(path, json=example).status_code == 200


@pytest.mark.parametrize("name", ["Explanation", "Carrier", "LayerPart", "GateChoices", "BranchChoice"])
def test_an_explanation_is_described_as_the_library_types_it(name: str) -> None:
    typed = get_type_hints(getattr(explanation, name), include_extras=True)
    described = getattr(schemas, name).model_fields
    assert set(described) == set(typed)
    for key, hint in typed.items():
        assert described[key].is_required() == (get_origin(hint) is not NotRequired)
