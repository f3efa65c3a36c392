"""The same training over many processes: every rank holds the graph and a share of the embedding columns.

A matrix over all nodes has two layouts. In columns, N × C, a rank has all nodes and its own columns: what mixes nodes,
the product Â x, needs no other rank. In rows, M × D, it has its own nodes and all columns: what mixes columns, a dense
layer, needs none either. One exchange turns either layout into the other, and sends less than adding up what each
rank's columns contribute to a dense layer would (docs/scaling.md).

The objective is the sum over ranks of what each calls its loss: a G-th of one and the same number. So the backward
pass of everything here is its adjoint, and gradients of parameters that every rank holds are added up.

Legend: G ranks, N nodes, D embedding size, C = D / G own columns, M own nodes, F any width.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from hmlet.errors import ConfigError, HmletError, LostRank

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

TIMEOUT_VARIABLE = "HMLET_RANK_TIMEOUT"
TIMEOUT = 600.0  # seconds: the longest wait for a rank that lives, since rank 0 may be writing a large checkpoint


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, as one of them sees them; of one process alone, the identity."""

    rank: int = 0
    size: int = 1
    local: int = 0  # the number of this process on its machine, and of its CUDA device

    # -- who has what ---------------------------------------------------------------------------------------------

    def require_columns(self, embedding_size: int) -> None:
        """Refuse an embedding size that does not fall into equal shares."""
        if embedding_size % self.size:
            fitting = [str(size) for size in range(1, self.size) if embedding_size % size == 0]
            raise ConfigError(
                f"model.embedding_size = {embedding_size} cannot be split over {self.size} ranks",
                f"use {' or '.join(fitting[-3:])} of them, or a size that is a multiple of {self.size}",
            )

    def own_columns(self, whole_ND: Tensor) -> Tensor:
        """This rank's share of a matrix that every rank has: N × C."""
        if self.size == 1:
            return whole_ND
        width = whole_ND.shape[1] // self.size
        return whole_ND[:, self.rank * width : (self.rank + 1) * width].clone()

    def counts(self, n: int) -> list[int]:
        """How many of n rows each rank has: as equal as can be, larger shares first."""
        return [n // self.size + (at < n % self.size) for at in range(self.size)]

    def own_rows(self, n: int) -> slice:
        """Which of n rows this rank has."""
        counts = self.counts(n)
        first = sum(counts[: self.rank])
        return slice(first, first + counts[self.rank])

    # -- between the layouts, differentiable ----------------------------------------------------------------------

    def rows(self, x_NC: Tensor) -> Tensor:
        """Columns to rows: all columns of the own nodes, M × D."""
        if self.size == 1:
            return x_NC
        counts = self.counts(len(x_NC))
        own = counts[self.rank]
        parts_GMC = _exchange(x_NC, counts, [own] * self.size).view(self.size, own, -1)
        return parts_GMC.transpose(0, 1).reshape(own, -1)

    def columns(self, x_MD: Tensor, n: int) -> Tensor:
        """Rows to columns: the own columns of all n nodes, N × C."""
        if self.size == 1:
            return x_MD
        parts_GMC = x_MD.view(len(x_MD), self.size, -1).transpose(0, 1)
        return _exchange(parts_GMC.reshape(self.size * len(x_MD), -1), [len(x_MD)] * self.size, self.counts(n))

    def gather(self, x_MF: Tensor, n: int) -> Tensor:
        """All n rows on every rank, each rank giving its own."""
        if self.size == 1:
            return x_MF
        same = x_MF.repeat(self.size, *[1] * (x_MF.dim() - 1))
        return _exchange(same, [len(x_MF)] * self.size, self.counts(n))

    def total(self, *parts: Tensor) -> Sequence[Tensor]:
        """The sums over all ranks of some tensors, in one reduction."""
        if self.size == 1:
            return parts
        flat: Tensor = _Total.apply(torch.cat([part.reshape(-1) for part in parts]))  # type: ignore[no-untyped-call]
        pieces = torch.split(flat, [part.numel() for part in parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]

    # -- without a gradient ---------------------------------------------------------------------------------------

    def add_up(self, tensors: Iterable[Tensor | None]) -> None:
        """Replace tensors by their sums over all ranks, in one reduction."""
        present = [tensor for tensor in tensors if tensor is not None]
        if self.size == 1 or not present:
            return
        for tensor, total in zip(present, self.total(*present), strict=True):
            tensor.copy_(total)

    def whole(self, x_NF: Tensor, width: int) -> Tensor:
        """The whole matrix on every rank. Where F is several layers' columns side by side, `width` is one layer's C."""
        if self.size == 1:
            return x_NF
        parts = [torch.empty_like(x_NF, memory_format=torch.contiguous_format) for _ in range(self.size)]
        if not x_NF.is_meta:
            with _others():
                dist.all_gather(parts, x_NF.contiguous())
        return _side_by_side(parts, width)

    def own_whole(self, x_NF: Tensor, width: int) -> Tensor:
        """All columns of the own rows of a matrix, in the order that `whole` has them in."""
        if self.size == 1:
            return x_NF
        own_MF = self.rows(x_NF)
        return own_MF.view(len(own_MF), self.size, -1, width).transpose(1, 2).flatten(1)

    def hand_in(
        self, tensors: dict[str, Tensor], width: int, is_split: Callable[[str, Tensor], bool]
    ) -> dict[str, Tensor]:
        """Tensors as one process would have them, on rank 0: those that are split become whole, in its main memory."""
        return {name: self._collect(each, width) if is_split(name, each) else each for name, each in tensors.items()}

    def _collect(self, x_NF: Tensor, width: int) -> Tensor:
        if self.size == 1:
            return x_NF
        own = x_NF.detach().cpu().contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
        with _others():
            dist.gather(own, parts)
        return own if parts is None else _side_by_side(parts, width)

    def hand_out(self, tensors: dict[str, Tensor], is_split: Callable[[str, Tensor], bool]) -> dict[str, Tensor]:
        """Rank 0's tensors on every rank; of those that are split, its own columns."""
        if self.size == 1:
            return tensors
        kinds = {
            name: [list(each.shape), str(each.dtype).removeprefix("torch."), is_split(name, each)]
            for name, each in tensors.items()
        }
        received = {}
        for name, (shape, kind, split) in self.tell(kinds).items():
            own = [shape[0], shape[1] // self.size] if split else shape
            received[name] = torch.empty(own, dtype=getattr(torch, kind))
            with _others():
                if split:
                    parts = [part.contiguous() for part in tensors[name].chunk(self.size, 1)] if tensors else None
                    dist.scatter(received[name], parts)
                else:
                    dist.broadcast(received[name].copy_(tensors[name]) if tensors else received[name], 0)
        return received

    def tell(self, value: Any) -> Any:
        """Rank 0's value on every rank; it has to be JSON."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.rank == 0 else b""
        length = torch.tensor(len(text))
        with _others():
            dist.broadcast(length, 0)
            letters = torch.frombuffer(bytearray(text or bytes(int(length))), dtype=torch.uint8)
            dist.broadcast(letters, 0)
        return value if self.rank == 0 else json.loads(letters.numpy().tobytes())

    # -- agreement ------------------------------------------------------------------------------------------------

    def any(self, *flags: bool) -> Sequence[bool]:
        """For each flag, whether any rank raises it: what all have to do together, all do at the same step."""
        if self.size == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.uint8)
        with _others():
            dist.all_reduce(raised, dist.ReduceOp.MAX)
        return [bool(flag) for flag in raised]

    def first(self, work: Callable[[], Any]) -> Any:
        """Work that rank 0 does for all, such as writing: every rank has its result, or ends by its error."""
        if self.size == 1:
            return work()
        error: HmletError | None = None
        outcome: dict[str, Any] = {}
        if self.rank == 0:
            try:
                outcome["value"] = work()
            except HmletError as caught:
                error = caught
                outcome["error"] = [caught.message, caught.hint, caught.code, caught.exit_code]
        outcome = self.tell(outcome)
        if error is not None:
            raise error
        if "error" in outcome:
            error = HmletError(*outcome["error"][:2])
            error.code, error.exit_code = outcome["error"][2:]
            error.of_all_ranks = True
            raise error
        return outcome["value"]

    def require_same(self, **values: str) -> None:
        """Refuse ranks that differ in a value."""
        expected = self.tell(values)
        differs = self.any(*(values[name] != expected[name] for name in values))
        wrong = [name for name, differ in zip(values, differs, strict=True) if differ]
        if wrong:
            raise ConfigError(
                f"the ranks have different {' and '.join(wrong)}",
                "give every machine the same data, command, versions and kind of device",
            )


ALONE = Ranks()
"""One process, and no other."""


def _exchange(x: Tensor, send: list[int], receive: list[int]) -> Tensor:
    """Rows of x to every rank in turn, `send[s]` of them to rank s; as many as `receive` says come back from each."""
    received: Tensor = _Exchange.apply(x, send, receive)  # type: ignore[no-untyped-call]
    return received


class _Exchange(torch.autograd.Function):
    """Its adjoint sends everything back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, send: list[int], receive: list[int]) -> Tensor:
        ctx.back = receive, send
        received = x.new_empty(sum(receive), *x.shape[1:])
        if not x.is_meta:  # a plan talks to nobody
            with _others():
                dist.all_to_all_single(received, x.contiguous(), receive, send)
        return received

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _exchange(grad, *ctx.back), None, None


class _Total(torch.autograd.Function):
    """A sum over ranks that every rank gets is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        summed = x.clone()
        if not x.is_meta:
            with _others():
                dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total: Tensor = _Total.apply(grad)  # type: ignore[no-untyped-call]
        return total


def _side_by_side(parts: Sequence[Tensor], width: int) -> Tensor:
    """Ranks' columns in their order, layer by layer: N × G F."""
    return torch.cat([part.view(len(part), -1, width) for part in parts], dim=2).flatten(1)


# -- joining and leaving ------------------------------------------------------------------------------------------


@contextmanager
def joined(given: Ranks | None = None) -> Iterator[Ranks]:
    """The given ranks, or inside the block those that torchrun started; with neither, this process alone."""
    if given is not None:
        yield given
        return
    size = int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if size == 1:
        yield ALONE
        return
    from torch.distributed.rendezvous import rendezvous  # some builds of PyTorch do without

    patience = _timeout()
    with _others():
        store, rank, size = next(rendezvous("env://", timeout=patience))
        # Tensors in main memory always go by Gloo, which is how ranks agree without asking their devices.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        unused = _unused(store, rank, size)
        dist.init_process_group(backend, store=unused, rank=rank, world_size=size, timeout=patience)
    try:
        yield Ranks(rank, size, int(os.environ["LOCAL_RANK"]))
    except LostRank:
        # torchrun ends the survivors by SIGTERM; this one is ending, and has something to say first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    else:
        dist.destroy_process_group()  # after an error it might wait for ranks that are gone


def _timeout() -> timedelta:
    """How long to wait for a rank that lives but does not answer."""
    given = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT))
    try:
        seconds = float(given)
        if not 1 <= seconds <= 86_400:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{TIMEOUT_VARIABLE}={given!r} is not a number of seconds from 1 to 86400", "set it to 600, say"
        ) from None
    return timedelta(seconds=seconds)


