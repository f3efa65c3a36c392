"""The service under load, from another process: start, throughput, latency at a fixed rate, overload, and a soak.

Requests leave on a fixed timetable, whether or not earlier ones have been answered, and a latency counts from the
planned moment: a server that stalls cannot hide it. The soak mixes good, bad and hostile requests.

    python benchmarks/bench_serve.py                          a Gowalla-sized run is trained for one step first
    python benchmarks/bench_serve.py --run RUN --seconds 20 --minutes 30 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from http_clients import Client, Connection, post

TARGETS = {"start_seconds": 3.0, "p99_ms": 25.0, "shed_p99_ms": 50.0, "times_plain": 3.0}
PLAIN = Path(__file__).with_name("plain_service.py")


def train(dataset: str, dim: int, out: Path) -> None:
    """A run of the right size; one step of one batch is enough, since speed does not depend on what was learnt."""
    sets = ["train.epochs=1", "train.batch_size=1000000", f"model.embedding_size={dim}", "model.gate_hidden=[64]"]
    options = [word for each in sets for word in ("--set", each)]
    command = [sys.executable, "-m", "hmlet", "train", dataset, "--model", "hmlet-end", "--out", str(out), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Server:
    """A `hmlet serve` process, or the plain service with a parser and an event loop, and how long it took to answer."""

    def __init__(self, run: Path, *options: str, plain: tuple[str, str] | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        start = time.perf_counter()
        command = [sys.executable, "-m", "hmlet", "serve", str(run), "--port", str(self.port), *options]
        environment = dict(os.environ)
        if plain is not None:
            command = [sys.executable, str(PLAIN), str(run), str(self.port), *plain]
            environment["OPENBLAS_NUM_THREADS"] = "1"  # else its threads hinder each other, and it is 20 times slower
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        while self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                time.sleep(0.01)
        self.start_seconds = time.perf_counter() - start

    def memory_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


def stolen_seconds() -> float:
    """Processor time that the machine below this virtual one has given to others so far."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


async def at_rate(port: int, rate: float, seconds: float, users: list[Any], k: int) -> dict[str, Any]:
    """Latency of single-user requests that leave on a timetable."""
    loop, count = asyncio.get_running_loop(), int(rate * seconds)
    idle: list[Connection] = []
    results: list[tuple[int, float]] = []
    complete = loop.create_future()
    requests = [post("/v1/recommend", {"users": [user], "k": k}) for user in users]

    def answered(connection: Connection, status: int) -> None:
        results.append((status, 1000 * (time.perf_counter() - connection.planned)))
        if not connection.transport.is_closing():
            idle.append(connection)
        if len(results) == count:
            complete.set_result(None)

    async def connect(planned: float, request: bytes) -> None:
        _, connection = await loop.create_connection(lambda: Connection(answered), "127.0.0.1", port)
        connection.ask(request, planned)

    tasks, start = [], time.perf_counter() + 0.1
    for at in range(count):
        planned, request = start + at / rate, requests[at % len(requests)]
        await asyncio.sleep(max(0.0, planned - time.perf_counter()))
        while idle and idle[-1].transport.is_closing():  # the server closes a connection that nobody used for seconds
            idle.pop()
        if idle:
            idle.pop().ask(request, planned)
        else:
            tasks.append(asyncio.create_task(connect(planned, request)))
    await asyncio.gather(*tasks)
    await complete
    for connection in idle:
        connection.transport.close()
    statuses = {status for status, _ in results}
    by_status = {status: np.array([ms for each, ms in results if each == status]) for status in statuses}
    table = {
        str(status): {"count": len(ms), **{f"p{q}_ms": round(float(np.percentile(ms, q)), 2) for q in (50, 99, 100)}}
        for status, ms in by_status.items()
    }
    return {"rate": rate, "seconds": seconds, "answers": table}


async def closed_loop(port: int, clients: int, seconds: float, users: list[Any], k: int) -> float:
    """Single-user requests answered a second, when so many clients each ask again as soon as they have an answer."""
    loop, requests = (
        asyncio.get_running_loop(),
        cycle([post("/v1/recommend", {"users": [user], "k": k}) for user in users[:1000]]),
    )
    complete, end = loop.create_future(), time.perf_counter() + seconds
    statuses: Counter[int] = Counter()
    at_work = clients

    def answered(connection: Connection, status: int) -> None:
        nonlocal at_work
        statuses[status] += 1
        if status and time.perf_counter() < end:
            connection.ask(next(requests))
            return
        connection.transport.close()
        at_work -= 1
        if not at_work:
            complete.set_result(None)

    for _ in range(clients):
        _, connection = await loop.create_connection(lambda: Connection(answered), "127.0.0.1", port)
        connection.ask(next(requests))
    await complete
    return statuses[200] / seconds


