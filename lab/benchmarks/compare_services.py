"""The services of two trees over the same run: every answer of one beside the other's, and their descriptions.

Lists have to have the same items in the same order and scores within 1e-12 (of new users and explanations 1e-9), and
all else has to be equal, but for the differences that EXPECTED names with a reason. The two /openapi.json are compared
by path, status and field.

    python lab/benchmarks/compare_services.py RUN... --before ../base --record results/services.json
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from harness import written
from services import TREE, Service, circumstances, differing, ids_of

sys.path.insert(0, str(TREE / "tests"))
from hostile import small

USERS = 500
Json = Any
EXPECTED = {  # patterns of differences, and why they are there
    "model: $.ids only after": "GET /v1/model says for each side whether ids are numbers or strings",
    "refused, a key twice: status 422, then 200": "msgspec keeps the last of a key that is given twice",
    "refused, users twice: status 422, then 200": "msgspec keeps the last of a key that is given twice",
    "refused, a whole number as a float: status 200, then 422": "20.0 is no integer for msgspec",
    "refused, not UTF-8: status 400, then 422": "msgspec finds out while it decodes",
    "refused, an overlong encoding: status 400, then 422": "msgspec finds out while it decodes",
    "refused, UTF-16: status 400, then 422": "msgspec finds out while it decodes",
    "refused, an encoded surrogate: status 400, then 422": "msgspec finds out while it decodes",
}


class Ask(NamedTuple):
    kind: str
    method: str
    path: str
    body: Json = None  # or the query of a GET
    tolerance: float = 1e-12


def asks(run: Path) -> Iterator[Ask]:
    """Everything that both services are asked."""
    users, items, dice = ids_of(run, "user", USERS), ids_of(run, "item"), random.Random(0)
    unknown = "no such id"

    def recommend(kind: str, body: Json, tolerance: float = 1e-12) -> Ask:
        return Ask(kind, "POST", "/v1/recommend", body, tolerance)

    def some(count: int) -> list[Any]:
        return dice.sample(items, min(count, len(items)))

    for user in users:
        yield recommend("one user", {"users": [user], "k": 20})
    for user in users[:100]:
        yield recommend("one user, k = 1,000", {"users": [user], "k": 1000})
        yield recommend("allow", {"users": [user], "allow": some(dice.choice([1, 3, 50, 1000]))})
        yield recommend("deny", {"users": [user], "deny": some(dice.choice([1, 50, 1000, 10_000]))})
        yield recommend("allow and deny", {"users": [user], "allow": some(1000), "deny": some(300)})
        yield Ask("history", "GET", "/v1/history", {"user": user, "limit": dice.choice([1, 200, 1000])})
        yield Ask("explanation", "POST", "/v1/explain", {"user": user, "item": dice.choice(items)}, 1e-9)
        yield Ask("similar items", "POST", "/v1/similar", {"items": some(1), "k": 20})
    for count in (2, 3, 4, 8, 9, 100, 500):
        for at in range(0, 500, 100):
            chosen = (users * 2)[at : at + count]
            yield recommend("many users", {"users": chosen, "k": 20})
            yield recommend("many users, filtered", {"users": chosen, "k": 7, "allow": some(500), "deny": some(50)})
    yield recommend("many users, k = 1,000", {"users": users[:100], "k": 1000})
    yield recommend("one user many times", {"users": users[:1] * 1000, "k": 100})
    for count in (2, 40, 1000):
        yield Ask("similar items", "POST", "/v1/similar", {"items": some(count), "k": 30})
    for count in (1, 2, 3, 5, 10, 20, 50, 100, 200):
        for _ in range(10):
            yield recommend("new user", {"items": some(count), "k": 20}, 1e-9)
        yield recommend("new user, filtered", {"items": some(count), "deny": some(100), "allow": some(900)}, 1e-9)
    for side in ("users", "items"):
        for query in ["", "1", "12", "lib", "LIB", "ä", str(items[0])[:4], unknown]:
            for offset in (0, 7, 100_000):
                yield Ask("search", "GET", f"/v1/{side}", {"query": query, "limit": 50, "offset": offset})
    for limit in (1, 100, 2000, 10_000):
        yield Ask("overview", "GET", "/v1/overview", {"limit": limit})
    yield Ask("model", "GET", "/v1/model")
    for policy in ({}, {"on_unknown": "error"}, {"on_unknown": "skip"}):
        kind = f"unknown ids, {policy.get('on_unknown', 'by default')}"
        for body in (
            {"users": [unknown]},
            {"users": [users[0], unknown, users[1], -7]},
            {"users": [unknown] * 20 + users[:20]},
            {"users": users[:1], "deny": [unknown, items[0]]},
            {"users": users[:1], "allow": [unknown]},
            {"users": users[:30], "allow": [unknown, *items[:9]], "deny": [unknown, "x" * 300]},
            {"items": [unknown, items[0]]},
            {"items": [unknown]},
        ):
            yield recommend(kind, {**body, **policy}, 1e-9)
        yield Ask(kind, "POST", "/v1/similar", {"items": [unknown, items[0]], **policy})
    for name, (body, _) in small(users[0], items[0]).items():
        yield recommend(f"refused, {name}", body)
    for body in ({"users": users[:1], "k": 1001}, {"users": users[:1] * 1001}, {"users": users * 2, "k": 101}):
        yield recommend("refused, too much", body)
    for body in ({"user": users[0]}, {"user": unknown, "item": items[0]}, {"user": users[0], "item": unknown}):
        yield Ask("refused, explanation", "POST", "/v1/explain", body)
    for path in (
        "/nowhere",
        "/v1/recommend",
        "/v1/users?limit=0",
        "/v1/users?limit=x",
        "/v1/history",
        "/v1/overview?limit=0",
    ):
        yield Ask(f"refused, GET {path}", "GET", path)
    yield Ask("refused, PUT", "PUT", "/v1/recommend", {})


def answer(client: httpx.Client, ask: Ask) -> httpx.Response:
    if ask.method == "GET":
        return client.get(ask.path, params=ask.body)
    content = ask.body if isinstance(ask.body, bytes) else json.dumps(ask.body).encode()
    return client.request(ask.method, ask.path, content=content, headers={"content-type": "application/json"})


def differences(ask: Ask, before: httpx.Response, after: httpx.Response) -> Iterator[str]:
    if before.status_code != after.status_code:
        yield f"status {before.status_code}, then {after.status_code}"
        return
    for name in ("x-hmlet-run", "x-hmlet-next", "retry-after", "allow"):
        if before.headers.get(name) != after.headers.get(name):
            yield f"header {name} {before.headers.get(name)!r}, then {after.headers.get(name)!r}"
    if before.status_code >= 400:
        codes = [each.json()["error"]["code"] for each in (before, after)]
        if codes[0] != codes[1]:
            yield f"code {codes[0]}, then {codes[1]}"
        return
    yield from unlike(before.json(), after.json(), ask.tolerance, "$")


def unlike(before: Json, after: Json, tolerance: float, path: str) -> Iterator[str]:
    """Where two values of JSON differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            if name not in before or name not in after:
                yield f"{path}.{name} only {'before' if name in before else 'after'}"
            else:
                yield from unlike(before[name], after[name], tolerance, f"{path}.{name}")
    elif is_ranked(before) and is_ranked(after):
        if found := differing(after, before, tolerance):
            yield f"{path}: {found}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, pair in enumerate(zip(before, after, strict=True)):
            yield from unlike(*pair, tolerance, f"{path}[{at}]")
    elif isinstance(before, float) and isinstance(after, float):
        if abs(before - after) > tolerance * max(abs(before), 1e-3):
            yield f"{path}: {before!r}, then {after!r}"
    elif before != after or type(before) is not type(after):
        yield f"{path}: {before!r:.100}, then {after!r:.100}"


