"""The service and other ones in turn on the same cores: processor time a request, requests a second, latency.

wrk asks for one user at a time, k = 20, with 1 and 16 connections. `before` is the tree given by --before, `bare`
is bare_service.py, `fastapi` the same in FastAPI. Processor time is the server's: all its threads and workers.

    python lab/benchmarks/bench_serve.py RUN... --before ../base --record results/serve.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness import written
from services import TREE, Service, circumstances, ids_of

BARS = {1: 1.3, 16: 0.75}  # processor time a request at most so many times the bare service's, by connections
USERS = 2000
K = 20
WRK = """\
local requests, at = {}, 0
function init()
  local headers = {["Content-Type"] = "application/json"}
  for user in io.lines("%s") do
    local body = '{"users": [' .. user .. '], "k": %d}'
    requests[#requests + 1] = wrk.format("POST", "/v1/recommend", headers, body)
  end
end
function request()
  at = at %% #requests + 1
  return requests[at]
end
function done(summary, latency)
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  print(string.format('{"requests": %%d, "seconds": %%f, "refused": %%d, "failed": %%d, "p50_ms": %%f, "p99_ms": %%f}',
    summary.requests, summary.duration / 1e6, summary.errors.status, failed,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""


def script(run: Path, folder: Path) -> Path:
    """What wrk sends: the users of a run in turn."""
    users, lua = folder / f"{run.name}.users", folder / f"{run.name}.lua"
    users.write_text("\n".join(map(json.dumps, ids_of(run, "user", USERS))), encoding="utf-8")
    lua.write_text(WRK % (users, K), encoding="utf-8")
    return lua


def ask(service: Service, lua: Path, connections: int, seconds: float, cores: str | None = None) -> dict[str, Any]:
    before = service.cpu_seconds()
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(lua), service.url]
    if cores:
        command = ["taskset", "--cpu-list", cores, *command]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    found["cpu_us"] = 1e6 * (service.cpu_seconds() - before) / found["requests"]
    found["per_second"] = found["requests"] / found["seconds"]
    return found


def started(run: Path, before: Path | None, workers: list[int], other: bool) -> dict[str, Service]:
    services = {"ours": Service.hmlet(run)}
    for number in workers:
        services[f"{number} workers"] = Service.hmlet(run, "--workers", str(number))
    if before is not None:
        services["before"] = Service.hmlet(run, tree=before)
    for name in ("bare", "fastapi") if other else ():
        services[name] = Service.uvicorn(f"{name}_service", RUN=str(run))
    return services


def measure(run: Path, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A row for each service and number of connections: the medians of the rounds, and the rounds."""
    lua, rounds = script(run, folder), dict[tuple[int, str], list[dict[str, Any]]]()
    services = started(run, options.before, options.workers, (run / "factors.safetensors").exists())

    def one(service: Service, connections: int) -> dict[str, Any]:
        return ask(service, lua, connections, options.seconds, options.client_cores)

    try:
        for service in services.values():
            one(service, 16)
        for _ in range(options.rounds):
            for connections in options.connections:
                for name, service in services.items():
                    rounds.setdefault((connections, name), []).append(one(service, connections))
        memory = {name: service.memory_mb() for name, service in services.items()}
    finally:
        for service in services.values():
            service.stop()
    rows = []
    for (connections, name), found in rounds.items():
        middle = {
            key: statistics.median(each[key] for each in found) for key in ("cpu_us", "per_second", "p50_ms", "p99_ms")
        }
        lost = {key: sum(each[key] for each in found) for key in ("refused", "failed")}
        once = {"start_seconds": services[name].start_seconds, "memory_mb": memory[name]}
        rows.append({"connections": connections, "service": name, **middle, **lost, **once, "rounds": found})
    bare = {row["connections"]: row["cpu_us"] for row in rows if row["service"] == "bare"}
    for row in rows if bare else ():
        row["times_bare"] = row["cpu_us"] / bare[row["connections"]]
    return rows


def table(run: str, rows: list[dict[str, Any]]) -> str:
    lines = [f"{run:16}clients  CPU µs (rounds)           × bare     req/s   p50 ms   p99 ms  refused   PSS MB"]
    for row in rows:
        rounds = " ".join(f"{one['cpu_us']:.0f}" for one in row["rounds"])
        figures = (row.get("times_bare", float("nan")), row["per_second"], row["p50_ms"], row["p99_ms"])
        first = f"{row['service']:16}{row['connections']:7} {row['cpu_us']:7.0f} ({rounds})"
        lines.append(
            first.ljust(49)
            + "{:8.2f} {:9.0f} {:8.2f} {:8.2f}".format(*figures)
            + f" {row['refused']:8} {row['memory_mb']['pss']:8.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--before", type=Path, help="another checkout of hmlet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each service and number of connections, a round")
    parser.add_argument("--connections", type=int, nargs="+", default=list(BARS))
    parser.add_argument("--workers", type=int, nargs="*", default=[], help="more services of this tree, with so many")
    parser.add_argument("--client-cores", help="where wrk runs, such as 8-15; run this script on others with taskset")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = circumstances(*filter(None, [TREE, options.before])) | {"runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        for run in options.runs:
            result["runs"][run.name] = measure(run.resolve(), options, Path(folder))
            print(table(run.name, result["runs"][run.name]), flush=True)
    ours = [row for row in next(iter(result["runs"].values())) if row["service"] == "ours" and "times_bare" in row]
    for row in ours:
        if (bar := BARS.get(row["connections"])) is not None:
            row |= {"bar": bar, "met": row["times_bare"] <= bar}
            met = "" if row["met"] else "not "
            print(
                f"{row['connections']} connections: {row['times_bare']:.2f} times the bare service; {bar} is {met}met"
            )
    written("serve", result, options.record)


if __name__ == "__main__":
    main()
