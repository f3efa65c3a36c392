"""Time to the paper's accuracy: `hmlet train --evaluate` as a process, from the command to the last file.

The model is chosen on validation; test numbers are read once, at the end, beside the paper's; of several seeds their
mean has to reach it. Every seed is trained twice, in turns: with a cold cache of Triton's kernels, an empty directory,
and with a warm one, which the first training has filled. Python keeps its own compiled files between the runs, as any
installation does, even if the environment forbids it: without them every process compiles PyTorch's sources again, for
five seconds. --keep copies what a record holds of a run (recipe, record, metrics by epoch, test metrics; no weights).

    python lab/benchmarks/bench_time_to_accuracy.py --datasets gowalla yelp2018 --seeds 1 2 3 4 5 --device cuda --json
    python lab/benchmarks/bench_time_to_accuracy.py --datasets debian --preset hmlet --device cpu --caches warm \\
        --json --set train.epochs=1 --set model.embedding_size=8 --set model.gate_hidden=[8]     (seconds)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from harness import parsed, publish, written

METRICS = ("ndcg", "recall", "precision")
KEPT = ("config.toml", "run.json", "metrics.jsonl", "profile.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["gowalla", "yelp2018"])
    parser.add_argument("--model", default="hmlet-end")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--caches", nargs="+", choices=("cold", "warm"), default=["cold", "warm"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value of the recipe")
    parser.add_argument("--keep", type=Path, help="a directory for the runs' small files")
    options = parsed(parser)
    paper = json.loads((resources.files("hmlet") / "reporting" / "paper.json").read_text(encoding="utf-8"))[
        "main_table"
    ]
    runs: list[dict[str, Any]] = []
    for run in _runs(options, paper):
        runs.append(run)
        written("time_to_accuracy", _result(options, runs), options.record)  # whoever is stopped keeps what is done
    publish("time_to_accuracy", _result(options, runs), options.json, options.record)


def _runs(options: argparse.Namespace, paper: dict[str, dict[str, list[float]]]) -> Iterator[dict[str, Any]]:
    """Every seed with each cache of kernels, in turns."""
    with tempfile.TemporaryDirectory() as scratch:
        filled = Path(scratch) / "warm"
        for dataset, seed, cache in itertools.product(options.datasets, options.seeds, options.caches):
            out = Path(scratch) / f"{Path(dataset).name}_{options.model}_{options.preset}_seed{seed}_{cache}"
            kernels = out.with_suffix(".kernels") if cache == "cold" else filled
            published = _published(paper, dataset, options.model)
            yield {"cache": cache, **_run(dataset, seed, out, options, published, kernels)}
            if cache == "cold":
                shutil.copytree(kernels, filled, dirs_exist_ok=True)
                shutil.rmtree(kernels)


def _result(options: argparse.Namespace, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All runs, and those of a data set and a cache together."""
    sides: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        sides.setdefault(run["dataset"], {}).setdefault(run["cache"], []).append(run)
    sets = {dataset: {cache: _together(own) for cache, own in each.items()} for dataset, each in sides.items()}
    about = {"model": options.model, "preset": options.preset, "overrides": options.overrides}
    return {**about, "sets": sets, "runs": runs}


def _published(paper: dict[str, dict[str, list[float]]], dataset: str, model: str) -> list[float] | None:
    """The paper's numbers for a data set, whether it is named or a prepared directory of that name."""
    return paper.get(Path(dataset).name, {}).get(model)


def _run(
    dataset: str, seed: int, out: Path, options: argparse.Namespace, paper: list[float] | None, kernels: Path
) -> dict[str, Any]:
    """One training with its evaluation, and the wall time of the command."""
    kernels.mkdir(exist_ok=True)
    chosen = [f"--set={override}" for override in options.overrides]
    how = ["--model", options.model, "--preset", options.preset, "--device", options.device, "--seed", str(seed)]
    began = time.perf_counter()
    trained = _hmlet(kernels, "train", dataset, *how, *chosen, "--out", str(out), "--evaluate")
    seconds = time.perf_counter() - began
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    if options.keep:
        tested = _hmlet(kernels, "evaluate", str(out), "--split", "test", "--mask", "train", "-k", "20")
        _keep(out, options.keep / out.name, tested)
    shutil.rmtree(out)
    test = {name: trained["test"][name] for name in METRICS}
    result = {"dataset": Path(dataset).name, "seed": seed, "seconds": seconds, "timings": record["timings"]}
    result |= {"best_epoch": trained["best_epoch"], "epochs": record["epochs"], "valid": trained["valid"], "test": test}
    result |= {"hardware": record["hardware"], "versions": record["versions"]}
    if paper is not None:
        result["paper"] = dict(zip(METRICS, paper, strict=True))
        result["reached"] = reached(test, result["paper"])
    return result


def _together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The seeds of one data set: the median time, the slowest one, the mean of each metric and what it reaches."""
    seconds = [run["seconds"] for run in runs]
    test = {name: statistics.mean(run["test"][name] for run in runs) for name in METRICS}
    result: dict[str, Any] = {"seeds": len(runs), "seconds": statistics.median(seconds), "slowest": max(seconds)}
    result["test"] = test
    return result if "paper" not in runs[0] else {**result, "reached": reached(test, runs[0]["paper"])}


def reached(test: dict[str, float], paper: dict[str, float]) -> dict[str, bool]:
    """Which of the paper's numbers are reached. It prints four digits: what would be printed alike, or larger, does."""
    return {name: round(test[name], 4) >= paper[name] for name in METRICS}


def _hmlet(kernels: Path, *arguments: str) -> dict[str, Any]:
    """The JSON of a command that is a process of its own and keeps its kernels in a directory."""
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(kernels),
        "PYTHONPYCACHEPREFIX": str(kernels.parent / "python"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-m", "hmlet", *arguments, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(f"hmlet {' '.join(arguments)} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _keep(run: Path, where: Path, tested: dict[str, Any]) -> None:
    where.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (run / name).is_file():
            shutil.copy(run / name, where / name)
    (where / "test_mask-train.json").write_text(json.dumps(tested, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
