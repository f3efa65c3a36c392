"""Seconds an epoch of `hmlet train` alone and beside busy loops, in one run; and the same as PyTorch does by default.

Each training is a process of its own; its median epoch is read from metrics.jsonl. "spinning" sets OpenMP's default way
to wait and PyTorch's default number of threads, as before hmlet.system.threads. Both ways take turns, alone and beside
as many busy loops as there are cores. Other load on the machine is part of "alone": the load average is recorded.

    python lab/benchmarks/bench_threads.py --dataset debian --json
    python lab/benchmarks/bench_threads.py --dataset debian --epochs 2 --rounds 1 --set model.embedding_size=8 --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch
from harness import hardware, parsed, publish

SPINS = "300000"  # of GNU OpenMP by default, where no policy is set
WAYS = ("hmlet", "spinning")


def main() -> None:
    options = _options()
    cores = len(os.sched_getaffinity(0))
    loops = options.loops or cores
    seconds: dict[str, dict[str, list[float]]] = {way: {"alone": [], "busy": []} for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            seconds[way]["alone"].append(_epoch(options, way, cores))
            with _busy(loops):
                seconds[way]["busy"].append(_epoch(options, way, cores))
    result: dict[str, object] = {"dataset": options.dataset, "model": options.model, "cores": cores}
    result |= {"busy_loops": loops, "load_average": os.getloadavg()[0], "hardware": hardware(torch.device("cpu"))}
    for way, measured in seconds.items():
        alone, busy = (statistics.median(measured[name]) for name in ("alone", "busy"))
        result[way] = {
            "alone_seconds": alone, "busy_seconds": busy, "times_as_long": busy / alone, "rounds": measured
        }  # fmt: skip
    publish("threads", result, options.json, options.record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--model", default="hmlet-end")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loops", type=int, help="busy loops; by default one for each core")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value of the recipe")
    return parsed(parser)


def _epoch(options: argparse.Namespace, way: str, cores: int) -> float:
    """The median seconds of an epoch without its validation, the first epoch left out."""
    settings = [f"train.epochs={options.epochs}", f"train.validate_every={options.epochs}", *options.overrides]
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        command = [sys.executable, "-m", "hmlet", "train", options.dataset, "--model", options.model, "--out", str(out)]
        command += ["--device", "cpu", *(part for each in settings for part in ("--set", each))]
        environment = dict(os.environ)
        if way == "spinning":
            command += ["--threads", str(cores)]
            environment["GOMP_SPINCOUNT"] = SPINS
        subprocess.run(command, env=environment, check=True, capture_output=True)
        ends = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    durations = [end - begin for begin, end in pairwise(ends[:-1])]  # the last has the validation
    return statistics.median(durations or ends)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """So many processes that each keep a core busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
