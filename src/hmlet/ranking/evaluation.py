"""Full-ranking evaluation: scores and a split to a table of metrics, in blocks, on the device of the scores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from hmlet.data import Csr, Dataset
from hmlet.errors import ConfigError, NothingHeldOut
from hmlet.ranking.metrics import METRICS, per_user
from hmlet.ranking.scoring import Scorer, Users, completed, factor_scorer, rows_of
from hmlet.ranking.top_k import NO_ITEM, Indices, Ranked, top_k
from hmlet.system.frames import Framed
from hmlet.system.progress import Advance, silent
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.spelling import option

Result = TypeVar("Result")
MASKS = {"train": ("train",), "train+valid": ("train", "valid"), "all": ("train", "valid", "test")}
KNOWN = "all"  # the mask of every list for a user, who has these items already; `evaluate` follows the paper
# Of a block's scores: what stays in a CPU's cache, and is small compared with a GPU's memory.
BLOCK_BYTES = {"cpu": 20 << 20, "cuda": 512 << 20}
JOINED = 2048  # users whose metrics are computed together


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Framed):
    """Metrics of every user with a held-out item, and their means. As a frame: one row with the means."""

    split: str
    mask: str
    k: int
    users: Indices  # ascending
    per_user: dict[str, npt.NDArray[np.float64]]
    coverage: float  # share of the catalogue that is recommended to anyone

    def __repr__(self) -> str:
        metrics = self.metrics
        shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in ("ndcg", "recall", "precision") if name in metrics)
        return f"<Evaluation on {self.split}, {len(self.users):,} users, @{self.k}: {shown}>"

    @property
    def metrics(self) -> dict[str, float]:
        """The means over users, and coverage."""
        means = {name: float(values.mean()) if len(values) else 0.0 for name, values in self.per_user.items()}
        return {**means, "coverage": self.coverage}

    def as_json(self) -> dict[str, Any]:
        return {"split": self.split, "mask": self.mask, "k": self.k, "users": len(self.users), "metrics": self.metrics}

    def to_arrow(self) -> pa.Table:
        about = {"split": self.split, "mask": self.mask, "k": self.k, "users": len(self.users)}
        return pa.table({name: [value] for name, value in {**about, **self.metrics}.items()})


class Evaluations(list[Evaluation], Framed):
    """Evaluations of one run with lists of several lengths. As a frame: a row for each length."""

    def __repr__(self) -> str:
        return f"<Evaluations @{', @'.join(str(each.k) for each in self)}>"

    def to_arrow(self) -> pa.Table:
        return pa.concat_tables([each.to_arrow() for each in self])


def mask_parts(split: str, mask: str) -> tuple[str, ...]:
    """The parts whose items a mask hides; hiding the part that is asked for would leave nothing to find."""
    if split not in ("valid", "test"):
        raise ConfigError(f"there is no split {split!r} to evaluate on", "use valid or test")
    parts = _parts(mask, [name for name, hidden in MASKS.items() if split not in hidden])
    if split in parts:
        raise ConfigError(
            f"mask {mask!r} excludes the {split} items that are to be ranked", f"use {option('mask', 'train')}"
        )
    return parts


def seen_items(data: Dataset, mask: str) -> Csr:
    """Each user's items that a mask leaves out of the ranking."""
    return data.csr(*_parts(mask))


def _parts(mask: str, possible: Iterable[str] = MASKS) -> tuple[str, ...]:
    if mask not in MASKS:
        raise ConfigError(f"there is no mask {mask!r}", f"use {' or '.join(possible)}")
    return MASKS[mask]


def evaluate(
    scored: tuple[Users, Tensor | Scorer],
    data: Dataset,
    split: str = "valid",
    mask: str = "train",
    k: int = 20,
    ranks: Ranks = ALONE,
    width: int | None = None,
    advance: Advance = silent,
) -> Evaluation:
    """Metrics of lists of one length; see `evaluate_at`."""
    (only,) = evaluate_at(scored, data, split, mask, [k], ranks, width, advance)
    return only


def evaluate_at(
    scored: tuple[Users, Tensor | Scorer],
    data: Dataset,
    split: str,
    mask: str,
    lengths: Sequence[int],
    ranks: Ranks = ALONE,
    width: int | None = None,
    advance: Advance = silent,
) -> list[Evaluation]:
    """Rank every item for every user with a held-out item of `split`, once, and cut the lists at several lengths.

    Items of the mask's parts are left out. `scored` is users and items as `top_k` takes them. With a `width`, users'
    factors are the rank's own columns alone (see `rank_blocks`). `advance` receives the number of users done.
    """
    everyone, items = scored
    held_out, seen = data.csr(split), data.csr(*mask_parts(split, mask))
    users = np.flatnonzero(held_out.counts > 0)
    if len(users) == 0:  # a mean over nobody is not 0
        other = "valid" if split == "test" else "test"
        raise NothingHeldOut(
            f"no user of {data.name} has a held-out item in the {split} part",
            f"use {option('split', other)}"
            if data.count(other)
            else "prepare it with a split that holds some interactions out",
        )
    relevant = Membership(held_out, data.n_items, items.device)
    collected: dict[int, dict[str, list[Tensor]]] = {k: {name: [] for name in METRICS} for k in lengths}
    recommended = {k: torch.zeros(data.n_items + 1, dtype=torch.bool, device=items.device) for k in lengths}
    done = 0
    for block, items_BK in _joined(rank_blocks(everyone, items, users, max(lengths), seen, ranks=ranks, width=width)):
        users_B = torch.from_numpy(block).to(items.device)
        hits_BK = relevant(users_B, items_BK)
        for k in lengths:
            for name, values in per_user(hits_BK[:, :k], relevant.counts[users_B], k).items():
                collected[k][name].append(values)
            recommended[k][items_BK[:, :k]] = True  # NO_ITEM is -1: the spare last place
        done += len(block)
        advance(done, len(users))
    found = []
    for k in lengths:
        arrays = {name: torch.cat(parts).cpu().numpy() for name, parts in collected[k].items()}
        covered = int(recommended[k][: data.n_items].sum())
        found.append(Evaluation(split, mask, k, users, arrays, covered / data.n_items))
    return found


