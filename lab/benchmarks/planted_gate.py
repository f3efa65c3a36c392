"""What a trained gate picks where two halves were made to want different branches, beside gates that cannot choose.

python lab/benchmarks/planted_gate.py --seeds 4 5 6 --record lab/results/planted_gate/epochs500_cpu.json

Every arm is a recipe of HMLET(End). "layer 3 only" chooses by layer and never by node: what the trained gate gains
over it is what choosing node by node is worth. "planted choice" sets the gates by hand to what the set was made for:
the crowd non-linear, the ring linear. What it gains over "all linear" is all that a gate could gain.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from harness import hardware, parsed, publish

from hmlet.api import Run, fit
from hmlet.config import Recipe, resolve
from hmlet.data import Dataset
from hmlet.models.gating import RandomGate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from planted import crowd_and_ring

Nodes = npt.NDArray[np.bool_]
RECIPE = [
    "model.embedding_size=16",
    "model.gate_hidden=[32, 16]",
    "model.gate_warmup=10",
    "train.batch_size=1024",
    "train.learning_rate=0.02",
    "train.validate_every=10",
    "train.patience=0",
]
ARMS = {
    "trained gate": [],
    "trained gate, hard": ['model.gate_training="straight-through"'],
    "all linear": ['model.gate_types=["linear", "linear", "linear", "linear"]'],
    "all non-linear": ['model.gate_types=["linear", "linear", "non-linear", "non-linear"]'],
    "random gate": ['model.gate_choice="random"'],
    "layer 3 only": ['model.gate_types=["linear", "linear", "non-linear", "linear"]'],
    "planted choice": ['model.gate_choice="random"'],
    "planted choice, reversed": ['model.gate_choice="random"'],
}
K = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[4, 5, 6])
    # All-linear is at its best after 240 to 270 epochs: stopping at 200 flatters whatever learns faster.
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for every arm")
    options = parsed(parser)
    torch.set_num_threads(1)
    common = [*RECIPE, f"train.epochs={options.epochs}", *options.set]
    runs = [{"arm": arm, "seed": seed, **run_arm(arm, common, seed)} for seed in options.seeds for arm in options.arms]
    arms = {arm: summary([run for run in runs if run["arm"] == arm]) for arm in options.arms}
    if not options.json:
        sys.stdout.write(table(arms))
    result = {"recipe": common, "hardware": hardware(torch.device("cpu")), "arms": arms, "runs": runs}
    if options.json or options.record:
        publish("planted_gate", result, options.json, options.record)


def run_arm(arm: str, common: list[str], seed: int) -> dict[str, Any]:
    """Test NDCG of both halves, and where there are gates the share of non-linear choices by layer and half."""
    data, crowd_N = crowd_and_ring(seed)
    recipe: Recipe = resolve("hmlet-end", overrides=[*common, *ARMS[arm]], seed=seed)
    chosen_N = crowd_N if "reversed" not in arm else ~crowd_N
    planted = choosing(chosen_N) if arm.startswith("planted choice") else nullcontext()
    with planted, tempfile.TemporaryDirectory() as place:
        run = fit(data, recipe, Path(place) / "run", device="cpu")
        found: dict[str, Any] = {"best_epoch": run.record.best_epoch, "valid": run.record.valid["ndcg"]}
        found["test"] = halves(run, data, crowd_N)
        if "gated" in recipe.model.types:
            found["nonlinear_share"] = shares(run, data, crowd_N)
        return found


@contextmanager
def choosing(nonlinear_N: Nodes) -> Iterator[None]:
    """Random gates choose this instead."""
    choice_N2 = torch.from_numpy(np.stack([~nonlinear_N, nonlinear_N], axis=1)).float()

    class PlantedGate(RandomGate):
        def __init__(self, n_nodes: int, generator: torch.Generator) -> None:
            super().__init__(n_nodes, generator)
            if n_nodes == len(choice_N2):  # the memory plan builds a model of two nodes
                self.choice_N2.copy_(choice_N2)

    with patch("hmlet.models.hmlet.RandomGate", PlantedGate):
        yield


def halves(run: Run, data: Dataset, crowd_N: Nodes) -> dict[str, float]:
    """NDCG@20 of all users, of the crowd's and of the ring's."""
    ndcg_U = run.evaluate("test", "train+valid", K).per_user["ndcg"]
    crowd_U = crowd_N[: data.n_users]
    means = {"all": ndcg_U, "crowd": ndcg_U[crowd_U], "ring": ndcg_U[~crowd_U]}
    return {name: float(values.mean()) for name, values in means.items()}


def shares(run: Run, data: Dataset, crowd_N: Nodes) -> dict[str, float]:
    """The share of nodes whose gate chose the non-linear branch, by layer, half and side."""
    gates, user_N = run.gates.to_pandas(), np.arange(len(crowd_N)) < data.n_users
    sides = {
        "crowd users": crowd_N & user_N,
        "ring users": ~crowd_N & user_N,
        "crowd items": crowd_N & ~user_N,
        "ring items": ~crowd_N & ~user_N,
    }
    return {
        f"layer {layer}, {side}": float(rows["nonlinear"].to_numpy()[nodes_N].mean())
        for layer, rows in gates.groupby("layer")
        for side, nodes_N in sides.items()
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over an arm's seeds, and the spread of what is compared."""
    result: dict[str, Any] = {half: statistics.fmean(run["test"][half] for run in runs) for half in runs[0]["test"]}
    result["valid"] = statistics.fmean(run["valid"] for run in runs)
    result["spread"] = statistics.stdev(run["test"]["all"] for run in runs) if len(runs) > 1 else 0.0
    for name in runs[0].get("nonlinear_share", {}):
        result.setdefault("nonlinear_share", {})[name] = statistics.fmean(run["nonlinear_share"][name] for run in runs)
    return result


def table(arms: dict[str, dict[str, Any]]) -> str:
    """The arms as Markdown; a share is that of non-linear choices at layers 3 and 4."""
    lines = [
        f"| arm | NDCG@{K}, all | crowd | ring | crowd users 3/4 | ring users 3/4 | crowd items 3/4 | ring items 3/4 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, found in arms.items():
        share = found.get("nonlinear_share", {})
        sides = [
            "/".join(f"{share[f'layer {layer}, {side}']:.2f}" for layer in (3, 4)) if share else "–"
            for side in ("crowd users", "ring users", "crowd items", "ring items")
        ]
        values = [f"{found['all']:.3f} ± {found['spread']:.3f}", f"{found['crowd']:.3f}", f"{found['ring']:.3f}"]
        lines.append(f"| {' | '.join([arm, *values, *sides])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
