"""Two ranks as threads of one process: what each of them computes forward, without torch.distributed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from hmlet.system.ranks import Ranks

Result = TypeVar("Result")


@dataclass(frozen=True)
class Thread(Ranks):
    """One of two ranks."""

    size: int = 2
    sent: dict[int, Tensor] = field(default_factory=dict)
    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=10))

    def _exchange(self, own: Tensor) -> list[Tensor]:
        self.sent[self.rank] = own
        self.barrier.wait()
        every = [self.sent[rank] for rank in range(self.size)]
        self.barrier.wait()
        return every

    def rows(self, x_NC: Tensor) -> Tensor:
        return torch.cat(self._exchange(x_NC), dim=1)[self.own_rows(len(x_NC))]

    def gather(self, x_MF: Tensor, n: int) -> Tensor:
        every_NF = torch.cat(self._exchange(x_MF))
        assert len(every_NF) == n
        return every_NF

    def total(self, *parts: Tensor) -> list[Tensor]:
        return [torch.stack(self._exchange(part)).sum(dim=0) for part in parts]


def on_two(work: Callable[[Ranks], Result]) -> list[Result]:
    """What some work returns on each of two ranks."""
    first = Thread()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, [first, Thread(rank=1, sent=first.sent, barrier=first.barrier)]))
