"""The memory plan beside what training really takes: steps and an evaluation, each case in a process of its own.

On CPU the peak is that of the process above what it held before the trainer was made (after a small training that
loads every library); on CUDA it is the allocator's. Also: the host memory that building the graph takes, beside the
size of its CSR.

    python lab/benchmarks/bench_plan.py --json                   seconds; --size large takes minutes and some GB
    python lab/benchmarks/bench_plan.py --device cuda --size large --json --record FILE
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness import hardware, parsed, publish
from synthetic import power_law

from hmlet.config import resolve
from hmlet.data import Dataset
from hmlet.data.catalog import load
from hmlet.graph import Sizes, training_graph
from hmlet.graph.kernels import build_operator
from hmlet.runs.directory import RunDirectory
from hmlet.training.planning import memory_plan
from hmlet.training.profiling import Unwatched
from hmlet.training.trainer import Trainer

SIZES = {"small": (20_000, 10_000, 400_000), "large": (1_000_000, 200_000, 20_000_000)}  # users, items, interactions
DROPOUT, PLAIN = "train.edge_dropout=0.4", "train.edge_dropout=0.0"
CASES: list[list[str]] = [  # model, then settings
    ["lightgcn", "model.embedding_size=64", PLAIN],
    ["lightgcn", "model.embedding_size=64", DROPOUT],
    ["lightgcn", "model.embedding_size=256", DROPOUT],
    ["lightgcn", "model.embedding_size=16", DROPOUT, "train.batch_size=65536"],
    ["hmlet-end", "model.embedding_size=64", DROPOUT],
    ["hmlet-end", "model.embedding_size=256", PLAIN],
    ["hmlet-all", "model.embedding_size=64", PLAIN, "model.readout=layerwise"],
    ["lr-gccf", "model.embedding_size=64"],
    ["ngcf", "model.embedding_size=64"],
    ["gc-mc", "model.embedding_size=64"],
    ["pinsage", "model.embedding_size=64"],
    ["bpr", "model.embedding_size=128"],
]
ON_CUDA = [
    ["lightgcn", "model.embedding_size=64", DROPOUT, "train.precision=bfloat16"],
    ["hmlet-end", "model.embedding_size=64", DROPOUT, "train.precision=bfloat16"],
    ["hmlet-end", "model.embedding_size=256", DROPOUT, "train.precision=bfloat16"],
]
STEPS = {"cpu": 2, "cuda": 5}  # past the capture of a CUDA graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="a named set or a prepared directory instead of a synthetic one")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # what a process of its own is asked
    options = parsed(parser)
    if options.case:
        print(json.dumps(_measure(options, json.loads(options.case))))
        return
    graph = _apart(["graph"])
    cases = [_apart(case) for case in CASES + (ON_CUDA if options.device == "cuda" else [])]
    result = {"size": options.dataset or options.size, "hardware": hardware(torch.device(options.device))}
    worst = max((case["ratio"] for case in cases), key=lambda ratio: abs(ratio - 1.0))
    publish("plan", {**result, "worst": worst, "graph": graph, "cases": cases}, options.json, options.record)


def _apart(case: list[str]) -> dict[str, Any]:
    command = [sys.executable, *sys.argv, "--case", json.dumps(case)]
    # The C library would keep freed blocks; with a fixed threshold it gives them back, and a process holds what lives.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def _measure(options: argparse.Namespace, case: list[str]) -> dict[str, Any]:
    data = load(options.dataset) if options.dataset else power_law(*SIZES[options.size])
    data.csr("train"), data.csr("valid")
    if case == ["graph"]:
        return _measure_graph(data)
    device = torch.device(options.device)
    recipe = resolve(case[0], "hmlet", None, case[1:])
    _train(power_law(200, 100, 2_000), recipe, device)  # libraries load, and choose what they always keep
    before = _start(device)
    _train(data, recipe, device)
    measured = _peak(device) - before
    plan = memory_plan(recipe, Sizes.of(data), device.type)
    found = {"model": case[0], "settings": case[1:], "plan": plan.as_json(), "planned": plan.tensors}
    if device.type == "cuda":
        found["reserved"] = torch.cuda.memory_reserved(device)
    return {**found, "measured": measured, "ratio": round(plan.tensors / measured, 3)}


def _train(data: Dataset, recipe: Any, device: torch.device) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run", recipe, data, str(device))
        trainer = Trainer(data, recipe, device, run, Unwatched())
        _start(device)  # what building takes in passing is the graph's case, and PinSage's walks are on the host
        for _ in range(2):  # the second evaluation finds a best model already
            for step in range(STEPS[device.type]):
                trainer.steps.take(step, 0)
            trainer._validate(1)
            trainer.state.best_value = -1.0


def _measure_graph(data: Dataset) -> dict[str, Any]:
    """The peak of building graph and operator on the host, in units of the CSR: offsets, neighbours and weights."""
    before = _start(torch.device("cpu"))
    graph = training_graph(data)
    operator = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale())
    peak = _peak(torch.device("cpu")) - before
    csr = operator.indptr.nbytes + operator.neighbours.nbytes + operator.weights.nbytes
    return {"edges": graph.n_edges, "csr": csr, "peak": peak, "peak_over_csr": round(peak / csr, 3)}


def _start(device: torch.device) -> int:
    """What is held now; the peak is counted from here on."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to VmRSS
    return _status("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