def _joined(blocks: Iterator[tuple[Indices, Ranked]]) -> Iterator[tuple[Indices, Tensor]]:
    """Users and their items, JOINED users or more together: the metrics' small operations cost a call each."""
    users: list[Indices] = []
    items: list[Tensor] = []
    for block, ranked in blocks:
        users.append(block)
        items.append(ranked.items_BK)
        if sum(map(len, users)) >= JOINED:
            yield np.concatenate(users), torch.cat(items)
            users, items = [], []
    if users:
        yield np.concatenate(users), torch.cat(items)


def block_size(n_items: int, device: str) -> int:
    """How many users are ranked together on a kind of device."""
    return max(1, BLOCK_BYTES[device] // max(1, 4 * n_items))


def blocks_at_once(users: int, size: int, device: str, ranks: Ranks = ALONE) -> int:
    """How many blocks are ranked side by side: one a thread on CPU. One fills a GPU, and ranks exchange one by one."""
    if device != "cpu" or ranks.size > 1:
        return 1
    return max(1, min(torch.get_num_threads(), -(-users // size)))


def rank_blocks(
    everyone: Users,
    items: Tensor | Scorer,
    users: Indices,
    k: int,
    seen: Csr | None,
    allowed_I: Tensor | None = None,
    ranks: Ranks = ALONE,
    width: int | None = None,
) -> Iterator[tuple[Indices, Ranked]]:
    """Blocks of users with their top-k, in order; a block's scores never take more than BLOCK_BYTES.

    On CPU each thread ranks blocks of its own. Of several ranks each ranks its share of a block, and all of them get
    the whole block's lists. Users' factors may be the rank's own columns, `width` of each layer: a block's are then
    exchanged, so that no rank holds all of them.
    """
    scorer = factor_scorer(items, repeatedly=True) if isinstance(items, Tensor) else items
    device = scorer.device
    size = block_size(scorer.n_items, device.type)
    at_once = blocks_at_once(len(users), size, device.type, ranks)

    def rank(block: Indices, own: Indices, users_B: Users) -> tuple[Indices, Ranked]:
        return block, top_k(users_B, scorer, k, None if seen is None else seen.rows(own), allowed_I)

    def calls() -> Iterator[Callable[[], tuple[Indices, Ranked]]]:
        for start in range(0, len(users), size * ranks.size):
            block = users[start : start + size * ranks.size]
            own = block[ranks.own_rows(len(block))]
            if width is None:
                users_B = rows_of(everyone, own)
            else:  # users are factors, whose columns ranks share
                part_BF = everyone[torch.from_numpy(block).to(device)]
                users_B = completed(ranks.own_whole(part_BF, width), scorer.depth)
            yield partial(rank, block, own, users_B)

    for block, ranked in _side_by_side(calls(), at_once):
        yield block, Ranked(*(ranks.gather(torch.as_tensor(each_BK, device=device), len(block)) for each_BK in ranked))


def _side_by_side(calls: Iterator[Callable[[], Result]], threads: int) -> Iterator[Result]:
    """What each call returns, in their order; at most `threads` run at once, and as many results wait to be taken.

    Meanwhile each of PyTorch's operations stays on one core, here as there: most of a ranking's are too small to be
    worth dividing.
    """
    if threads == 1:
        yield from (call() for call in calls)
        return
    before = torch.get_num_threads()
    running: deque[Future[Result]] = deque()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, "ranking", torch.set_num_threads, (1,)) as pool:
            try:
                for call in calls:
                    running.append(pool.submit(call))
                    if len(running) > 2 * threads:
                        yield running.popleft().result()
                while running:
                    yield running.popleft().result()
            finally:
                for waiting in running:  # one failed, or nobody reads on
                    waiting.cancel()
    finally:
        torch.set_num_threads(before)


class Membership:
    """Which (user, item) pairs a CSR holds, answered for whole blocks by binary search on the device."""

    def __init__(self, csr: Csr, n_items: int, device: torch.device) -> None:
        owner = np.repeat(np.arange(len(csr.indptr) - 1, dtype=np.int64), csr.counts)
        self.n_items = n_items
        self.keys = torch.from_numpy(owner * n_items + csr.items).to(device)
        self.counts = torch.from_numpy(csr.counts).to(device)

    def __call__(self, users_B: Tensor, items_BK: Tensor) -> Tensor:
        """Whether each item is one of its row's user: B × K, false for NO_ITEM."""
        wanted_BK = users_B[:, None] * self.n_items + items_BK
        place_BK = torch.searchsorted(self.keys, wanted_BK).clamp_max(len(self.keys) - 1)
        held_BK: Tensor = (self.keys[place_BK] == wanted_BK) & (items_BK != NO_ITEM)
        return held_BK
