"""Whether two source trees train the same numbers: `python lab/same_numbers.py BEFORE AFTER --json`.

With `--python OTHER`, AFTER is trained by that interpreter: with one tree for both, this compares two PyTorch versions.

A refactoring shows with this that nothing moved. Each tree trains every model for a few epochs on the embedded data
set, on one process and on two, and writes its run; losses, validation metrics, factors and gates have to agree to the
last bit. The trees are only called by their command line, so they may differ in everything else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

MODELS = (
    "hmlet-end", "hmlet-middle", "hmlet-front", "hmlet-all", "lightgcn", "lr-gccf", "ngcf", "gc-mc", "pinsage", "bpr",
    "wrmf",
)  # fmt: skip
SHORT = (
    "train.epochs=1", "train.validate_every=1", "model.embedding_size=16", "train.edge_dropout=0.3",
    "train.batch_size=1024",  # larger ones are read another way on CPU since
)  # fmt: skip
ON_ONE_PROCESS = ("wrmf",)


def fingerprint(tree: Path, model: str, ranks: int, device: str, python: str, threads: int) -> dict[str, str]:
    """PyTorch's version, and SHA-256 of what a short run of a model leaves: its rows of metrics without the clock, and
    every tensor."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONSAFEPATH": "1"}
        environment["OMP_NUM_THREADS"] = str(threads)
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"] if ranks > 1 else []
        settings = [word for setting in SHORT for word in ("--set", setting)]
        command = [python, *launcher, "-m", "hmlet", "train", "debian", "--model", model, "--out", str(run)]
        subprocess.run(
            [*command, "--device", device, "--seed", "7", *settings],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found = {"torch": json.loads((run / "run.json").read_bytes())["versions"]["torch"]}
        found["metrics"] = hashlib.sha256(_without_clock(run / "metrics.jsonl")).hexdigest()
        for name in ("factors.safetensors", "model.safetensors", "layers.safetensors", "gates.parquet"):
            if (run / name).is_file():
                found[name] = _content(run / name)
        return found


def _without_clock(path: Path) -> bytes:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return json.dumps([{key: value for key, value in row.items() if key != "seconds"} for row in rows]).encode()


def _content(path: Path) -> str:
    """A checksum of a file's values: the order of a safetensors header may differ between equal files."""
    digest = hashlib.sha256()
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        digest.update(repr(pq.ParquetFile(path).read().to_pydict()).encode())
        return digest.hexdigest()
    from safetensors.numpy import load_file

    tensors = load_file(path)
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--model", action="append", choices=MODELS, help="by default all of them")
    parser.add_argument("--ranks", type=int, action="append", help="by default 1 and 2")
    parser.add_argument("--threads", type=int, action="append", help="of a process; by default 1")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of AFTER")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    sides = ((options.before, sys.executable), (options.after, options.python))
    for model, ranks, threads in product(options.model or MODELS, options.ranks or (1, 2), options.threads or (1,)):
        if ranks > 1 and model in ON_ONE_PROCESS:
            continue
        before, after = (fingerprint(tree, model, ranks, options.device, python, threads) for tree, python in sides)
        same = {**before, "torch": ""} == {**after, "torch": ""}
        row = {"model": model, "ranks": ranks, "threads": threads, "same": same, "before": before, "after": after}
        rows.append(row)
        if not options.json:
            print(f"{model:<14} {ranks} rank(s): {'the same' if same else 'DIFFERENT'}", flush=True)
    if options.json:
        print(json.dumps({"rows": rows, "same": all(row["same"] for row in rows)}, indent=1))
    return 0 if all(row["same"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
