"""Fold-in against training: what users who were hidden from training entirely get, beside being trained on.

One in ten users is hidden. A model is trained on everybody and once more without them; then the second one folds them
in from the training items that the first one saw. Both rank every item for them; NDCG@20 is on the test part, and the
candidates for e⁰ are compared on the validation part. The time is that of one user after another, on one core.

    python lab/benchmarks/bench_foldin.py --dataset debian
    python lab/benchmarks/bench_foldin.py --dataset gowalla --device cuda --set model.embedding_size=64 --json
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from hmlet.config import Recipe, resolve
from hmlet.data import PARTS, Dataset, Interactions
from hmlet.data.catalog import load
from hmlet.ranking.evaluation import evaluate
from hmlet.recommend.foldin import FoldIn
from hmlet.training.loop import fit

HIDDEN_SHARE = 0.1
TARGETS = {"share_of_trained": 0.9, "one_user_ms": 5.0}


def without(data: Dataset, hidden_U: np.ndarray) -> Dataset:
    """The data set with the same ids and none of some users' interactions."""
    part = np.concatenate([np.full(data.count(each), at, dtype=np.uint8) for at, each in enumerate(PARTS)])
    kept = ~hidden_U[data.user]
    interactions = Interactions(data.user[kept], data.item[kept], data.users, data.items)
    return Dataset(f"{data.name} without one user in ten", interactions, part[kept])


def ndcg(factors: tuple[torch.Tensor, torch.Tensor], data: Dataset) -> dict[str, float]:
    """NDCG@20 on both held-out parts, over the users that `data` has."""
    return {split: evaluate(factors, data, split, "train", 20).metrics["ndcg"] for split in ("valid", "test")}


def candidates(fold: FoldIn, given: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """Factors by each way to choose e⁰; "rule" is what the library does."""
    found = {"rule": fold.users(given)}
    if fold.model.propagated:
        lists = fold.lists_of("user", given)
        messages = fold.messages(lists)
        found["zero"] = fold.propagate(lists, torch.zeros_like(messages[0]))
        trained = np.flatnonzero(fold.graph.degree[: fold.graph.n_users])
        own = fold.messages(fold.lists_of("user", [fold.own_items(user) for user in trained]))
        for name, at in (("scaled first message", 0), ("scaled last message", -1)):
            scale = (own[at] * fold.inputs[0][trained]).sum() / own[at].square().sum()
            found[name] = fold.propagate(lists, scale * messages[at])
        counted_N = torch.from_numpy((fold.graph.degree + 1.0) ** -0.5).float()
        own_B1 = lists.counts_B1.float().rsqrt()
        messages = [own_B1 * lists.sum(x_ND, counted_N) for x_ND in fold.inputs]
        embedding_BD = fold.rule("user")(lists, messages)
        found["rule, neighbours' degrees count the newcomer"] = fold.propagate(lists, embedding_BD, messages)
    return found


def milliseconds(fold: FoldIn, given: list[np.ndarray]) -> dict[str, float]:
    """The median and the 99th percentile of folding in one user, on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    taken = []
    for each in given[:500]:
        start = time.perf_counter()
        fold.users([each])
        taken.append(1e3 * (time.perf_counter() - start))
    torch.set_num_threads(before)
    return {"median": round(float(np.median(taken)), 3), "p99": round(float(np.quantile(taken, 0.99)), 3)}


def measure(data: Dataset, recipe: Recipe, device: str, folder: Path) -> dict[str, object]:
    hidden_U = np.random.default_rng(0).random(data.n_users) < HIDDEN_SHARE
    hidden_U &= data.csr("train").counts > 0
    users, less = np.flatnonzero(hidden_U), without(data, hidden_U)
    run_all = fit(data, recipe, folder / "all", device=device, resume=True)
    run_less = fit(less, recipe, folder / "less", device=device, resume=True)
    fold = FoldIn.open(run_less, less)
    csr = data.csr("train")
    given = [csr.row(user) for user in users]
    users_UF, items_IF = run_less.factors()
    alone = without(data, ~hidden_U)
    scores: dict[str, dict[str, float]] = {}
    for name, factors_BF in candidates(fold, given).items():
        users_UF = users_UF.clone()
        users_UF[users] = factors_BF
        scores[name] = ndcg((users_UF, items_IF), alone)
    trained = ndcg(run_all.factors(), alone)
    return {
        "hidden_users": len(users),
        "trained_ndcg": trained,
        "folded_ndcg": scores["rule"],
        "share_of_trained": round(scores["rule"]["test"] / trained["test"], 4),
        "candidates_valid_ndcg": {name: each["valid"] for name, each in scores.items()},
        "one_user_ms": milliseconds(fold, given),
        "best_epochs": {"all": run_all.record.best_epoch, "less": run_less.record.best_epoch},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--mirror", help="where the benchmark data is, for a set that is not in the cache")
    parser.add_argument("--model", default="hmlet-end")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--work", type=Path, help="keep the two runs there, and go on from what is there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="also write that object to a file")
    options = parser.parse_args()
    overrides = [*options.overrides, *([f"train.epochs={options.epochs}"] if options.epochs else [])]
    recipe = resolve(options.model, overrides=overrides)
    data = load(options.dataset, mirror=options.mirror)
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(data, recipe, options.device, options.work or Path(folder))
    record = {
        "benchmark": "foldin",
        "dataset": options.dataset,
        "model": options.model,
        "overrides": overrides,
        **measured,
        "targets": TARGETS,
        "environment": {
            "machine": platform.machine(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(record))
        return
    print(
        f"{record['hidden_users']:,} users of {options.dataset}, hidden from training, {options.model}, NDCG@20 on test"
    )
    print(f"trained on {measured['trained_ndcg']['test']:.4f}, folded in {measured['folded_ndcg']['test']:.4f}")  # type: ignore[index]
    print(f"{record['share_of_trained']:.1%} of it, {measured['one_user_ms']['median']} ms a user")  # type: ignore[index]


if __name__ == "__main__":
    main()
