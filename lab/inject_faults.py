"""Let single system calls of a training fail, one after another, and see that the run survives each failure.

    python lab/inject_faults.py [--calls openat,write,rename] [--errors EIO,ENOSPC] [--most 89]

One training is traced to see which calls touch the run directory. Then `strace -e inject` lets one of them fail,
in a training of its own. The exit status has to be 0 or 2, an error has to name the run, and no temporary file may be
left. `--resume` has to finish the training, with the factors of an undisturbed run, bit for bit. Prints a line for each
kind of call and error.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

TRAINING = [
    "--model", "bpr", "--device", "cpu", "--set", "train.epochs=2", "--set", "train.checkpoint_seconds=0",
    "--set", "model.embedding_size=8", "--set", "train.batch_size=100000", "--set", "train.validate_every=2",
]  # fmt: skip
CALLS = ("openat", "write", "fsync", "rename", "chmod", "unlink", "read")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", default=",".join(CALLS))
    parser.add_argument("--errors", default="EIO,ENOSPC")
    parser.add_argument("--most", type=int, default=89, help="cases to try in all")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("strace is not installed")
    kinds = [(call, error) for call in options.calls.split(",") for error in options.errors.split(",")]
    with tempfile.TemporaryDirectory(prefix="hmlet-faults-") as folder:
        run, log = Path(folder) / "run", Path(folder) / "strace.log"
        left = options.most
        for at, (call, error) in enumerate(kinds):
            places, expected = undisturbed(run, log, call)
            share = min(len(places), left // (len(kinds) - at))
            chosen = [places[round(n * (len(places) - 1) / max(1, share - 1))] for n in range(share)]
            left -= share
            injected = sum(survives(run, log, call, error, number, expected) for number in chosen)
            print(f"{call} {error}: {injected} failures of {len(places)} places, all survived", flush=True)


def undisturbed(run: Path, log: Path, call: str) -> tuple[list[int], str]:
    """Which of the calls of a training touch its run, counted from 1, and the checksum of its factors."""
    ended = train(run, log, [f"trace={call}"])
    require(ended.returncode == 0, ended.stderr)
    lines = [line.split(maxsplit=1) for line in log.read_text(errors="replace").splitlines()]
    calls = [(process, said) for process, said in lines if said.startswith(f"{call}(")]
    writer = Counter(process for process, said in calls if touches(said, run)).most_common(1)
    own = [said for process, said in calls if writer and process == writer[0][0]]  # strace counts by process
    return [number for number, said in enumerate(own, 1) if touches(said, run)], factors(run)


def touches(said: str, run: Path) -> bool:
    """Whether a call is for a file of the run, and does not only print its name."""
    return re.search(rf'[<"]{re.escape(str(run))}[/>"]', said) is not None


def survives(run: Path, log: Path, call: str, error: str, number: int, expected: str) -> bool:
    """Whether a call of the run could be made to fail; a training that does not survive it ends this script."""
    where = f"{call} {error} number {number}"
    ended = train(run, log, [f"trace={call}", f"inject={call}:error={error}:when={number}"])
    hit = [line for line in log.read_text(errors="replace").splitlines() if "(INJECTED)" in line]
    if not any(touches(line, run) for line in hit):
        return False  # the number of calls before it differs a little from one process to the next
    require(ended.returncode in (0, 2), f"{where}: exit status {ended.returncode}\n{ended.stderr}")
    require("Traceback" not in ended.stderr, f"{where}: {ended.stderr}")
    require(ended.returncode == 0 or str(run) in ended.stderr, f"{where}: the run is not named: {ended.stderr}")
    require(not list(run.glob(".*.tmp")) or call == "unlink", f"{where} leaves {list(run.glob('.*.tmp'))}")
    again = train(run, None, [], "--resume")
    require(again.returncode == 0, f"{where}: it does not resume: {again.stderr}")
    require(factors(run) == expected, f"{where}: other factors than an undisturbed run")
    return True


def train(run: Path, log: Path | None, traced: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    """A training, new without `more`, under strace with these expressions where there is a log."""
    tracer = [] if log is None else ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-o", str(log)]
    if not more:
        shutil.rmtree(run, ignore_errors=True)
    command = [*tracer, *(word for each in traced for word in ("-e", each)), sys.executable, "-m", "hmlet", "train"]
    command += ["debian", "--out", str(run), *TRAINING, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def factors(run: Path) -> str:
    return hashlib.sha256((run / "factors.safetensors").read_bytes()).hexdigest()


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(f"failed: {otherwise}")


if __name__ == "__main__":
    main()
