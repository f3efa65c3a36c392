"""Which implementation of the operator a device gets."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import torch

from hmlet.graph.kernels.launching import TRITON_INSTALLED
from hmlet.graph.kernels.operator import Operator
from hmlet.graph.kernels.torch_product import TorchOperator

log = logging.getLogger(__name__)


def build_operator(
    indptr: npt.NDArray[np.int64],
    neighbours: npt.NDArray[np.int32],
    edges: npt.NDArray[np.int32],
    scale: npt.NDArray[np.float32],
    device: torch.device | str = "cpu",
    *,
    self_loops: bool = False,
    dtype: torch.dtype = torch.float32,
    storage: torch.dtype | None = None,
) -> Operator:
    """The operator of a graph's arrays on a device. `scale` is d^-1/2 (Graph.scale).

    Triton sums in float32; another `dtype` of the weights is for PyTorch.
    """
    on_cuda = torch.device(device).type == "cuda"
    loop = torch.from_numpy(scale * scale).to(device, dtype) if self_loops else None
    small = _fits_int32(len(neighbours))
    weights = np.repeat(scale, np.diff(indptr))
    weights *= scale[neighbours]
    plain = TorchOperator(
        n_nodes=len(indptr) - 1,
        n_edges=len(edges) // 2,
        indptr=torch.from_numpy(indptr.astype(np.int32) if small else indptr).to(device),
        neighbours=torch.from_numpy(neighbours if small else neighbours.astype(np.int64)).to(device),
        edges=torch.from_numpy(edges).to(device),
        weights=torch.from_numpy(weights).to(device, dtype),
        loop=loop,
        storage=storage if on_cuda else None,
    )
    if not on_cuda or dtype is not torch.float32:
        return plain
    if not TRITON_INSTALLED:
        log.warning("Triton is not installed: products run on PyTorch's embedding_bag, several times slower")
        return plain
    from hmlet.graph.kernels.triton_product import TritonOperator

    return TritonOperator.of(plain)


def plan_operator(
    n_nodes: int,
    n_edges: int,
    device: str,
    *,
    self_loops: bool = False,
    storage: torch.dtype | None = None,
) -> Operator:
    """What `build_operator` would make for a graph of this size on "cpu" or "cuda", on tensors without memory."""
    on_cuda, entries = device == "cuda", 2 * n_edges
    index = torch.int32 if _fits_int32(entries) else torch.int64
    with torch.device("meta"):
        loop = torch.empty(n_nodes) if self_loops else None
        plain = TorchOperator(
            n_nodes=n_nodes,
            n_edges=n_edges,
            indptr=torch.empty(n_nodes + 1, dtype=index),
            neighbours=torch.empty(entries, dtype=index),
            edges=torch.empty(entries, dtype=torch.int32),
            weights=torch.empty(entries),
            loop=loop,
            storage=storage if on_cuda else None,
        )
        if not on_cuda:
            return plain
        from hmlet.graph.kernels.triton_product import TritonOperator

        return TritonOperator.of(plain)


def _fits_int32(entries: int) -> bool:
    """Whether offsets into the entries do; neighbours are then stored so too."""
    return entries < 2**31