def is_ranked(value: Json) -> bool:
    return (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict) and {"item", "score"} <= value[0].keys()
    )


def described(document: Json) -> dict[str, set[str]]:
    """Every parameter, field, status and header of a description, and what it may be."""
    found: dict[str, set[str]] = defaultdict(set)

    def walk(schema: Json, name: str) -> None:
        while "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for each in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
            walk(each, name)
        if "type" not in schema:
            for each in schema.get("oneOf", ()):
                walk(each, name)
        for field, each in schema.get("properties", {}).items():
            found[f"{name}.{field}"].add("required" if field in schema.get("required", ()) else "may be left out")
            walk(each, f"{name}.{field}")
        if isinstance(schema.get("items"), dict):
            walk(schema["items"], f"{name}[]")
        kept = (
            "format",
            "enum",
            "const",
            "minimum",
            "maximum",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "default",
        )
        limits = [f"{key}={json.dumps(schema[key])}" for key in kept if key in schema]
        if limits or "type" in schema:
            found[name].add(" ".join([json.dumps(schema.get("type", "")).strip('"'), *limits]).strip())

    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", ()):
                walk(parameter["schema"], f"{name} ?{parameter['name']}")
            for content in operation.get("requestBody", {}).get("content", {}).values():
                walk(content["schema"], f"{name} body")
            for status, response in operation["responses"].items():
                found[f"{name} {status}"].add("answers")
                for header in response.get("headers", ()):
                    found[f"{name} {status} header {header}"].add("is there")
                for kind, content in response.get("content", {}).items():
                    found[f"{name} {status}"].add(kind)
                    if status == "200":
                        walk(content.get("schema", {}), f"{name} {status} ")
    found["security schemes"] = set(document.get("components", {}).get("securitySchemes", ()))
    return found