def _unused(store: Store, rank: int, size: int) -> Store:
    """A corner of torchrun's store that is this attempt's alone.

    torchrun keeps one store over its restarts (PyTorch 2.13), and who reads a dead rank's address there waits for it in
    vain. So rank 0 names the corner in answer to each other rank's call, which bears a name that no earlier one had,
    and goes on answering until all who live have heard it.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    own = uuid4().hex
    if rank:
        store.set(f"call/{rank}", own)
        corner = store.get(f"answer/{own}").decode()
        store.set(f"{corner}/heard/{rank}", "")
        return PrefixStore(corner, store)
    corner, waiting = f"corner/{own}", list(range(1, size))
    while waiting:
        for other in waiting:
            store.set(f"answer/{store.get(f'call/{other}').decode()}", corner)
        time.sleep(0.01)
        waiting = [other for other in waiting if not store.check([f"{corner}/heard/{other}"])]
    return PrefixStore(corner, store)


@contextmanager
def _others() -> Iterator[None]:
    """Names the loss of a rank in what the system says against talking to it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rpartition("] ")[2].rstrip(".")
        raise LostRank(
            f"rank {os.environ.get('RANK', '0')} lost another rank, which died or left ({reason})",
            "the last checkpoint is whole: resume from it, on as many ranks as you like",
        ) from error
