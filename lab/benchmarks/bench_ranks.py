"""A training step on 1, 2 and 4 ranks: its time, the bytes that a rank sends, and what the formula says it sends.

Bytes are counted three ways: from the sizes that the collectives are called with (rank 0's, as a ring sends a
reduction), from docs/scaling.md's formula, and from the machine's network counters, which have everything that any
process sends meanwhile and Gloo's own headers.

python lab/benchmarks/bench_ranks.py                                               about two minutes on two cores
python lab/benchmarks/bench_ranks.py --ranks 1,2 --dim 16 --steps 3 --json         seconds
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import hardware, parsed, publish

from hmlet.config import HmletConfig, Recipe, resolve
from hmlet.data.catalog import load
from hmlet.runs.directory import RunDirectory
from hmlet.system.ranks import Ranks, joined
from hmlet.training.profiling import Unwatched
from hmlet.training.steps import shared_weights
from hmlet.training.trainer import Trainer

FLOAT = 4
WARM_UP = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--models", default="lightgcn,hmlet-end")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parsed(parser)
    if options.worker:
        work(options)
        return
    result: dict[str, Any] = {key: getattr(options, key) for key in ("dataset", "dim", "batch", "steps")}
    result["hardware"] = hardware(torch.device("cpu"))
    for model in options.models.split(","):
        result[model] = {ranks: _start(int(ranks), model, sys.argv[1:]) for ranks in options.ranks.split(",")}
    publish("ranks", result, options.json, options.record)


def _start(ranks: int, model: str, arguments: list[str]) -> Any:
    """What rank 0 of a job measured."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *launcher, __file__, *arguments, "--worker", model]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def work(options: argparse.Namespace) -> None:
    """One rank of a job: time some steps, and count what they send."""
    overrides = [f"model.embedding_size={options.dim}", f"train.batch_size={options.batch}", "train.edge_dropout=0.0"]
    if options.worker.startswith("hmlet"):
        overrides.append("model.gate_warmup=0")
    recipe = resolve(options.worker, overrides=overrides)
    with joined() as ranks, tempfile.TemporaryDirectory() as folder:
        data = load(options.dataset)
        run = RunDirectory.create(Path(folder) / "run", recipe, data, "cpu")
        trainer = Trainer(data, recipe, torch.device("cpu"), run, Unwatched(), ranks)
        trainer.model.train()
        sent = Sent(ranks)
        seconds = []
        for step in range(WARM_UP + options.steps):
            if step == WARM_UP:
                sent.bytes, on_wire = 0.0, _network_bytes()
            began = time.perf_counter()
            ranks.any(False, False)
            trainer.steps.take(step, 0)
            seconds.append(time.perf_counter() - began)
        ranks.any(False)  # all have arrived, and so have the bytes
        on_wire = _network_bytes() - on_wire
        found = {
            "step_ms": round(1e3 * statistics.median(seconds[WARM_UP:]), 3),
            "sent_bytes": round(sent.bytes / options.steps),
            "formula_bytes": round(formula(recipe, trainer, ranks)),
            "network_bytes_a_rank": round(on_wire / options.steps / ranks.size),
        }
        if ranks.rank == 0:
            print(json.dumps(found))


def formula(recipe: Recipe, trainer: Trainer, ranks: Ranks) -> float:
    """The bytes that rank 0 sends in a step, by docs/scaling.md."""
    size, nodes, model = ranks.size, len(trainer.model.embedding), recipe.model
    own, columns = math.ceil(nodes / size), model.embedding_size / size
    others = (nodes - own) + (size - 1) * own  # rows sent: forward the others', back the own ones to each
    ring = 2 * (size - 1) / size  # of a reduction's entries
    total = 2 * ring * (recipe.train.batch_size + 1) * FLOAT  # margins and norms, forward and backward
    total += ring * 2  # two flags
    if isinstance(model, HmletConfig):
        gates = model.types.count("gated")
        moments = 2 * (size - 1) * 2 * sum(model.gate_hidden)
        total += gates * FLOAT * (2 * columns * others + 2 * others + moments)
        total += ring * FLOAT * sum(weight.numel() for weight in shared_weights(trainer.model))
    return total


class Sent:
    """Counts the bytes that this rank sends, by wrapping torch.distributed's calls."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.bytes = ranks, 0.0
        dist.all_reduce = self._counted(dist.all_reduce, self._reduced)
        dist.all_to_all_single = self._counted(dist.all_to_all_single, self._exchanged)

    def _counted(self, call: Callable[..., Any], size: Callable[..., float]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.bytes += size(*arguments)
            return call(*arguments)

        return counted

    def _reduced(self, tensor: torch.Tensor, *_: Any) -> float:
        return 2 * (self.ranks.size - 1) / self.ranks.size * tensor.nbytes

    def _exchanged(self, output: torch.Tensor, given: torch.Tensor, receive: list[int], send: list[int]) -> float:
        return given.nbytes * (1 - send[self.ranks.rank] / max(1, sum(send)))


def _network_bytes() -> int:
    """All bytes that the machine has sent since it started, to itself too."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[8]) for line in lines)


if __name__ == "__main__":
    main()
