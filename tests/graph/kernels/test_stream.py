"""A graph in the host's memory: the product of the device's graph bit for bit, whatever the blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import oracles
import planted
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton_here import DEVICE, triton_product

from hmlet.graph import Graph
from hmlet.graph.kernels import Operator, build_operator, plan_operator, stream
from hmlet.graph.kernels.torch_product import TorchOperator
from hmlet.graph.kernels.triton_product import Segments, TritonOperator
from hmlet.graph.kernels.triton_streamed import Blocks, StreamedOperator

N_USERS, N_ITEMS, N_NODES = 9, 22, 31
# A user of three segments; users and items without any edge, at both ends and between.
PAIRS = sorted({*planted.random_pairs(3, 8, 20, 0.2), *((4, item) for item in range(20))})
PAIRS = [pair for pair in PAIRS if pair[0] not in (0, 6)]
GRAPH = planted.graph(PAIRS, N_USERS, N_ITEMS)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Segments of 8 entries, and blocks of at most 24."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_product, "SEGMENT", 8)
        patch.setattr(stream, "BLOCK", 24)
        yield


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def both(graph: Graph, self_loops: bool = False, storage: torch.dtype | None = None) -> tuple[Operator, Operator]:
    """One graph on the device and in the host's memory, by Triton; interpreted, the device is the CPU as well."""
    arrays = graph.indptr, graph.neighbours, graph.edges, graph.scale(self_loops)
    if DEVICE == "cuda":
        return tuple(  # type: ignore[return-value]
            build_operator(*arrays, DEVICE, self_loops=self_loops, storage=storage, memory=memory)
            for memory in ("device", "host")
        )
    plain = build_operator(*arrays, self_loops=self_loops)
    assert isinstance(plain, TorchOperator)
    resident, scales = TritonOperator.of(replace(plain, storage=storage)), torch.from_numpy(arrays[3])
    streamed = StreamedOperator(
        n_nodes=graph.n_nodes, n_edges=graph.n_edges, loop=plain.loop, storage=storage, neighbours=plain.neighbours,
        edges=plain.edges, scale=scales, blocks=Blocks.of(plain.indptr, scales),
    )  # fmt: skip
    return resident, streamed


@pytest.mark.parametrize(  # every pair of two settings once
    ("self_loops", "rate", "storage"),
    [(False, 0.0, None), (False, 0.4, torch.bfloat16), (True, 0.0, torch.bfloat16), (True, 0.4, None)],
)
def test_the_product_is_that_of_the_device(self_loops: bool, rate: float, storage: torch.dtype | None) -> None:
    x_ND, addend_ND = normal(N_NODES, 5), normal(N_NODES, 5, seed=2)
    key = torch.tensor([2**40 + 3], device=DEVICE)
    resident, streamed = (operator.drop(rate, key) for operator in both(GRAPH, self_loops, storage))
    for arguments in ((x_ND,), (x_ND, addend_ND, torch.float32)):
        assert torch.equal(streamed.product(*arguments), resident.product(*arguments))
    assert isinstance(streamed, StreamedOperator)
    assert len(streamed.blocks.of_entries) > 3


def test_gradients_are_those_of_the_device() -> None:
    found = []
    for operator in both(GRAPH):
        x_ND = normal(N_NODES, 3).requires_grad_()
        dropped = operator.drop(0.3, torch.tensor([5], device=DEVICE))
        y_ND, same_ND = dropped.fork(dropped(x_ND))
        (y_ND * normal(N_NODES, 3, seed=2) + same_ND * normal(N_NODES, 3, seed=3)).sum().backward()
        found.append(x_ND.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_the_matrix_is_the_normalised_adjacency(rate: float) -> None:
    kept = [pair for edge, pair in enumerate(PAIRS) if oracles.keeps(edge, rate, 7)]
    whole_NN = oracles.normalised(oracles.adjacency(PAIRS, N_USERS, N_ITEMS), False)
    expected_NN = whole_NN * oracles.adjacency(kept, N_USERS, N_ITEMS) / (1 - rate)
    _, streamed = both(GRAPH)
    found_NN = streamed.drop(rate, torch.tensor([7], device=DEVICE)).product(torch.eye(N_NODES, device=DEVICE))
    np.testing.assert_allclose(found_NN.double().cpu(), expected_NN, rtol=5e-7)


@settings(max_examples=15)
@given(degrees=st.lists(st.sampled_from([0, 0, 1, 5, 8, 9, 20, 60]), min_size=1, max_size=12))
def test_blocks_hold_every_segment_once(degrees: list[int]) -> None:
    indptr = torch.tensor([0, *np.cumsum(degrees)], device=DEVICE)
    blocks = Blocks.of(indptr, torch.arange(float(len(degrees)), device=DEVICE))
    assert all(part.stop - part.start <= min(stream.BLOCK, sum(degrees)) for part in blocks.of_entries)
    places = list(chain.from_iterable(range(part.start, part.stop) for part in blocks.of_entries))
    assert places == list(range(sum(degrees)))
    whole, found = Segments.of(indptr), []
    for segments, entries in zip(blocks.of_segments, blocks.of_entries, strict=True):
        part = blocks.segments.ordered(torch.arange(segments.start, segments.stop, device=DEVICE))
        lengths = (part.end - part.start).tolist()
        assert lengths == sorted(lengths, reverse=True), "longest first"
        found += zip(
            (part.start + entries.start).tolist(),
            (part.end + entries.start).tolist(),
            part.target.tolist(),
            strict=True,
        )
    assert sorted(found) == sorted(zip(*(tensor.tolist() for tensor in whole.tensors), strict=True))
    rows = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor([max(-(-d // 8), 1) for d in degrees]))
    assert sorted(blocks.scale.tolist()) == rows.tolist()


def test_buffers_take_turns() -> None:
    """A block is there until the next one is asked for, and the next is already under way."""
    array = torch.arange(100, dtype=torch.int32)
    array = array.pin_memory() if DEVICE == "cuda" else array
    buffers = stream.Buffers(100, 1, torch.device(DEVICE))
    parts = [slice(0, 24), slice(24, 25), slice(25, 25), slice(25, 40), slice(40, 64)]
    places = []
    for part, (block,) in zip(parts, buffers.blocks([array], parts), strict=True):
        assert block.tolist() == list(range(part.start, part.stop))
        places.append(block.data_ptr())
    assert places[0] == places[4] != places[1] == places[3]


def test_what_is_planned_is_what_is_held() -> None:
    """Every node has an edge and none has more than a segment, so there are as many segments as planned at most."""
    graph = planted.graph([(user, (user + shift) % 20) for user in range(20) for shift in range(3)], 20, 20)
    real = both(graph, self_loops=True)[1]
    planned = plan_operator(40, 60, "cuda", self_loops=True, memory="host")
    full = 120 // 8  # segments that the plan allows for hubs
    assert planned.nbytes - real.nbytes == full * (4 + 4 + 8 + 4 + 4)
    assert real.nbytes == 40 * (4 + 4) + 40 * (4 + 4 + 8 + 4 + 4) + 24 * 24  # scale, loop; a segment; a block's entry


@pytest.mark.skipif(DEVICE == "cpu", reason="needs CUDA")
def test_a_large_array_is_locked_where_it_lies() -> None:
    array = np.arange(1 << 24, dtype=np.int32)
    tensor = stream.pinned(array)
    assert tensor.is_pinned()
    assert tensor.data_ptr() == array.ctypes.data
    assert stream.pinned(array).data_ptr() == array.ctypes.data
    small = stream.pinned(array[:10].copy())
    assert small.is_pinned()
    assert small.tolist() == list(range(10))