def compare_descriptions(before: Json, after: Json) -> dict[str, list[str]]:
    """What changed in the description, and every place where it did."""
    olds, news = described(before), described(after)
    changes: dict[str, list[str]] = defaultdict(list)
    for name in sorted(olds.keys() | news.keys()):
        gone, new = olds.get(name, set()) - news.get(name, set()), news.get(name, set()) - olds.get(name, set())
        if gone or new:
            changes[f"{' | '.join(sorted(gone)) or 'nothing'}  ->  {' | '.join(sorted(new)) or 'nothing'}"].append(name)
    return changes


def compare(run: Path, trees: list[Path], options: list[str]) -> dict[str, Any]:
    services = [Service.hmlet(run, *options, tree=tree) for tree in trees]
    counts: dict[str, int] = defaultdict(int)
    found: dict[str, list[str]] = defaultdict(list)
    try:
        clients = [httpx.Client(base_url=each.url, timeout=120, trust_env=False) for each in services]
        for ask in asks(run):
            counts[ask.kind] += 1
            try:
                for each in differences(ask, *(answer(client, ask) for client in clients)):
                    found[f"{ask.kind}: {each}"].append(json.dumps(ask.body, default=repr)[:200])
            except (httpx.HTTPError, ValueError, KeyError) as error:
                found[f"{ask.kind}: {error!r}"].append(json.dumps(ask.body, default=repr)[:200])
        documents = [client.get("/openapi.json").json() for client in clients]
    finally:
        for service in services:
            service.stop()
    reasons = {each: next((why for text, why in EXPECTED.items() if fnmatch(each, text)), None) for each in found}
    return {
        "asked": dict(counts),
        "expected": {each: reasons[each] for each in found if reasons[each]},
        "unexpected": {each: bodies for each, bodies in found.items() if not reasons[each]},
        "description": compare_descriptions(*documents),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--before", type=Path, required=True, help="a checkout of hmlet")
    parser.add_argument("--after", type=Path, default=TREE)
    parser.add_argument(
        "--option", action="append", default=[], help="of `hmlet serve`, such as --option=--approximate"
    )
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    trees, result = [options.before, options.after], {}
    for run in options.runs:
        found = result[run.name] = compare(run.resolve(), trees, options.option)
        print(f"{run.name}: {sum(found['asked'].values())} requests, {found['asked']}")
        for each, why in found["expected"].items():
            print(f"  expected: {each} ({why})")
        for each, bodies in list(found["unexpected"].items())[:40]:
            print(f"  UNEXPECTED {len(bodies):4} x {each:.300}   e.g. {bodies[0]:.120}")
        print(f"  {len(found['unexpected'])} unexpected", flush=True)
    print("descriptions:")
    for change, places in sorted(found["description"].items(), key=lambda each: -len(each[1])):
        print(f"  {change}")
        for operation, group in groupby(places, lambda place: place.split(" ")[:2]):
            print(f"      {' '.join(operation)}: {', '.join(' '.join(place.split(' ')[2:]) for place in group)}")
    written("services", circumstances(*trees) | {"runs": result}, options.record)


if __name__ == "__main__":
    main()
