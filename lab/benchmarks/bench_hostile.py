"""How long GET /v1/health waits beside hostile bodies, and what a proxy's connections remember of large ones.

Each body of tests/hostile.py is sent again and again by one client and by ten; the figure is the slowest of 200 probes
minus the slowest of 200 quiet ones, the median of five rounds. Then wrk measures the throughput through nginx before
and after 16 ordinary bodies of 1.8 KB, which must not slow the connections that all clients share.

    python lab/benchmarks/bench_hostile.py RUN --record results/hostile.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from bench_serve import ask as load
from bench_serve import script
from harness import written
from services import TREE, Service, circumstances, ids_of

sys.path.insert(0, str(TREE / "tests"))
from exchanges import PROBE, Wire, ask, post
from hostile import large
from programs import in_front_of

PROBES = 200
BARS_MS = {1: 50.0, 10: 100.0}  # by senders
PATIENCE = 20.0  # seconds
LASTS = 0.8  # the share of its throughput that a proxy keeps
QUIET = PROBE.replace(b"Connection: close\r\n", b"")


def slowest(port: int) -> float:
    """Milliseconds of the slowest of 200 probes on one connection, 5 ms apart; of fewer, if they take too long."""
    worst, end = 0.0, time.perf_counter() + PATIENCE
    with Wire(port) as wire:
        wire.socket.settimeout(600)
        for _ in range(PROBES):
            began = time.perf_counter()
            wire.send(QUIET)
            answer = wire.answer()
            assert answer is not None
            assert answer.status == 200
            worst = max(worst, time.perf_counter() - began)
            if time.perf_counter() > end:
                break
            time.sleep(0.005)
    return 1000 * worst


def send(port: int, request: bytes, senders: int, statuses: Any) -> None:
    """Clients of a process of their own, which takes the processors last, as a real crowd is on other machines."""
    os.nice(10)

    def one() -> None:
        while True:
            with suppress(OSError, AssertionError), Wire(port) as wire:
                wire.socket.settimeout(600)
                while True:
                    wire.send(request)
                    answer = wire.answer()
                    if answer is not None:
                        statuses[answer.status] = statuses.get(answer.status, 0) + 1
                    if answer is None or answer.closes:
                        break

    threads = [threading.Thread(target=one) for _ in range(senders)]
    for thread in threads:
        thread.start()
    threads[0].join()


def beside(port: int, request: bytes, senders: int, statuses: Any) -> float:
    sending = multiprocessing.Process(target=send, args=(port, request, senders, statuses), daemon=True)
    sending.start()
    time.sleep(0.3)  # until they are connected
    try:
        return slowest(port)
    finally:
        sending.kill()
        sending.join()
        time.sleep(0.5)  # what they have sent is answered


def bodies(service: Service, run: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """For each body and number of senders, by how much the slowest probe is later than a quiet one."""
    sent = large(ids_of(run, "user", 1)[0], ids_of(run, "item", 1)[0])
    wanted = [name for name in sent if not options.only or any(each in name for each in options.only)]
    rows = []
    with multiprocessing.Manager() as manager:
        for name in wanted:
            statuses = {senders: manager.dict() for senders in BARS_MS}
            later: dict[int, list[float]] = {senders: [] for senders in BARS_MS}
            for _ in range(options.rounds):
                quiet = slowest(service.port)
                for senders, found in later.items():
                    found.append(beside(service.port, post(sent[name][0]), senders, statuses[senders]) - quiet)
            for senders, bar in BARS_MS.items():
                middle, counts = (
                    statistics.median(later[senders]),
                    {str(key): n for key, n in statuses[senders].items()},
                )
                row = {"body": name, "senders": senders, "later_ms": middle, "rounds_ms": later[senders], "bar_ms": bar}
                rows.append({**row, "met": middle <= bar, "statuses": counts})
                each = " ".join(f"{one:.0f}" for one in later[senders])
                print(f"{name:40} {senders:3} {middle:8.1f} ms  [{each}]  {counts}", flush=True)
    return rows


def remembered(service: Service, run: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Requests a second through nginx with shared connections, before and after some that are not small."""
    (user,), items = ids_of(run, "user", 1), ids_of(run, "item", 1)
    body = post({"users": [user], "deny": items * 200})
    with tempfile.TemporaryDirectory() as folder, in_front_of(service.port, "nginx", Path(folder)) as port:
        through = _At(service, f"http://127.0.0.1:{port}")
        lua = script(run, Path(folder))

        def throughput() -> list[float]:
            return [load(through, lua, 8, options.seconds)["per_second"] for _ in range(options.rounds)]

        throughput()  # warm up
        before = throughput()
        with ThreadPool(16) as pool:  # together, so that they meet all shared connections
            statuses = [answer.status for answer in pool.map(lambda _: ask(port, body), range(16))]
        after = throughput()
    share = max(after) / max(before)  # what else the machine does can only take from either
    print(
        f"through nginx: {before} req/s, after 16 bodies of {len(body)} bytes ({set(statuses)}): {after}, {share:.2f}"
    )
    return {
        "bytes": len(body),
        "statuses": statuses,
        "before": before,
        "after": after,
        "share": share,
        "met": share >= LASTS,
    }


class _At:
    """A service as wrk finds it behind a proxy."""

    def __init__(self, service: Service, url: str) -> None:
        self.cpu_seconds: Callable[[], float] = service.cpu_seconds
        self.url = url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tree", type=Path, default=TREE, help="the checkout whose service runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of wrk, a round")
    parser.add_argument("--only", nargs="*", help="bodies whose names contain this")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    service = Service.hmlet(options.run.resolve(), tree=options.tree)
    try:
        proxied = remembered(service, options.run.resolve(), options)
        rows = bodies(service, options.run.resolve(), options)
    finally:
        service.stop()
    worst = {
        senders: max((row["later_ms"], row["body"]) for row in rows if row["senders"] == senders) for senders in BARS_MS
    }
    print({senders: f"at most {bar:g} ms: {worst[senders]}" for senders, bar in BARS_MS.items()})
    result = circumstances(options.tree) | {"rounds": options.rounds, "through_nginx": proxied, "bodies": rows}
    written("hostile", result, options.record)


if __name__ == "__main__":
    main()
