"""What bfloat16 moments cost in accuracy: the same training with Adam's state in float32 and in bfloat16, seed by seed.

python lab/benchmarks/optimizer_state.py --seeds 1 --set train.epochs=5 --json      seconds
python lab/benchmarks/optimizer_state.py --json --record lab/results/benchmarks/optimizer_state_debian_cpu2_DATE.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness import hardware, parsed, publish

from hmlet.api import Run
from hmlet.config import resolve
from hmlet.data.catalog import load
from hmlet.training.loop import fit

METRICS = ("ndcg", "recall", "precision")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--model", default="lightgcn")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--device", default="cpu")
    options = parsed(parser)
    arms: dict[str, list[dict[str, float]]] = {"float32": [], "bfloat16": []}
    for seed in range(1, options.seeds + 1):
        for state, found in arms.items():
            found.append(_train(options, state, seed))
    result = {name: getattr(options, name) for name in ("dataset", "model", "seeds", "overrides")}
    result |= {"hardware": hardware(torch.device(options.device)), "runs": arms}
    for metric in METRICS:
        values = {state: [run[metric] for run in found] for state, found in arms.items()}
        mean = {state: statistics.fmean(each) for state, each in values.items()}
        result[metric] = {**mean, "change_percent": 100.0 * (mean["bfloat16"] / mean["float32"] - 1.0)}
        if options.seeds > 1:
            result[metric]["spread_over_seeds_percent"] = 100.0 * statistics.stdev(values["float32"]) / mean["float32"]
    publish("optimizer_state", result, options.json, options.record)


def _train(options: argparse.Namespace, state: str, seed: int) -> dict[str, Any]:
    recipe = resolve(options.model, "hmlet", None, [*options.overrides, f"train.optimizer_state={state}"], seed)
    with tempfile.TemporaryDirectory() as folder:
        run = fit(load(options.dataset), recipe, Path(folder) / "run", device=options.device)
        metrics = Run.open(run.path).evaluate("test", "train", 20).metrics
        return {
            "seed": seed,
            "best_epoch": run.record.best_epoch,
            "seconds": run.record.timings.training_seconds,
            **{name: metrics[name] for name in METRICS},
        }


if __name__ == "__main__":
    main()