def throughput(run: Path, users: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """The services in turn: requests a second, and the processor time of the server for each.

    The plain service runs as `pip install fastapi uvicorn` has it, and also as `uvicorn[standard]` does, with a parser
    and an event loop in C, if these are installed.
    """
    servers = {"plain": Server(run, plain=("h11", "asyncio")), "hmlet": Server(run)}
    if find_spec("httptools") and find_spec("uvloop"):
        servers["plain_standard"] = Server(run, plain=("httptools", "uvloop"))
    found: dict[str, Any] = {"clients": options.clients, "seconds": options.seconds, **{name: [] for name in servers}}
    try:
        for server in servers.values():
            asyncio.run(closed_loop(server.port, options.clients, 1, users, 20))
        for _ in range(options.rounds):
            for name, server in servers.items():
                before = server.cpu_seconds()
                rate = asyncio.run(closed_loop(server.port, options.clients, options.seconds, users, 20))
                used = 1000 * (server.cpu_seconds() - before) / (rate * options.seconds)
                found[name].append({"per_second": round(rate, 1), "server_cpu_ms": round(used, 3)})
    finally:
        for server in servers.values():
            server.stop()
    middle = {
        name: {key: float(np.median([each[key] for each in found[name]])) for key in ("per_second", "server_cpu_ms")}
        for name in servers
    }
    found["median"], own = middle, middle["hmlet"]
    for name in servers.keys() - {"hmlet"}:
        found[f"times_{name}"] = round(own["per_second"] / middle[name]["per_second"], 2)
        found[f"times_{name}_per_core"] = round(middle[name]["server_cpu_ms"] / own["server_cpu_ms"], 2)
    return found


def hostile(users: list[Any], items: list[Any], dice: random.Random) -> tuple[bytes, set[int]]:
    """A request of the soak, and the statuses that are right for it."""
    user, item, deep = dice.choice(users), dice.choice(items), dice.choice([10, 100_000])
    choices: list[tuple[bytes, set[int]]] = [
        (post("/v1/recommend", {"users": [user], "k": 20}), {200}),
        (post("/v1/recommend", {"users": dice.sample(users, 30), "k": 20}), {200}),
        (post("/v1/recommend", {"items": dice.sample(items, 5), "k": 20}), {200}),
        (post("/v1/explain", {"user": user, "item": item}), {200}),
        (b"GET /v1/users?query=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % dice.randrange(1000), {200}),
        (b"GET /v1/overview?limit=100 HTTP/1.1\r\nHost: localhost\r\n\r\n", {200}),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", {200}),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", {400}),
        (post("/v1/recommend", {"users": ["nobody of this name"], "k": 20}), {404}),
        (post("/v1/recommend", {"users": [user], "k": 10**30}), {422}),
        (post("/v1/recommend", b'{"users": [1], "k": NaN}'), {422}),
        (post("/v1/recommend", {"users": [0] * 10_000}), {422}),
        (post("/v1/recommend", b"[" * deep), {422}),
        (post("/v1/recommend", b'{"users": ["\xff"]}'), {400}),
        (post("/v1/recommend", b" " * 2_000_000, keep=False), {413}),
        (b"GET /" + b"%2e%2e/" * 50 + b"etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}),
        (b"\x00\x01\x02 garbage\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", {400}),
    ]
    return dice.choice(choices)


async def soak(server: Server, minutes: float, users: list[Any], items: list[Any], clients: int = 4) -> dict[str, Any]:
    """Statuses and memory over minutes of mixed requests, with a few clients that never finish theirs."""
    client, statuses, wrong = Client(server.port), Counter[int](), Counter[str]()
    end = time.monotonic() + 60 * minutes

    async def worker(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end:
            request, right = hostile(users, items, dice)
            status = await client.send(request)
            statuses[status] += 1
            if status not in right | {0, 503}:  # 0: closed on us while we sent what it had refused already
                wrong[f"{status} for {request[:60]!r}"] += 1

    async def dawdler() -> None:
        while time.monotonic() < end:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                for byte in b"POST /v1/recommend HTTP/1.1\r\n":
                    writer.write(bytes([byte]))
                    await asyncio.sleep(1)
                    if reader.at_eof() or time.monotonic() > end:
                        break
            except OSError:
                pass
            writer.close()

    async def warm() -> float:
        await asyncio.sleep(60 * min(minutes / 4, 1))
        return server.memory_mb()

    early, *_ = await asyncio.gather(
        warm(), *(worker(seed) for seed in range(clients)), *(dawdler() for _ in range(20))
    )
    return {
        "minutes": minutes,
        "requests": sum(statuses.values()),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "wrong": dict(wrong),
        "errors_5xx": sum(count for status, count in statuses.items() if status >= 500 and status != 503),
        "memory_mb": {"after_warm_up": round(early, 1), "at_the_end": round(server.memory_mb(), 1)},
        "alive": server.process.poll() is None,
    }


async def slow_crowd(port: int, crowd: int, rate: float, users: list[Any]) -> dict[str, Any]:
    """How long clients of one byte a second are borne, and what ordinary requests notice of them."""
    lives: list[float] = []

    async def drip() -> None:
        start = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in b"POST /v1/recommend HTTP/1.1\r\n" * 2:
            writer.write(bytes([byte]))
            try:
                await asyncio.wait_for(reader.read(1), 1)
                break  # an answer or an end: both mean closed
            except TimeoutError:
                continue
            except OSError:
                break
        lives.append(time.perf_counter() - start)
        writer.close()

    drips = [asyncio.create_task(drip()) for _ in range(crowd)]
    await asyncio.sleep(2)
    ordinary = await at_rate(port, rate, 5, users, 20)
    await asyncio.gather(*drips)
    return {"clients": crowd, "longest_life_seconds": round(max(lives), 2), "ordinary": ordinary}


def measure(run: Path, options: argparse.Namespace) -> dict[str, Any]:
    from hmlet.api import Run

    data = Run.open(run).data
    users, items = data.users.ids.to_pylist(), data.items.ids.to_pylist()
    random.Random(0).shuffle(users)
    serve_options = ["--approximate"] if options.approximate else []
    starts = []
    for _ in range(options.starts):
        server = Server(run, *serve_options)
        starts.append(round(server.start_seconds, 2))
        if len(starts) < options.starts:
            server.stop()
    result: dict[str, Any] = {
        "data": {"users": len(users), "items": len(items)},
        "start_seconds": {"each": starts, "median": float(np.median(starts))},
    }
    try:
        if options.rounds:
            result["throughput"] = throughput(run, users, options)
        overload = options.overload or 2 * result["throughput"]["median"]["hmlet"]["per_second"]
        asyncio.run(at_rate(server.port, 50, 2, users, 20))  # warm up
        before, stolen = server.cpu_seconds(), stolen_seconds()
        result["load"] = asyncio.run(at_rate(server.port, options.rate, options.seconds, users, 20))
        used = server.cpu_seconds() - before
        result["load"]["stolen_share"] = round((stolen_seconds() - stolen) / options.seconds / (os.cpu_count() or 1), 4)
        result["load"]["server_cpu_ms_per_request"] = round(1000 * used / (options.rate * options.seconds), 2)
        result["overload"] = []
        for _ in range(max(1, options.rounds)):
            result["overload"].append(asyncio.run(at_rate(server.port, overload, 5, users, 20)))
            time.sleep(5)
        refused = [each["answers"]["503"]["p99_ms"] for each in result["overload"] if "503" in each["answers"]]
        result["shed_p99_ms"] = float(np.median(refused)) if refused else None
        result["after_overload"] = asyncio.run(at_rate(server.port, options.rate, 5, users, 20))
        result["slow_crowd"] = asyncio.run(slow_crowd(server.port, options.crowd, options.rate, users))
        if options.minutes:
            result["soak"] = asyncio.run(soak(server, options.minutes, users, items))
    finally:
        result["exit_status"] = server.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished run; without it one is trained")
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rate", type=float, default=200, help="requests a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--overload", type=float, help="requests a second; by default twice what it was found to hold")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of the comparison with the plain service; 0 leaves it out"
    )
    parser.add_argument("--clients", type=int, default=16, help="of the comparison")
    parser.add_argument("--minutes", type=float, default=0.5, help="of mixed good, bad and hostile requests")
    parser.add_argument("--crowd", type=int, default=1000, help="clients of one byte a second")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--approximate", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run"
        if options.run is None:
            train(options.dataset, options.dim, run)
        result = measure(run, options)
    result["hardware"] = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    result["targets"] = TARGETS
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
