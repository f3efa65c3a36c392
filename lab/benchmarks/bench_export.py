"""Export at scale: the top-20 of 30 k users over 41 k items, D = 512, random factors, to a Parquet file.

Seen items (30 a user) are left out, as in a real export. The time is that of `recommend.export` alone: ranking and
writing; making the factors is not part of it.

    python lab/benchmarks/bench_export.py                  about a minute on two cores
    python lab/benchmarks/bench_export.py --users 3000 --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from hmlet.data import Dataset, Interactions, Vocabulary
from hmlet.recommend.export import export

TARGET_SECONDS = 60
SEEN = 30


@dataclass
class Run:
    """Random factors and a data set of random training items."""

    data: Dataset
    scored: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def random(cls, users: int, items: int, dim: int) -> Run:
        rng = np.random.default_rng(0)
        keys = np.unique(np.repeat(np.arange(users), SEEN) * items + rng.integers(items, size=users * SEEN))
        interactions = Interactions(
            (keys // items).astype(np.int32),
            (keys % items).astype(np.int32),
            Vocabulary("user", pa.array([f"user-{at}" for at in range(users)])),
            Vocabulary("item", pa.array([f"item-{at}" for at in range(items)])),
        )
        data = Dataset("random", interactions, np.zeros(len(keys), dtype=np.uint8))
        generator = torch.Generator().manual_seed(0)
        return cls(data, tuple(torch.randn(count, dim, generator=generator) for count in (users, items)))  # type: ignore[arg-type]


def measure(users: int, items: int, dim: int, k: int) -> dict[str, object]:
    run = Run.random(users, items, dim)
    with tempfile.TemporaryDirectory() as folder:
        before, start = _peak(), time.perf_counter()
        rows = export(run, Path(folder) / "topn.parquet", k)
        seconds = time.perf_counter() - start
    return {
        "benchmark": "export",
        "users": users,
        "items": items,
        "dim": dim,
        "k": k,
        "rows": rows,
        "seconds": round(seconds, 2),
        "users_per_second": round(users / seconds),
        "peak_growth_mb": round((_peak() - before) / 1e6),
        "target_seconds": TARGET_SECONDS,
        "environment": {
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--users", type=int, default=30_000)
    parser.add_argument("--items", type=int, default=41_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("-k", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="also write that object to a file")
    options = parser.parse_args()
    record = measure(options.users, options.items, options.dim, options.k)
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(record))
        return
    print(f"{record['rows']:,} rows in {record['seconds']} s ({record['users_per_second']:,} users a second)")


if __name__ == "__main__":
    main()
