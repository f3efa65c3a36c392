"""The hot loops on tensors without memory (device "meta"): they allocate what the real ones do, and compute nothing.

A step that runs on these says how many bytes it takes, for any size of graph, before there is a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hmlet.graph.kernels.cpu import TILE
from hmlet.graph.kernels.stream import Buffers

SEGMENT = 512  # entries that one program sums at the most: hub rows are cut, so none of them is the last to finish


@dataclass(frozen=True, eq=False)
class Segments:
    """Stands for cuda.Segments, or for cuda_stream.Blocks; on CPU, where rows are not cut, for nothing."""

    tensors: list[Tensor]
    on_cuda: bool
    streamed: bool

    @classmethod
    def of(cls, n_nodes: int, n_entries: int, on_cuda: bool, streamed: bool) -> Segments:
        """As many as a graph of this size has at the most: one a row, and one more for every full segment."""
        count = n_nodes + n_entries // SEGMENT if on_cuda else 0
        offset = torch.int32 if streamed else torch.int64  # in a block, or in the graph
        types = [offset, offset, torch.int64, *([torch.float32] if streamed else [])]  # its row's scale
        tensors = [torch.empty(count, dtype=dtype, device="meta") for dtype in types]
        tensors += Buffers(n_entries, count, torch.device("meta")).tensors if streamed else []
        return cls(tensors, on_cuda, streamed)


_stands_for: ContextVar[str] = ContextVar("stands_for", default="")


@contextmanager
def standing_for(device: str) -> Iterator[None]:
    """Tensors without memory stand for those of a device: CUDA's kernels are fused and keep less."""
    token = _stands_for.set(device)
    try:
        yield
    finally:
        _stands_for.reset(token)


def on_cuda() -> bool:
    return _stands_for.get() == "cuda"


def product(
    segments: Segments,
    neighbours: Tensor,
    weights: Tensor,
    x_ND: Tensor,
    addend_ND: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Nothing, N × D."""
    y_ND = torch.empty_like(x_ND, dtype=dtype)
    n_nodes, columns = x_ND.shape
    if segments.on_cuda:
        _partial = x_ND.new_empty(len(neighbours) // SEGMENT, columns, dtype=torch.float32)
    elif columns > TILE:
        _tile, _bag = x_ND.new_empty(n_nodes, TILE), x_ND.new_empty(n_nodes, TILE)
    return y_ND


def thin(
    segments: Segments, neighbours: Tensor, weights: Tensor, edges: Tensor, rate: float, key: Tensor
) -> tuple[Segments, Tensor, Tensor]:
    """A thinned operator's arrays: of the whole's size on CUDA, compacted on CPU, none where it is streamed."""
    if segments.streamed:
        return segments, neighbours, weights
    if segments.on_cuda:
        start, end, target = segments.tensors
        thinned = replace(segments, tensors=[start, torch.empty_like(end), target])
        return thinned, torch.empty_like(neighbours), torch.empty_like(weights)
    count = round(len(edges) * (1.0 - rate))
    _kept, _before = edges.new_empty(len(edges), dtype=torch.bool), torch.empty_like(edges)
    _where = edges.new_empty(count, dtype=torch.int64)
    return segments, neighbours.new_empty(count), weights.new_empty(count)


def norm_dropout_relu(x_NH: Tensor, *others: Any) -> tuple[Tensor, None]:
    return torch.empty_like(x_NH), None


def norm_dropout_relu_backward(
    x_NH: Tensor, weight_H: Tensor, bias_H: Tensor, saved: None, grad_NH: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x_NH), torch.empty_like(weight_H), torch.empty_like(bias_H)


def dropout_relu(x_MH: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(x_MH)


def activation(x: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(x)


def activation_backward(y: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(y)


def head(x_NH: Tensor, weight_H2: Tensor, bias_2: Tensor) -> Tensor:
    return bias_2.new_empty(len(x_NH), 2)


def head_backward(x_NH: Tensor, weight_H2: Tensor, grad_N2: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_NH), torch.empty_like(weight_H2)


def noisy_choice(logits_N2: Tensor, temperature: Tensor, hard: bool, key: Tensor) -> tuple[Tensor, Tensor]:
    soft_N2 = torch.empty_like(logits_N2)
    return soft_N2, torch.empty_like(logits_N2) if hard else soft_N2


def noisy_choice_backward(soft_N2: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(soft_N2)


def mix(choice_N2: Tensor, linear_ND: Tensor, nonlinear_ND: Tensor) -> Tensor:
    return torch.empty_like(linear_ND)


def mix_backward(
    choice_N2: Tensor, linear_ND: Tensor, nonlinear_ND: Tensor, grad_ND: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(choice_N2), torch.empty_like(linear_ND), torch.empty_like(nonlinear_ND)


def margins(layers_ND: Sequence[Tensor], rows_3B: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    own_ND = layers_ND[0]
    means = len(layers_ND) > 1 and len(rows_3B) > len(own_ND)
    _norms = own_ND.new_empty(len(own_ND) + len(rows_3B) if means else len(rows_3B) // 3)
    return own_ND.new_empty(len(rows_3B) // 3), own_ND.new_empty(()), torch.empty_like(layers_ND[-1]) if means else None


def margins_backward(
    layers_ND: Sequence[Tensor], mean_ND: Tensor | None, rows_3B: Tensor, *others: Any
) -> tuple[Tensor, Tensor | None]:
    own_ND = layers_ND[0]
    _places = rows_3B.new_empty(3, len(own_ND), dtype=torch.int32)  # entries, times and starts
    _entries = rows_3B.new_empty(11 * (len(rows_3B) // 3), dtype=torch.int32)  # 3 B offsets; 4 B neighbours and weights
    return torch.empty_like(own_ND), torch.empty_like(layers_ND[1]) if len(layers_ND) > 1 else None
