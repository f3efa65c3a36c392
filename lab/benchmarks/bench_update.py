"""`hmlet update` beside training again, in one run: test NDCG@20 and wall time of both, seed by seed.

A share of the training interactions is held back: the latest where the data has times, else a random share, or all
that touches some users and items (--new-nodes). A run is trained without them. Then `update` gets them as a CSV file,
and another run is trained on everything from the start. Both are evaluated on the same test part. "before" is the run
without the new interactions. Times are of the whole call: reading, training, validation, saving.

    python lab/benchmarks/bench_update.py --dataset DIRECTORY --seeds 3 --threads 2 --json
    python lab/benchmarks/bench_update.py --dataset debian --model lightgcn --set train.epochs=2 --json
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from harness import hardware, parsed, publish

import hmlet
from hmlet.data import PARTS, Dataset, Interactions, Vocabulary
from hmlet.data.catalog import load
from hmlet.data.extension import extended, new_interactions
from hmlet.data.interactions import Ints
from hmlet.ranking.evaluation import evaluate


def main() -> None:
    options = _options()
    whole = load(options.dataset)
    before, new = held_back(whole, options.held_back, options.new_nodes)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "new.csv"
        _write(new, file)
        grown, added = extended(before, new_interactions(file, before))
        newcomers = _newcomers(whole, before, grown)
        rows = [_both(options, before, file, grown, newcomers, seed) for seed in range(1, options.seeds + 1)]
    publish(
        "update",
        {
            "dataset": whole.name,
            "model": options.model,
            "hardware": hardware(torch.device("cpu")),
            "held_back": "new users and items" if options.new_nodes else _order(whole),
            "interactions": grown.count("train"),
            "new": added._asdict(),
            "seeds": rows,
            "ndcg_share": statistics.mean(row["update"]["ndcg"] for row in rows)
            / statistics.mean(row["retrain"]["ndcg"] for row in rows),
            "time_share": statistics.median(row["update"]["seconds"] / row["retrain"]["seconds"] for row in rows),
        },
        options.json,
        options.record,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--model", default="hmlet-end")
    parser.add_argument("--held-back", type=float, default=0.05, help="share of the training interactions")
    parser.add_argument("--new-nodes", action="store_true", help="hold back all of some users and items")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.key=value of the recipe")
    return parsed(parser)


def _order(data: Dataset) -> str:
    return "at random" if data.timestamp is None else "the latest"


def held_back(data: Dataset, share: float, new_nodes: bool) -> tuple[Dataset, Interactions]:
    """The data set without a share of its training part, and that share."""
    rng, train = np.random.default_rng(0), np.arange(data.count("train"))
    pairs = Interactions(data.user, data.item, data.users, data.items)
    known = np.ones(len(data), dtype=np.bool_)
    if new_nodes:  # what is held out of their items cannot be ranked before the update
        users, items = (rng.random(count) < share / 2 for count in (data.n_users, data.n_items))
        known = ~(users[data.user] | items[data.item])
        held = train[~known[train]]
    else:
        order = rng.permutation(train) if data.timestamp is None else np.argsort(data.timestamp[train], kind="stable")
        held = order[len(train) - round(share * len(train)) :]
        known[held] = False
    return Dataset(data.name, pairs.take(np.flatnonzero(known)), data.parts[known]), pairs.take(np.sort(held))


def _newcomers(whole: Dataset, before: Dataset, grown: Dataset) -> Dataset | None:
    """The grown training part, and the test items of its new users; None if there are no new users."""
    where = whole.slice("test")
    user, item = ([side.id(int(at)) for at in rows] for side, rows in _sides(whole, where))
    kept = [
        (u, i)
        for u, i in zip(user, item, strict=True)
        if u in grown.users and u not in before.users and i in grown.items
    ]
    if not kept:
        return None
    train = grown.slice("train")
    pairs = Interactions(
        np.concatenate([grown.user[train], grown.users.indices(u for u, _ in kept)]),
        np.concatenate([grown.item[train], grown.items.indices(i for _, i in kept)]),
        grown.users,
        grown.items,
    )
    part = np.repeat([PARTS.index("train"), PARTS.index("test")], [grown.count("train"), len(kept)]).astype(np.uint8)
    return Dataset("newcomers", pairs, part)


def _sides(data: Dataset, where: slice) -> list[tuple[Vocabulary, Ints]]:
    return [(data.users, data.user[where]), (data.items, data.item[where])]


def _both(
    options: argparse.Namespace,
    before: Dataset,
    file: Path,
    grown: Dataset,
    newcomers: Dataset | None,
    seed: int,
) -> dict[str, dict[str, float]]:
    """NDCG@20 on the test part, seconds and epochs of each side with one seed."""
    place = file.parent / str(seed)

    def train(data: Dataset, out: str) -> Callable[[], hmlet.Run]:
        recipe = hmlet.resolve(
            options.model, data, preset="fitted", overrides=options.overrides, seed=seed, device="cpu"
        )
        return lambda: hmlet.fit(data, recipe, place / out, device="cpu", threads=options.threads)

    old, old_seconds = _timed(train(before, "old"))
    updated, update_seconds = _timed(
        lambda: hmlet.update(old, file, place / "updated", device="cpu", threads=options.threads)
    )
    retrained, retrain_seconds = _timed(train(grown, "retrained"))
    assert updated.data.fingerprint == retrained.data.fingerprint
    sides = {
        "before": (old, old_seconds),
        "update": (updated, update_seconds),
        "retrain": (retrained, retrain_seconds),
    }
    rows = {name: _row(run, seconds) for name, (run, seconds) in sides.items()}
    for name, run in (("update", updated), ("retrain", retrained)):
        if newcomers is not None:
            rows[name]["ndcg_new_users"] = evaluate(run.scored, newcomers, "test", "train", 20).metrics["ndcg"]
    return rows


def _row(run: hmlet.Run, seconds: float) -> dict[str, float]:
    ndcg = run.evaluate("test", "train", 20).metrics["ndcg"]
    return {"ndcg": ndcg, "seconds": seconds, "epochs": run.record.epochs, "best_epoch": run.record.best_epoch}


def _timed(work: Callable[[], hmlet.Run]) -> tuple[hmlet.Run, float]:
    began = time.perf_counter()
    run = work()
    return run, time.perf_counter() - began


def _write(new: Interactions, file: Path) -> None:
    """The interactions as a CSV file, with their own ids."""
    users, items = new.users.ids.to_pylist(), new.items.ids.to_pylist()
    with file.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text)
        writer.writerow(["user", "item"])
        writer.writerows((users[user], items[item]) for user, item in zip(new.user, new.item, strict=True))


if __name__ == "__main__":
    main()
