"""Where good settings lie on data sets of many shapes: what the default rule of hmlet.config is chosen from.

Every point of a grid is trained on every data set. A line of JSON says what validation and test found and what it took.
Steps and not epochs are what a point counts, because an epoch is one step on a small set and hundreds on a large one.

    python benchmarks/search_defaults.py --data carry/data/lastfm --grid grid.json --out found.jsonl

grid.json has a list of settings by key, whose product is tried: {"train.learning_rate": [0.016, 0.032], "steps": [4]}.
The rule itself looks at validation alone; test values are recorded for those who check it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from pathlib import Path

from hmlet.api import Run
from hmlet.config import resolve
from hmlet.data.catalog import load
from hmlet.errors import HmletError
from hmlet.training.loop import fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True)
    parser.add_argument("--model", action="append")
    parser.add_argument("--grid", type=Path, required=True)
    parser.add_argument("--preset", default="gpu")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no point is begun after this long")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    grid = json.loads(options.grid.read_text(encoding="utf-8"))
    began = time.monotonic()
    for name in options.data:
        data = load(name)
        for model, values in itertools.product(options.model or ["hmlet-end"], itertools.product(*grid.values())):
            if time.monotonic() - began > options.seconds:
                return
            point = dict(zip(grid, values, strict=True))
            row = {"data": data.name, "model": model, "point": point, **measure(data, model, point, options)}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def measure(data, model: str, point: dict, options: argparse.Namespace) -> dict:
    """What a point gives on a data set: validation and test NDCG@20, the best epoch, and seconds."""
    settings = {key: value for key, value in point.items() if "." in key}
    batch = settings.get("train.batch_size", 131072)
    epochs = max(1, round(point["steps"] / math.ceil(data.count("train") / batch)))
    schedule = {"train.epochs": epochs, "train.validate_every": max(1, epochs // 8), "train.patience": 0}
    if model.startswith("hmlet"):
        schedule["model.gate_warmup"] = epochs // 8
    overrides = [f"{key}={json.dumps(value)}" for key, value in {**schedule, **settings}.items()]
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        try:
            recipe = resolve(model, options.preset, overrides=[*overrides, "train.save_layers=false"])
            run = Run(fit(data, recipe, Path(scratch) / "run", device=options.device))
        except HmletError as error:
            return {"error": str(error)}
        seconds = time.monotonic() - began
        return {
            "epochs": epochs,
            "valid": run.evaluate("valid", "train", 20).metrics["ndcg"],
            "test": run.evaluate("test", "train", 20).metrics["ndcg"],
            "best_epoch": run.record.best_epoch,
            "seconds": round(seconds, 2),
        }


if __name__ == "__main__":
    main()
