"""The CPU benchmarks of several source trees, taking turns in one run: what has become slower, and what faster.

A tree is a checkout of the project. Each benchmark is the tree's own script on the tree's own `src`, in a process of
its own, with compiled modules kept in the tree. The change of a value is that of the last tree's median over the first
one's.

    python lab/benchmarks/bench_trees.py --tree OLD --tree . --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import commit, hardware, parsed, publish


@dataclass(frozen=True)
class Case:
    """A benchmark at a size that takes seconds, and where its answer has the seconds that are compared."""

    script: str
    options: tuple[str, ...]
    values: dict[str, tuple[str | int, ...]]


_EDGES = ("sizes", 0)
CASES = [
    Case(
        "linear_cost",
        ("--edges", "1e6", "--repeats", "3", "--threads", "2"),
        {
            "graph": (*_EDGES, "graph_seconds"),
            "operator": (*_EDGES, "operator_seconds"),
            "product": (*_EDGES, "product_seconds"),
            "LightGCN step": (*_EDGES, "lightgcn_step_seconds"),
            "HMLET(End) step": (*_EDGES, "hmlet-end_step_seconds"),
        },
    ),
    Case(
        "evaluation",
        ("--dataset", "gowalla", "--users", "20", "--repeats", "2", "--threads", "2"),
        {"all users": ("hmlet_seconds",)},
    ),
    Case("export", ("--users", "3000"), {"3,000 users": ("seconds",)}),
    Case(
        "ingest",
        ("--rows", "1000000"),
        {"csv": ("results", 0, "seconds"), "parquet": ("results", 2, "seconds")},
    ),
    Case("centrality", ("--dataset", "debian", "--threads", "2"), {"exact": ("seconds",)}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tree", action="append", type=Path, required=True, help="a checkout, repeatable; oldest first"
    )
    parser.add_argument("--only", action="append", help="a benchmark's name, repeatable; by default all")
    parser.add_argument("--rounds", type=int, default=5)
    options = parsed(parser)
    values: dict[str, list[list[float]]] = {}
    for _ in range(options.rounds):
        for case in CASES:
            if options.only and case.script not in options.only:
                continue
            for at, tree in enumerate(options.tree):
                for name, value in _measured(case, tree.resolve()).items():
                    values.setdefault(name, [[] for _ in options.tree])[at].append(value)
    result: dict[str, Any] = {"trees": [commit(tree) for tree in options.tree]}
    result |= {"load_average": os.getloadavg()[0], "hardware": hardware(torch.device("cpu"))}
    result["values"] = {name: _summary(rounds) for name, rounds in values.items()}
    publish("trees", result, options.json, options.record)


def _measured(case: Case, tree: Path) -> dict[str, float]:
    """What a tree's own script answers."""
    name = f"bench_{case.script}.py"
    script = next(path for path in (tree / "lab" / "benchmarks" / name, tree / "benchmarks" / name) if path.is_file())
    command = [sys.executable, str(script), *case.options, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return {f"{case.script} {name}": _at(answer, path) for name, path in case.values.items()}


def _at(answer: Any, path: tuple[str | int, ...]) -> float:
    for key in path:
        answer = answer[key]
    return float(answer)


def _summary(rounds: list[list[float]]) -> dict[str, Any]:
    medians = [statistics.median(each) for each in rounds]
    return {"medians": medians, "rounds": rounds, "change": medians[-1] / medians[0] - 1.0}


if __name__ == "__main__":
    main()
