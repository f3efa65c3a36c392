"""Ingest at scale: power-law interactions with string ids, from CSV and from Parquet to a prepared 10-core split.

Each program runs in a process of its own, one after the other on the same files, and reports its wall time and its peak
memory. `pandas` is the program one would write first: read, drop duplicates, filter until stable, shuffle and cut per
user, number the ids, write Parquet.

    python lab/benchmarks/bench_ingest.py                 20 million rows, about 5 minutes and 1 GB of temporary disk
    python lab/benchmarks/bench_ingest.py --rows 1000000 --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

USERS, ITEMS, CORE = 500_000, 100_000, 10
TARGETS = {"csv": {"seconds": 60, "peak_gb": 6}, "parquet": {"seconds": 30}}


def generate(rows: int, folder: Path) -> None:
    """interactions.csv and interactions.parquet: ids drawn from Zipf laws, the same for the same number of rows."""
    import polars as pl

    rng = np.random.Generator(np.random.PCG64(0))

    def draw(n_ids: int, exponent: float) -> np.ndarray:
        weight = np.cumsum(np.arange(1, n_ids + 1, dtype=np.float64) ** -exponent)
        return rng.permutation(n_ids)[np.searchsorted(weight / weight[-1], rng.random(rows))]

    table = pl.DataFrame({"user": draw(USERS, 0.6), "item": draw(ITEMS, 0.9)})
    table = table.select(pl.format("user-{}", "user").alias("user"), pl.format("item-{}", "item").alias("item"))
    table.write_csv(folder / "interactions.csv")
    table.write_parquet(folder / "interactions.parquet")


def run_hmlet(source: Path, out: Path) -> dict[str, object]:
    from hmlet.data import prepare

    dataset = prepare([source], core=CORE)
    dataset.save(out)
    return {"interactions": len(dataset), "fingerprint": dataset.fingerprint}


def run_pandas(source: Path, out: Path) -> dict[str, object]:
    import pandas as pd

    table = pd.read_csv(source) if source.suffix == ".csv" else pd.read_parquet(source)
    table = table.drop_duplicates()
    while True:
        users, items = table["user"].map(table["user"].value_counts()), table["item"].map(table["item"].value_counts())
        strong = (users >= CORE) & (items >= CORE)
        if strong.all():
            break
        table = table[strong]
    table = table.sample(frac=1, random_state=0)
    rank, count = table.groupby("user").cumcount(), table.groupby("user")["item"].transform("size")
    table["split"] = np.where(rank < 0.8 * count, "train", np.where(rank < 0.9 * count, "valid", "test"))
    for side in ("user", "item"):
        table[side], ids = pd.factorize(table[side], sort=True)
        pd.DataFrame({"id": ids}).to_parquet(out / f"{side}s.parquet")
    table.sort_values(["split", "user", "item"]).to_parquet(out / "interactions.parquet")
    return {"interactions": len(table)}


def child(program: str, source: Path) -> None:
    """Run one program in this process and print what it took."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        start = time.perf_counter()
        result = {"hmlet": run_hmlet, "pandas": run_pandas}[program](
            source, Path(folder) / "out" if program == "hmlet" else Path(folder)
        )
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": round(seconds, 2), "peak_gb": round(peak / 1e9, 2), **result}))


def measure(rows: int, folder: Path) -> list[dict[str, object]]:
    generate(rows, folder)
    results = []
    for source in ("interactions.csv", "interactions.parquet"):
        for program in ("hmlet", "pandas"):
            command = [sys.executable, __file__, "--child", program, "--source", str(folder / source)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append({"program": program, "format": source.partition(".")[2], **json.loads(done.stdout)})
    return results


def report(rows: int, results: list[dict[str, object]]) -> dict[str, object]:
    """The record of a run: what was measured, on what, and whether the targets (stated for 20 million rows) hold."""
    import pandas as pd
    import polars as pl

    ours = {str(result["format"]): result for result in results if result["program"] == "hmlet"}
    assert len({result["fingerprint"] for result in ours.values()}) == 1, "CSV and Parquet gave different data sets"
    met = {kind: all(ours[kind][what] <= limit for what, limit in limits.items()) for kind, limits in TARGETS.items()}
    return {
        "benchmark": "ingest",
        "rows": rows,
        "users": USERS,
        "items": ITEMS,
        "core": CORE,
        "results": results,
        "targets": TARGETS,
        "targets_met": met,
        "environment": {
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "polars": pl.__version__,
            "pandas": pd.__version__,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="also write that object to a file")
    parser.add_argument("--child", choices=("hmlet", "pandas"), help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.source)
        return
    with tempfile.TemporaryDirectory() as folder:
        record = report(options.rows, measure(options.rows, Path(folder)))
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(record))
        return
    print(f"{'program':<10}{'format':<10}{'seconds':>9}{'peak GB':>9}{'interactions':>14}")
    for result in record["results"]:
        print(
            f"{result['program']:<10}{result['format']:<10}{result['seconds']:>9}{result['peak_gb']:>9}{result['interactions']:>14,}"
        )


if __name__ == "__main__":
    main()
