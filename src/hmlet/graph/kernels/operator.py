"""The operator Â and its differentiable product; which implementation runs is decided by the device.

Shapes: N nodes, D columns, E undirected edges (2 E entries).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.profiler import record_function

from hmlet.errors import ConfigError
from hmlet.graph.kernels import cpu, dry, edge_hash, stream

log = logging.getLogger(__name__)
Memory = Literal["device", "host"]


@dataclass(frozen=True, eq=False)
class Operator:
    """Â (+ a diagonal): y_n = scale_n Σ_m scale_m x_m over the neighbours m of n, + loop_n x_n."""

    indptr: Tensor  # N + 1
    neighbours: Tensor  # 2 E
    edges: Tensor  # 2 E: the undirected edge's number
    weights: Tensor  # 2 E: scale_n scale_m; N scales where the graph is streamed, which makes the products on its way
    loop: Tensor | None = None  # N: the diagonal of a normalisation with self-loops
    storage: torch.dtype | None = None  # the type that x is stored in for the product; x's own where None
    segments: Any = None  # kernels.cuda.Segments where Triton runs the product, cuda_stream.Blocks where it streams
    streamed: bool = False  # whether indptr, neighbours and edges lie in the memory of the host of a CUDA device
    key: Tensor | None = None  # of the dropout that made this operator, if one did

    @classmethod
    def build(
        cls,
        indptr: npt.NDArray[np.int64],
        neighbours: npt.NDArray[np.int32],
        edges: npt.NDArray[np.int32],
        scale: npt.NDArray[np.float32],
        device: torch.device | str = "cpu",
        *,
        self_loops: bool = False,
        dtype: torch.dtype = torch.float32,
        storage: torch.dtype | None = None,
        memory: Memory = "device",
    ) -> Operator:
        """The operator of a graph's arrays on a device. `scale` is d^-1/2 (Graph.scale).

        With `memory` "host" a CUDA device reads the graph's entries from the host's memory at each product.
        """
        on_cuda = torch.device(device).type == "cuda"
        loop = torch.from_numpy(scale * scale).to(device, dtype) if self_loops else None
        if on_cuda and memory == "host":
            offsets, scales = torch.from_numpy(indptr), torch.from_numpy(scale).to(device, dtype)
            entries = stream.pinned(neighbours), stream.pinned(edges)
            return cls(offsets, *entries, scales, loop, storage, _blocks(offsets.to(device), scales), streamed=True)
        small = _fits_int32(len(neighbours))
        weights = np.repeat(scale, np.diff(indptr))
        weights *= scale[neighbours]
        offsets = torch.from_numpy(indptr.astype(np.int32) if small else indptr).to(device)
        return cls(
            offsets,
            torch.from_numpy(neighbours if small else neighbours.astype(np.int64)).to(device),
            torch.from_numpy(edges).to(device),
            torch.from_numpy(weights).to(device, dtype),
            loop,
            storage if on_cuda else None,
            _segments(offsets) if on_cuda else None,
        )

    @classmethod
    def dry(
        cls,
        n_nodes: int,
        n_edges: int,
        device: str,
        *,
        self_loops: bool = False,
        storage: torch.dtype | None = None,
        memory: Memory = "device",
    ) -> Operator:
        """What `build` would make for a graph of this size on "cpu" or "cuda", on tensors without memory."""
        entries, on_cuda = 2 * n_edges, device == "cuda"
        streamed = on_cuda and memory == "host"
        index = torch.int32 if _fits_int32(entries) else torch.int64
        with torch.device("meta"):
            return cls(
                torch.empty(n_nodes + 1, dtype=index),
                torch.empty(entries, dtype=index),
                torch.empty(entries, dtype=torch.int32),
                torch.empty(n_nodes if streamed else entries),
                torch.empty(n_nodes) if self_loops else None,
                storage if on_cuda else None,
                dry.Segments.of(n_nodes, entries, on_cuda, streamed),
                streamed,
            )

    @property
    def n_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def _kernels(self) -> Any:
        """The module that works on rows cut into segments: Triton's, its streaming one, or that without memory."""
        if self.weights.is_meta:
            return dry
        from hmlet.graph.kernels import cuda, cuda_stream

        return cuda_stream if self.streamed else cuda

    @property
    def nbytes(self) -> int:
        """The bytes that the operator holds on its device."""
        tensors = [] if self.streamed else [self.indptr, self.neighbours, self.edges]
        tensors += [self.weights, *([] if self.loop is None else [self.loop])]
        tensors += [] if self.segments is None else self.segments.tensors
        return sum(tensor.nbytes for tensor in tensors)

    @record_function("hmlet::edge dropout")
    def drop(self, rate: float, key: Tensor) -> Operator:
        """The operator without a share `rate` of the undirected edges; the others are scaled by 1 / (1 - rate).

        `key` is one int64 on the operator's device (see `draw_key`), and is not read by the host on CUDA.
        """
        assert self.key is None, "edges are dropped from the whole operator, once"
        if rate == 0.0:
            return self
        if self.segments is not None:
            segments, neighbours, weights = self._kernels.thin(
                self.segments, self.neighbours, self.weights, self.edges, rate, key
            )
            return replace(self, segments=segments, neighbours=neighbours, weights=weights, key=key)
        kept = torch.from_numpy(edge_hash.keeps(len(self.edges) // 2, rate, int(key))).to(self.edges.device)
        indptr, neighbours, weights = cpu.compact(
            self.indptr, self.neighbours, self.weights, kept.index_select(0, self.edges)
        )
        return replace(self, indptr=indptr, neighbours=neighbours, weights=weights.div_(1.0 - rate), key=key)

    def __call__(self, x_ND: Tensor) -> Tensor:
        """Â x, differentiable in x."""
        return self.fork(x_ND)[0]

    def fork(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Â x, and x for whatever else uses it: the product's backward adds the gradient that comes that way."""
        forked: tuple[Tensor, Tensor] = _Fork.apply(x_ND, self)  # type: ignore[no-untyped-call]
        return forked

    def product(self, x_ND: Tensor, addend_ND: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Â x (+ addend), without a gradient. x is gathered in the storage type, which is also the result's default."""
        x_ND = x_ND if self.storage is None else x_ND.to(self.storage)
        if self.segments is None:
            y_ND = cpu.product(self.indptr, self.neighbours, self.weights, x_ND).to(dtype or x_ND.dtype)
            y_ND = y_ND if addend_ND is None else y_ND.add_(addend_ND)
        else:
            y_ND = self._kernels.product(self.segments, self.neighbours, self.weights, x_ND, addend_ND, dtype)
        return y_ND if self.loop is None else y_ND.addcmul_(self.loop[:, None].to(y_ND.dtype), x_ND.to(y_ND.dtype))


def fork(product: Callable[[Tensor], Tensor], x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Operator.fork, for whatever takes an operator's place."""
    return product.fork(x_ND) if isinstance(product, Operator) else (product(x_ND), x_ND)


def draw_key(generator: torch.Generator, device: torch.device) -> Tensor:
    """A fresh key for the hash of dropout, drawn on the device: one int64."""
    return torch.randint(2**62, (1,), generator=generator, device=device)


def _fits_int32(entries: int) -> bool:
    """Whether offsets into the entries do; neighbours are then stored so too."""
    return entries < 2**31


def _segments(indptr: Tensor) -> Any:
    """How Triton cuts the rows, or None (with one line in the log) where there is no Triton."""
    try:
        from hmlet.graph.kernels import cuda
    except ImportError:
        log.warning("Triton is not installed: products run on PyTorch's embedding_bag, several times slower")
        return None
    return cuda.Segments.of(indptr)


def _blocks(indptr: Tensor, scale: Tensor) -> Any:
    """How Triton cuts the rows of a graph that is streamed."""
    try:
        from hmlet.graph.kernels import cuda_stream
    except ImportError:
        raise ConfigError(
            "train.graph_memory=host needs Triton, which is not installed", "pip install triton, or leave it at device"
        ) from None
    return cuda_stream.Blocks.of(indptr, scale)


class _Fork(torch.autograd.Function):
    """y = Â x beside x itself. x̄ = Â ȳ + what comes back by x, because Â is symmetric."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, operator: Operator) -> tuple[Tensor, Tensor]:
        ctx.operator, ctx.dtype = operator, x_ND.dtype
        ctx.set_materialize_grads(False)
        return operator.product(x_ND), x_ND.view_as(x_ND)

    @staticmethod
    def backward(ctx: Any, grad_y_ND: Tensor | None, grad_x_ND: Tensor | None) -> tuple[Tensor | None, None]:
        if grad_y_ND is None:
            return grad_x_ND, None
        return ctx.operator.product(grad_y_ND, grad_x_ND, ctx.dtype), None
