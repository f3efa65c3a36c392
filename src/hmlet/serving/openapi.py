"""The description of the service, generated from its endpoints and their types."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hmlet.serving.endpoints import JSON, Endpoint
from hmlet.serving.guard import PROBES
from hmlet.serving.schemas import EXAMPLES, Failure
from hmlet.version import VERSION

REFERENCE = "#/components/schemas/{name}"
REASONS = {
    400: "A host, a header or a request that is not accepted",
    401: "No token, or another one",
    403: "From a page of another origin, or outside what may be loaded",
    404: "An id that the run does not have",
    408: "A body that came too slowly",
    409: "A run that cannot be loaded; the old one is still served",
    413: "More than one request may hold",
    415: "A body that is not JSON",
    422: "A request that does not fit its description",
    500: "An internal error",
    503: "Too many requests at once, one that took too long, or a run whose files are damaged",
}
HEADERS = {
    "x-request-id": ("Names the request in the log.", "string"),
    "x-hmlet-run": ("The run that the answer comes from.", "string"),
    "x-hmlet-next": ("The offset of the next page; the last page has none.", "integer"),
}
Json = dict[str, Any]


def description(endpoints: Sequence[Endpoint]) -> Json:
    """The service as an OpenAPI document."""
    types = [Failure, *(type_ for each in endpoints for type_ in (each.takes, each.gives) if type_ is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    for type_, examples in EXAMPLES.items():
        if type_.__name__ in components:
            components[type_.__name__]["examples"] = examples
    _divide(components, "Recommend", {"ForUsers": "users", "ForNewUser": "items"})
    paths: dict[str, Json] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schema_of, components)
    for query in {each.takes for each in endpoints if each.bodies is None and each.takes is not None}:
        components.pop(query.__name__, None)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "hmlet",
            "version": VERSION,
            "description": 'Recommendations of a finished run. An error is `{"error": {"code", "message", "hint"}}`.',
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],  # a service on loopback may have no token
    }
    _add_formats(document)
    return document


def _operation(endpoint: Endpoint, schema_of: Mapping[str, Json], components: Mapping[str, Json]) -> Json:
    text = inspect.getdoc(endpoint.work) or ""
    summary = text.partition(".")[0]
    name = endpoint.path.removeprefix("/v1").strip("/").replace("/", "_")
    operation: Json = {"operationId": name, "tags": [endpoint.tag], "summary": summary, "description": text}
    if endpoint.bodies is not None:
        schema = schema_of[repr(endpoint.takes)]
        examples = {f"example {at}": {"value": each} for at, each in enumerate(EXAMPLES[endpoint.takes], 1)}  # type: ignore[index]
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema, "examples": examples}}}
    elif endpoint.takes is not None:
        operation["parameters"] = list(_parameters(components[endpoint.takes.__name__]))
    if endpoint.path in PROBES:
        operation["security"] = [{}]
    operation["responses"] = {"200": _success(endpoint, schema_of)} | {
        str(status): {
            "description": REASONS[status],
            "headers": _headers("x-request-id"),
            "content": {JSON: {"schema": schema_of[repr(Failure)]}},
        }
        for status in _statuses(endpoint)
    }
    return operation


def _success(endpoint: Endpoint, schema_of: Mapping[str, Json]) -> Json:
    if endpoint.gives is None:
        content: Json = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {JSON: {"schema": schema_of[repr(endpoint.gives)]}}
    named = ["x-request-id"] if endpoint.path in PROBES or endpoint.gives is None else ["x-request-id", "x-hmlet-run"]
    paged = ["x-hmlet-next"] if "offset" in getattr(endpoint.takes, "__struct_fields__", ()) else []
    return {"description": "The answer", "headers": _headers(*named, *paged), "content": content}


def _headers(*names: str) -> Json:
    return {name: {"description": HEADERS[name][0], "schema": {"type": HEADERS[name][1]}} for name in names}


def _statuses(endpoint: Endpoint) -> Iterable[int]:
    """All statuses of errors that can come."""
    if endpoint.path in PROBES:
        return (500,)
    common = {400, 401, 500}
    if endpoint.bodies is not None:
        common |= {403, 408, 413, 415, 422, 503}
    elif endpoint.takes is not None:
        common |= {422, 503}
    return sorted(common | set(endpoint.statuses))


def _parameters(schema: Json) -> Iterable[Json]:
    for name, field in schema["properties"].items():
        text = {"description": field["description"]} if "description" in field else {}
        yield {"name": name, "in": "query", "required": name in schema.get("required", []), **text, "schema": field}


def _divide(components: Json, name: str, titles: Mapping[str, str]) -> None:
    """Describe a body that has exactly one of some fields, which its type checks in code, as a choice of schemas."""
    whole = components[name]
    for title, own in titles.items():
        fields = {key: field for key, field in whole["properties"].items() if key == own or key not in titles.values()}
        examples = [example for example in whole["examples"] if own in example]
        components[title] = {**whole, "title": title, "properties": fields, "required": [own], "examples": examples}
    components[name] = {"oneOf": [{"$ref": REFERENCE.format(name=title)} for title in titles]}


def _add_formats(value: Any) -> None:
    """Mark every integer as one of 64 bits, for generators of clients that would take one of 32."""
    if isinstance(value, dict):
        if value.get("type") == "integer":
            value.setdefault("format", "int64")
        for each in value.values():
            _add_formats(each)
    elif isinstance(value, list):
        for each in value:
            _add_formats(each)
