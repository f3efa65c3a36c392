"""Time to the paper's accuracy: `hmlet train` and `hmlet evaluate` as processes, from the command to the last file.

The model is chosen on validation; test numbers are read once, at the end, beside the paper's; of several seeds their
mean has to reach it. The first run on a machine also compiles the kernels, which Triton then keeps. --keep copies what
results/ holds of a run (recipe, record, metrics by epoch, test metrics; no weights).

    python benchmarks/bench_time_to_accuracy.py --datasets gowalla yelp2018 --device cuda --keep kept --json
    python benchmarks/bench_time_to_accuracy.py --datasets debian --preset hmlet --device cpu --json \\
        --set train.epochs=1 --set model.embedding_size=8 --set model.gate_hidden=[8]     (seconds)
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any

from harness import parsed, publish

METRICS = ("ndcg", "recall", "precision")
KEPT = ("config.toml", "run.json", "metrics.jsonl", "profile.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["gowalla", "yelp2018"])
    parser.add_argument("--model", default="hmlet-end")
    parser.add_argument("--preset", default="gpu")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value of the recipe")
    parser.add_argument("--keep", type=Path, help="a directory for the runs' small files")
    options = parsed(parser)
    paper = json.loads((resources.files("hmlet") / "reporting" / "paper.json").read_text(encoding="utf-8"))[
        "main_table"
    ]
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        for dataset in options.datasets:
            for seed in options.seeds:
                out = Path(scratch) / f"{Path(dataset).name}_{options.model}_{options.preset}_seed{seed}"
                runs.append(_run(dataset, seed, out, options, paper.get(dataset, {}).get(options.model)))
    sets = {dataset: _together([run for run in runs if run["dataset"] == dataset]) for dataset in options.datasets}
    about = {"model": options.model, "preset": options.preset, "overrides": options.overrides}
    publish("time_to_accuracy", {**about, "sets": sets, "runs": runs}, options.json, options.record)


def _run(dataset: str, seed: int, out: Path, options: argparse.Namespace, paper: list[float] | None) -> dict[str, Any]:
    """One training and its evaluation, with the wall time of each command."""
    chosen = [f"--set={override}" for override in options.overrides]
    how = ["--model", options.model, "--preset", options.preset, "--device", options.device, "--seed", str(seed)]
    train_seconds, trained = _hmlet("train", dataset, *how, *chosen, "--out", str(out))
    evaluate_seconds, tested = _hmlet("evaluate", str(out), "--split", "test", "--mask", "train", "-k", "20")
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    if options.keep:
        _keep(out, options.keep / out.name, tested)
    test = {name: tested["metrics"][name] for name in METRICS}
    result = {"dataset": dataset, "seed": seed, "train_seconds": train_seconds, "evaluate_seconds": evaluate_seconds}
    result |= {"best_epoch": trained["best_epoch"], "epochs": record["epochs"], "valid": trained["valid"], "test": test}
    result |= {"hardware": record["hardware"], "versions": record["versions"]}
    if paper is not None:
        result["paper"] = dict(zip(METRICS, paper, strict=True))
        result["reached"] = reached(test, result["paper"])
    return result


def _together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The seeds of one data set: the median time, the slowest one, the mean of each metric and what it reaches."""
    seconds = [run["train_seconds"] + run["evaluate_seconds"] for run in runs]
    test = {name: statistics.mean(run["test"][name] for run in runs) for name in METRICS}
    result: dict[str, Any] = {"seeds": len(runs), "seconds": statistics.median(seconds), "slowest": max(seconds)}
    result["test"] = test
    return result if "paper" not in runs[0] else {**result, "reached": reached(test, runs[0]["paper"])}


def reached(test: dict[str, float], paper: dict[str, float]) -> dict[str, bool]:
    """Which of the paper's numbers are reached. It prints four digits: what would be printed alike, or larger, does."""
    return {name: round(test[name], 4) >= paper[name] for name in METRICS}


def _hmlet(*arguments: str) -> tuple[float, dict[str, Any]]:
    """The wall time of a command as a process of its own, and its JSON."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "hmlet", *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"hmlet {' '.join(arguments)} ended with {done.returncode}")
    return seconds, json.loads(done.stdout)


def _keep(run: Path, where: Path, tested: dict[str, Any]) -> None:
    where.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (run / name).is_file():
            shutil.copy(run / name, where / name)
    (where / "test_mask-train.json").write_text(json.dumps(tested, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
