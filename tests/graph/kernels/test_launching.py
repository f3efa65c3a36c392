"""Functions that launch kernels, on tensors without memory: they allocate as always and launch nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from bare import run_bare
from torch import Tensor
from triton_here import triton_product

from hmlet.config import resolve
from hmlet.graph import Sizes
from hmlet.graph.kernels import Activation, build_operator, launching, plan_operator, standing_for
from hmlet.graph.kernels.torch_product import TorchOperator
from hmlet.training.planning import memory_plan

PLAN = """\
import json
from importlib.util import find_spec
from hmlet.config import resolve
from hmlet.graph import Sizes
from hmlet.training.planning import memory_plan
assert find_spec("triton") is None
print(json.dumps(memory_plan(resolve("hmlet-end"), Sizes(300, 200, 5000), "cuda").as_json()))
"""


class Kernel:
    """Counts its launches."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Kernel:
        self.grids.append(grid)
        return self

    def __call__(self, *arguments: object, **options: object) -> None:
        self.last = arguments, options


def test_a_launch_is_left_out_where_tensors_have_no_memory() -> None:
    kernel, here, nowhere = Kernel(), torch.zeros(2), torch.zeros(2, device="meta")
    launching.launch(kernel, (3, 1), here, None, 5, block=8)
    assert (kernel.grids, kernel.last) == ([(3, 1)], ((here, None, 5), {"block": 8}))
    launching.launch(kernel, (3, 1), None, (nowhere,), nowhere, block=8)
    assert kernel.grids == [(3, 1)]


@pytest.mark.parametrize(("device", "runs"), [("cpu", False), ("cuda", True)])
def test_a_tensor_without_memory_has_the_kernels_of_what_it_stands_for(device: str, runs: bool) -> None:
    with standing_for(device):
        assert launching.triton_runs(torch.empty(1, device="meta")) is runs
        assert not launching.triton_runs(torch.empty(1))
    assert not launching.triton_runs(torch.empty(1, device="meta"))


def test_a_fork_without_memory_has_both_outputs_and_a_gradient() -> None:
    x: Tensor = torch.empty(7, 3, device="meta", requires_grad=True)
    with standing_for("cuda"):
        y, same = Activation("elu").fork(x)
        (y.sum() + same.sum()).backward()
    assert y.grad_fn is not None
    assert "ForkActivation" in y.grad_fn.name()
    assert x.grad is not None
    assert x.grad.shape == (7, 3)


def test_each_device_gets_its_implementation() -> None:
    assert type(plan_operator(10, 20, "cpu")) is TorchOperator
    assert type(plan_operator(10, 20, "cuda")) is triton_product.TritonOperator


def test_a_planned_operator_keeps_what_a_real_one_keeps() -> None:
    """Edges are kept by their share; storage and the size of the graph stay."""
    indptr, neighbours, edges = [0, 2, 3, 5, 6], [2, 3, 2, 0, 1, 0], [0, 1, 2, 0, 2, 1]
    arrays = [torch.tensor(part, dtype=torch.int32).numpy() for part in (neighbours, edges)]
    real = build_operator(torch.tensor(indptr).numpy(), *arrays, torch.ones(4).numpy())
    assert (real.n_nodes, real.n_edges, real.storage) == (4, 3, None)
    planned = plan_operator(4, 3, "cuda", storage=torch.bfloat16)
    key = torch.empty(1, dtype=torch.int64, device="meta")
    dropped = planned.drop(0.5, key)
    assert (dropped.n_nodes, dropped.n_edges, dropped.storage) == (4, 3, torch.bfloat16)
    x_ND = torch.empty(4, 8, device="meta")
    assert dropped.product(x_ND).dtype == torch.bfloat16
    assert dropped.product(x_ND, x_ND, torch.float32).dtype == torch.float32


def test_cuda_is_planned_the_same_without_triton(tmp_path: Path) -> None:
    done = run_bare(tmp_path, "-c", PLAN)
    assert done.stderr == ""
    assert json.loads(done.stdout) == memory_plan(resolve("hmlet-end"), Sizes(300, 200, 5000), "cuda").as_json()
