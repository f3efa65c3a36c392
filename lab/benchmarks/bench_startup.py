"""Seconds of `hmlet train` that are neither training nor validation: source trees side by side in one run.

A tree is a checkout of the project; its `src` is what the command runs from. Each training is a process of its own, and
the trees take turns. Training and validation are what run.json says. The rest of the process's wall time counts here:
imports, data, memory plan, graph, writing, exit. Compiled modules are kept in the trees, whatever this environment says
about them, as they are for anybody who calls a command twice.

    python lab/benchmarks/bench_startup.py --tree OLD --tree . --model lightgcn --model hmlet-end --json
    python lab/benchmarks/bench_startup.py --rounds 1 --model popularity --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from harness import commit, hardware, parsed, publish

ROOT = Path(__file__).resolve().parents[2]
MODELS = {"popularity": [], "lightgcn": ["train.epochs=1"], "hmlet-end": ["train.epochs=1"]}


def main() -> None:
    options = _options()
    trees = options.tree or [ROOT]
    models = options.model or list(MODELS)
    measured: dict[str, dict[str, list[dict[str, float]]]] = {
        model: {str(tree): [] for tree in trees} for model in models
    }
    for number in range(options.warm_up + options.rounds):
        for model in models:
            for tree in trees:
                found = _train(options, model, tree)
                if number >= options.warm_up:
                    measured[model][str(tree)].append(found)
    result: dict[str, object] = {"dataset": options.dataset, "cores": len(os.sched_getaffinity(0))}
    result["trees"] = [commit(tree) for tree in trees]
    result |= {"load_average": os.getloadavg()[0], "hardware": hardware(torch.device("cpu"))}
    for model, by_tree in measured.items():
        result[model] = [
            {name: statistics.median(each[name] for each in rounds) for name in rounds[0]} | {"rounds": rounds}
            for rounds in by_tree.values()
        ]
    publish("startup", result, options.json, options.record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--model", action="append", help="repeatable; by default a closed form and two graph models")
    parser.add_argument("--tree", action="append", type=Path, help="a checkout, repeatable; by default this one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before, which compile modules and fill caches")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value of the recipe")
    return parsed(parser)


def _train(options: argparse.Namespace, model: str, tree: Path) -> dict[str, float]:
    """The seconds of one command: the whole, what run.json says of it, and the rest."""
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        command = [sys.executable, "-m", "hmlet", "train", options.dataset, "--model", model, "--out", str(out)]
        command += ["--device", options.device]
        for setting in [*MODELS.get(model, []), *options.overrides]:
            command += ["--set", setting]
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        whole = time.perf_counter() - began
        trained = json.loads((out / "run.json").read_text(encoding="utf-8"))["timings"]["training_seconds"]
    return {"other_seconds": whole - trained, "wall_seconds": whole, "training_seconds": trained}


if __name__ == "__main__":
    main()
