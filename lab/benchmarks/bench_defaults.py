"""What one's own data gets without options: seconds from the command to the finished run, and test NDCG@20.

Every data set is trained as a newcomer would, `hmlet train DATA --model MODEL --out RUN`, in a process of its own, and
evaluated on its test part. What the training foretold of its time is kept beside the time that it took. The closed
forms are in the same table, because ten lines of algebra are what a model has to beat. Data are prepared directories,
so that no set gets a recipe that was searched for it.

    python lab/benchmarks/bench_defaults.py --data lastfm --data ml-1m --device cpu --json
    python lab/benchmarks/bench_defaults.py --data debian --model lightgcn --set train.epochs=1 --json        (seconds)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from harness import hardware, parsed, publish

MODELS = ("hmlet-end", "popularity", "itemknn", "ease", "gf-cf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True, help="a prepared directory")
    parser.add_argument("--model", action="append", help="by default HMLET(End) and the closed forms")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value of the recipe")
    options = parsed(parser)
    rows = [row(data, model, options) for data in options.data for model in options.model or MODELS]
    place = torch.device("cuda" if torch.cuda.is_available() and options.device != "cpu" else "cpu")
    publish(
        "defaults", {"hardware": hardware(place), "device": options.device, "rows": rows}, options.json, options.record
    )


def row(data: str, model: str, options: argparse.Namespace) -> dict[str, object]:
    """One training from the command to its end, and what it is worth."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        settings = [word for setting in options.overrides for word in ("--set", setting)]
        train = ["train", data, "--model", model, "--out", str(run), "--device", options.device, *settings]
        began = time.perf_counter()
        rc, said = _call(train)
        seconds = time.perf_counter() - began
        found: dict[str, object] = {"data": Path(data).name, "model": model, "seconds": round(seconds, 1)}
        if rc:
            return found | {"error": said[-1]}
        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        _call(["evaluate", str(run), "--json"], Path(scratch) / "test.json")
        metrics = json.loads((Path(scratch) / "test.json").read_text(encoding="utf-8"))["metrics"]
        kept = ("best_epoch", "epochs", "timings")
        return {
            **found,
            "test": {name: round(metrics[name], 4) for name in ("ndcg", "recall", "precision")},
            "valid_ndcg": None if record["valid"] is None else round(record["valid"]["ndcg"], 4),
            **{key: record[key] for key in kept},
            "forecasts": [line for line in said if "takes about" in line],
            "config": (run / "config.toml").read_text(encoding="utf-8"),
        }


def _call(arguments: list[str], out: Path | None = None) -> tuple[int, list[str]]:
    """Run a command; its status, and the lines that it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "hmlet", *arguments], capture_output=True, encoding="utf-8", check=False
    )
    if out is not None:
        out.write_text(done.stdout, encoding="utf-8")
    return done.returncode, done.stderr.strip().splitlines()


if __name__ == "__main__":
    main()
