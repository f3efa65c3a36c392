"""Where good settings lie on data sets of many shapes: what the default rule of hmlet.config is chosen from.

Every point of a grid is trained on every data set. A line of JSON says what validation and test found and what it took.

    python lab/benchmarks/search_defaults.py --data carry/data/lastfm --grid grid.json --out found.jsonl

grid.json has a list of values by key, whose product is tried: {"train.l2": [0.0001, 0.001], "steps": [300, 900]}.
`steps` gives the number of epochs, because an epoch is one step on a small set and hundreds on a large one. With
`--preset fitted` points lie around the rule itself, and `rate_factor` multiplies its step size. The rule looks at
validation alone; test values are recorded for those who check it (check_defaults.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from pathlib import Path

from hmlet import Dataset, HmletError, Recipe, Run
from hmlet.config import Shape, resolve
from hmlet.data.catalog import load
from hmlet.training.loop import choose_device, fit


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
            row = {"data": data.name, "model": model, "preset": options.preset, "point": point}
            row |= measure(data, recipe_of(data, model, point, options), options.device)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def recipe_of(data: Dataset, model: str, point: dict[str, object], options: argparse.Namespace) -> Recipe:
    """The preset's recipe at a point."""
    settings = {key: value for key, value in point.items() if "." in key}
    kind = choose_device(options.device).type
    loss = [f"train.loss={point['train.loss']}"] if "train.loss" in point else []  # its settings are the rule's too
    base = resolve(model, options.preset, overrides=loss, shape=Shape.of(data), device=kind)
    if "rate_factor" in point:
        settings["train.learning_rate"] = base.train.learning_rate * float(str(point["rate_factor"]))
    if "steps" in point:
        batch = int(str(settings.get("train.batch_size", base.train.batch_size)))
        epochs = max(1, round(int(str(point["steps"])) / math.ceil(data.count("train") / batch)))
        settings |= {"train.epochs": epochs, "train.validate_every": max(1, epochs // 25), "train.patience": 0}
        if model.startswith("hmlet"):
            settings["model.gate_warmup"] = epochs // 8
    return base.changed([f"{key}={json.dumps(value)}" for key, value in settings.items()])


def measure(data: Dataset, recipe: Recipe, device: str) -> dict[str, object]:
    """What a recipe gives on a data set: validation and test NDCG@20, the best epoch, and seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        try:
            run = Run(fit(data, recipe.changed(["train.save_layers=false"]), Path(scratch) / "run", device=device))
        except HmletError as error:
            return {"error": str(error)}
        return {
            "epochs": recipe.train.epochs,
            "learning_rate": recipe.train.learning_rate,
            "valid": run.evaluate("valid", "train", 20).metrics["ndcg"],
            "test": run.evaluate("test", "train", 20).metrics["ndcg"],
            "best_epoch": run.record.best_epoch,
            "seconds": round(time.monotonic() - began, 2),
        }


if __name__ == "__main__":
    main()
