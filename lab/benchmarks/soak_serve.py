"""A mixed load for an hour with a reload a minute: no wrong answer, no 5xx but 503, memory that stays.

Two runs of the same data take turns; the header x-hmlet-run says which one answered. Lists of users are compared with
a float64 product in NumPy, other answers with `hmlet.Run` of this tree, all computed before the service starts.

    python lab/benchmarks/soak_serve.py runs/first runs/second --minutes 60 --record results/soak.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
from harness import written
from safetensors.numpy import load_file
from services import TREE, Service, circumstances, differing

import hmlet

K = 20
POOL = 100  # different requests of each kind but lists of known users
TOGETHER = 500  # users whose scores are in memory at once
SAMPLE_SECONDS = 10.0
MEMORY_MB = 16.0  # that the second half may add
SHARES = {  # of the requests, in percent
    "one user": 50,
    "3 users": 10,
    "50 users": 5,
    "1000 users": 1,
    "new user": 9,
    "similar": 5,
    "explain": 3,
    "search": 4,
    "history": 4,
    "overview": 1,
    "refused": 8,
}
REFUSED: list[tuple[bytes, int]] = [
    (b'{"users": [-5]}', 404),
    (b'{"users": ["\\ud800"]}', 422),
    (b'{"users": [1], "k": NaN}', 422),
    (b'{"users": [1], "k": 0}', 422),
    (b'{"users": [], "k": 5}', 422),
    (b'{"users": [1], "more": 1}', 422),
    (b"[" * 10_000, 422),
    (b'{"users": [%s1]}' % (b"1," * 20_000), 422),
    (b" " * (1 << 21), 413),
]


class Offline:
    """What a run answers, computed without its service."""

    def __init__(self, path: Path, pool: Pool) -> None:
        run = hmlet.Run.open(path)
        self.users = lists_of(path, run, pool.users)
        self.new: list[Any] = [run.recommend_new([each], K)[0]["items"] for each in pool.lists]
        self.similar: list[Any] = [run.similar_items([item], K)[0]["items"] for item in pool.items]
        self.explained = [run.explain(*pair)["score"] for pair in pool.pairs]


class Pool:
    """What is asked, the same of both runs."""

    def __init__(self, path: Path) -> None:
        data, dice = hmlet.Run.open(path).data, random.Random(0)
        self.users, items = data.users.ids.to_pylist(), data.items.ids.to_pylist()
        self.at = {user: at for at, user in enumerate(self.users)}
        self.items = dice.sample(items, POOL)
        self.lists = [dice.sample(items, dice.choice([1, 2, 5, 20, 100])) for _ in range(POOL)]
        self.pairs = list(zip(dice.sample(self.users, POOL), self.items, strict=True))


def lists_of(path: Path, run: Any, users: list[Any]) -> list[list[dict[str, Any]]]:
    """The top-k of each user: a product in float64, without what the user has; ties go to the smaller item."""
    factors, seen, ids = (
        load_file(path / "factors.safetensors"),
        run.data.csr("train", "valid", "test"),
        run.data.items.ids,
    )
    users_UF, items_IF = (factors[side].astype(np.float64) for side in ("users", "items"))
    ids, found = ids.to_pylist(), []
    for start in range(0, len(users), TOGETHER):
        scores_UI = users_UF[start : start + TOGETHER] @ items_IF.T
        for row, scores_I in enumerate(scores_UI, start):
            scores_I[seen.row(row)] = -np.inf
            best = np.flatnonzero(scores_I >= np.partition(scores_I, -K)[-K])
            best = best[np.lexsort((best, -scores_I[best]))][:K]
            found.append([{"item": ids[item], "score": scores_I[item]} for item in best])
    return found


class Soak:
    def __init__(self, service: Service, first: Path, second: Path) -> None:
        self.service, self.names = service, (first.name, second.name)
        self.pool = Pool(first)
        self.offline = [Offline(path, self.pool) for path in (first, second)]
        self.runs: dict[str, Offline] = {}  # by the name that the header has
        self.statuses: dict[str, Counter[str]] = defaultdict(Counter)
        self.milliseconds: dict[str, list[float]] = defaultdict(list)
        self.wrong: list[str] = []
        self.memory: list[dict[str, float]] = []
        self.dice = random.Random(1)

    async def run(self, minutes: float, rate: float, clients: int, every: float) -> dict[str, Any]:
        self.began = time.monotonic()
        self.planned, self.end, self.rate = self.began, self.began + 60 * minutes, rate
        limits = httpx.Limits(max_connections=clients + 2, keepalive_expiry=2)  # the service closes idle ones after 5 s
        async with httpx.AsyncClient(base_url=self.service.url, limits=limits, timeout=60, trust_env=False) as client:
            self.client = client
            await self.reload(0)
            await asyncio.gather(self.reloads(every), self.weigh(), *(self.work() for _ in range(clients)))
        return self.report()

    async def reload(self, number: int) -> None:
        """Let the service load a run, and note its name."""
        answer = await self.client.post("/v1/reload", json={"run": self.names[number % 2]}, timeout=300)
        self.statuses["reload"][str(answer.status_code)] += 1
        if answer.status_code == 200:
            self.runs[answer.json()["run"]] = self.offline[number % 2]

    async def reloads(self, every: float) -> None:
        number = 1
        while time.monotonic() + every < self.end:
            await asyncio.sleep(every)
            before = time.monotonic()
            await self.reload(number)
            self.milliseconds["reload"].append(1000 * (time.monotonic() - before))
            number += 1

    async def weigh(self) -> None:
        while time.monotonic() < self.end:
            minutes = (time.monotonic() - self.began) / 60
            self.memory.append({"minutes": round(minutes, 2), **await asyncio.to_thread(self.service.memory_mb)})
            if len(self.memory) % 6 == 0:
                print(f"{minutes:5.1f} min", self.memory[-1], self.report()["totals"], file=sys.stderr, flush=True)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def work(self) -> None:
        """Ask on the common timetable. A client whose answers are late skips what it missed."""
        while (now := time.monotonic()) < self.end:
            self.planned = max(self.planned, now - 1) + 1 / self.rate
            await asyncio.sleep(self.planned - now)
            (kind,) = self.dice.choices(list(SHARES), SHARES.values())
            began = time.monotonic()
            try:
                status, complaint = await self.ask(kind)
            except httpx.HTTPError as error:
                status, complaint = type(error).__name__, None
            self.milliseconds[kind].append(1000 * (time.monotonic() - began))
            self.statuses[kind][str(status)] += 1
            if complaint:
                self.wrong.append(f"{kind}: {complaint}")

    async def ask(self, kind: str) -> tuple[int, str | None]:
        """Send one request: its status, and what is wrong with the answer."""
        pool, at = self.pool, self.dice.randrange(POOL)
        if kind.endswith(("user", "users")) and kind != "new user":
            users = self.dice.choices(pool.users, k={"one": 1}.get(kind.split()[0]) or int(kind.split()[0]))
            answer = await self.client.post("/v1/recommend", json={"users": users, "k": K})
            return self.checked(answer, lambda run, found: lists_differ(pool, run, users, found))
        if kind == "new user":
            answer = await self.client.post("/v1/recommend", json={"items": pool.lists[at], "k": K})
            return self.checked(answer, lambda run, found: differing(found[0]["items"], run.new[at], 1e-9))
        if kind == "similar":
            answer = await self.client.post("/v1/similar", json={"items": [pool.items[at]], "k": K})
            return self.checked(answer, lambda run, found: differing(found[0]["items"], run.similar[at], 1e-9))
        if kind == "explain":
            answer = await self.client.post(
                "/v1/explain", json=dict(zip(("user", "item"), pool.pairs[at], strict=True))
            )
            return self.checked(answer, lambda run, found: close(found["score"], run.explained[at]))
        if kind == "refused":
            body, status = self.dice.choice(REFUSED)
            answer = await self.client.post("/v1/recommend", content=body, headers={"content-type": "application/json"})
            is_wrong = answer.status_code not in (status, 503) or set(answer.json()["error"]) != {
                "code",
                "message",
                "hint",
            }
            return answer.status_code, f"{answer.status_code} for {body[:40]!r}" if is_wrong else None
        path, parameters = {
            "search": ("/v1/items", {"query": str(at), "limit": 50}),
            "history": ("/v1/history", {"user": pool.pairs[at][0]}),
            "overview": ("/v1/overview", {"limit": 100}),
        }[kind]
        return self.checked(await self.client.get(path, params=parameters), lambda run, found: None)

    def checked(self, answer: httpx.Response, differs: Any) -> tuple[int, str | None]:
        if answer.status_code != 200:
            return answer.status_code, None if answer.status_code == 503 else answer.text[:200]
        name = answer.headers["x-hmlet-run"]
        if name not in self.runs:  # an answer of the run that is just being swapped in
            left = [each for each in self.offline if each not in self.runs.values()]
            if not left:
                return 200, f"of a run {name!r}, which was not loaded"
            (self.runs[name],) = left
        return 200, differs(self.runs[name], answer.json())

    def report(self) -> dict[str, Any]:
        totals = sum(self.statuses.values(), Counter[str]())
        broken = {status: count for status, count in totals.items() if not status.isdigit()}
        bad = {status: count for status, count in totals.items() if status >= "500" and status not in {"503", *broken}}
        return {
            "totals": dict(totals),
            "per_second": round(totals.total() / (time.monotonic() - self.began), 1),
            "wrong": len(self.wrong),
            "examples": self.wrong[:20],
            "failed": sum(bad.values()),  # answers 5xx but 503
            "broken": sum(broken.values()),  # connections, without an answer
            "requests": {
                kind: {
                    "statuses": dict(self.statuses[kind]),
                    **{f"p{q}_ms": round(float(np.percentile(times, q)), 2) for q in (50, 99, 100)},
                }
                for kind, times in self.milliseconds.items()
            },
        }


def lists_differ(pool: Pool, run: Offline, users: list[Any], found: Any) -> str | None:
    if [each["user"] for each in found] != users:
        return "other users"
    complaints = (differing(each["items"], run.users[pool.at[each["user"]]], 1e-12) for each in found)
    return next(filter(None, complaints), None)


def close(found: float, expected: float) -> str | None:
    return None if abs(found - expected) <= 1e-9 * max(1, abs(expected)) else f"{found!r}, not {expected!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path, help="another run of the same data, in the same directory")
    parser.add_argument("--tree", type=Path, default=TREE, help="the checkout whose service runs")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=150, help="requests a second")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--every", type=float, default=60, help="seconds between two reloads")
    parser.add_argument("--log", type=Path, help="where the service's log goes")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    first, second = options.first.resolve(), options.second.resolve()
    if first.parent != second.parent:
        parser.error("both runs have to be in one directory, which is the service's reload root")
    service = Service.hmlet(first, "--reload-root", str(first.parent), tree=options.tree, log=options.log)
    try:
        soak = Soak(service, first, second)
        found = asyncio.run(soak.run(options.minutes, options.rate, options.clients, options.every))
    finally:
        status = service.stop()
    halves = [soak.memory[max(0, at - 6) : at] for at in (len(soak.memory) // 2 + 1, len(soak.memory))]
    memory = {name: [median(each[name] for each in half) for half in halves] for name in ("rss", "pss")}
    met = {
        "no wrong answer": not soak.wrong,
        "no 5xx but 503": not found["failed"],
        "no connection without an answer": not found["broken"],
        f"second half adds at most {MEMORY_MB:g} MB": memory["pss"][1] - memory["pss"][0] <= MEMORY_MB,
    }
    found |= {"memory_mb": {"half_and_end": memory, "samples": soak.memory}, "exit_status": status, "met": met}
    setting = {name: getattr(options, name) for name in ("minutes", "rate", "clients", "every")}
    result = written("soak", circumstances(options.tree) | setting | found, options.record)
    del result["memory_mb"]["samples"]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
