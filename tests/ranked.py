"""What test_distributed.py trains on one process and on several: importable, and a script for torchrun.

torchrun … ranked.py together DIRECTORY      every case, an interrupted run and an export
torchrun … ranked.py killed RANK STEP …      `hmlet …`, one of whose ranks kills itself once, at a step
torchrun … ranked.py stopped RANK STEP …     the same, one of whose ranks stops without dying
torchrun … ranked.py doomed RANK SECONDS …   the first, at a moment
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import torch
from planted import dataset, random_pairs

from hmlet.api import Run
from hmlet.cli import main
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.system.ranks import ALONE, Ranks, joined
from hmlet.training.loop import fit
from hmlet.training.steps import GradientSteps
from hmlet.training.trainer import Interrupted

SETTINGS = [
    "train.epochs=1", "train.batch_size=32", "train.learning_rate=0.01", "train.edge_dropout=0.3",
    "train.validate_every=1", "train.checkpoint_seconds=60", "model.embedding_size=8",
]  # fmt: skip
GATES = ["model.gate_hidden=[12, 6]", "model.gate_warmup=0"]
OTHERS = ["bpr", "lightgcn", "lr-gccf", "ngcf", "gc-mc", "pinsage"]
HMLET = ["hmlet-end", "hmlet-middle", "hmlet-front", "hmlet-all"]
CASES: dict[str, list[str]] = {
    **{model: [model, *SETTINGS] for model in OTHERS},
    **{model: [model, *SETTINGS, *GATES] for model in HMLET},
    # what else of a recipe meets the other ranks: side-by-side factors, weights in the penalty, noise when ranking
    "layerwise": [
        "hmlet-end", *SETTINGS, *GATES, "model.readout=layerwise", "train.l2_weights=true", "model.gate_ranking=noisy",
    ],
    "random gates": ["hmlet-front", *SETTINGS, *GATES, "model.gate_choice=random"],
    "softmax": ["hmlet-end", *SETTINGS, *GATES, "train.loss=softmax", "loss.temperature_learned=true"],
    "softmax@k": [
        "lr-gccf", *SETTINGS, "train.loss=softmax@k", "loss.k=3", "loss.negatives=12", "train.draw=interaction",
    ],
    "multinomial": ["lightgcn", *SETTINGS, "train.loss=multinomial", "train.batch_size=6", "loss.negatives=12"],
    "soft multinomial": [
        "lightgcn", *SETTINGS, "train.loss=multinomial", "train.batch_size=6",
        "loss.temperature_ratio=3", "loss.temperature_learned=true",
    ],
    "learned popularity": [
        "lightgcn", *SETTINGS, "train.loss=multinomial", "train.batch_size=6",
        "loss.popularity_weight=0.1", "loss.popularity_learned=true",
    ],
    "bsl": [
        "lightgcn", *SETTINGS, "train.loss=bsl", "loss.positives=3",
        "loss.popularity_weight=0.1", "loss.popularity_learned=true",
    ],
    "spectral start": ["hmlet-end", *SETTINGS, *GATES, "model.start=spectral"],
}  # fmt: skip


def data() -> Dataset:
    """Random pairs; 37 + 24 nodes fall into unequal shares on two and on four ranks."""
    pairs = random_pairs(5, 37, 24, 0.4)
    return dataset(37, 24, "random", train=[*pairs[::3], *pairs[1::3]], valid=pairs[2::3])


def recipe(case: str) -> Recipe:
    model, *overrides = CASES[case]
    return resolve(model, overrides=overrides)


def train_all(out: Path, ranks: Ranks = ALONE) -> dict[str, list[float]]:
    """Train every case into its own directory; returns the losses of each, step by step."""
    losses: list[float] = []
    sound = GradientSteps.batch_loss

    def loss(self: GradientSteps) -> torch.Tensor:
        value = sound(self)
        if type(self) is GradientSteps:  # the memory plan takes a step of another kind
            losses.append(float(value.detach()))
        return value

    GradientSteps.batch_loss = loss  # type: ignore[method-assign]
    found = {}
    try:
        for case in CASES:
            losses.clear()
            fit(data(), recipe(case), out / case, device="cpu", ranks=ranks)
            found[case] = list(losses)
    finally:
        GradientSteps.batch_loss = sound  # type: ignore[method-assign]
    return found


def together(directory: str) -> None:
    out = Path(directory)
    with joined() as ranks:
        losses = train_all(out, ranks)
        Run.open(out / "hmlet-end").export(out / "topn.parquet", 5, ranks=ranks)
        before(4, lambda: os.kill(os.getpid(), signal.SIGTERM) if ranks.rank == 1 else None)
        with suppress(Interrupted):
            fit(data(), recipe("hmlet-end"), out / "interrupted", device="cpu", ranks=ranks)
            raise AssertionError("one rank was asked to stop, and they did not")
        if ranks.rank == 0:
            (out / "losses.json").write_text(json.dumps(losses))


def before(step: int, act: object) -> None:
    """Have `act` called in the middle of the step-th step from now on."""
    taken, sound = 0, GradientSteps.batch_loss

    def loss(self: GradientSteps) -> torch.Tensor:
        nonlocal taken
        taken += type(self) is GradientSteps
        if taken == step:
            act()  # type: ignore[operator]
        return sound(self)

    GradientSteps.batch_loss = loss  # type: ignore[method-assign]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    how, *rest = sys.argv[1:]
    if how == "together":
        together(rest[0])
        sys.exit()
    rank, when, *arguments = rest
    if os.environ["RANK"] == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if how == "killed":
            before(int(when), die)
        elif how == "stopped":
            before(int(when), lambda: os.kill(os.getpid(), signal.SIGSTOP))
        else:
            threading.Timer(float(when), die).start()
    sys.exit(main(arguments))
