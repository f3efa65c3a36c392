"""Kernels compiled ahead of a training: those of its step, each once, and none where there are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton_here import triton_product

from hmlet.config import Recipe, resolve
from hmlet.graph import Sizes
from hmlet.graph.kernels import launching
from hmlet.training import ahead
from hmlet.training.ahead import Ahead

CUDA, SIZES = torch.device("cuda", 0), Sizes(300, 200, 5000)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """What was to be compiled. There is no device here to compile for."""
    done: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(ahead, "_begin", lambda *launched: done.append(launched))
    return done


def _recipe(*changes: str, model: str = "hmlet-end") -> Recipe:
    return resolve(model, "gpu", overrides=["model.embedding_size=16", *changes])


def _products(begun: list[Any]) -> set[tuple[torch.dtype, torch.dtype, bool]]:
    """The types that products read and write, and whether they add something."""
    return {
        (arguments[0].dtype, arguments[3].dtype, options["has_addend"])
        for kernel, arguments, options in begun
        if kernel is triton_product._segments_kernel
    }


def test_the_kernels_of_a_step_are_compiled(begun: list[Any]) -> None:
    Ahead([_recipe()], SIZES, CUDA).wait()
    names = {kernel.__name__ for kernel, _, _ in begun}
    assert {"_segments_kernel", "_join_kernel", "_thin_kernel", "_mix_kernel", "_mix_backward_kernel"} <= names
    assert all(
        isinstance(arguments[0], tuple) or arguments[0].is_meta for _, arguments, _ in begun if arguments[0] is not None
    )
    half = torch.bfloat16
    assert {(half, half, False), (half, half, True)} <= _products(begun)  # forward, and backward


def test_recipes_are_compiled_one_after_the_other(begun: list[Any]) -> None:
    Ahead([_recipe("train.edge_dropout=0.0"), _recipe("train.loss=multinomial")], SIZES, CUDA).wait()
    names = [kernel.__name__ for kernel, _, _ in begun]
    assert names.index("_margins_kernel") < names.index("_unit_means_kernel") < names.index("_exponentials_kernel")


def test_a_spectral_start_has_kernels_of_its_own(begun: list[Any]) -> None:
    alone = (torch.float32, torch.float32, False)
    Ahead([_recipe()], SIZES, CUDA).wait()
    assert alone not in _products(begun)
    Ahead([_recipe("model.start=spectral")], SIZES, CUDA).wait()
    assert alone in _products(begun)


@pytest.mark.parametrize(
    ("recipe", "device"),
    [
        (_recipe(), torch.device("cpu")),
        (_recipe("train.deterministic=true"), CUDA),
        (resolve("ease"), CUDA),
    ],
    ids=["on CPU", "deterministic", "a closed form"],
)
def test_nothing_is_compiled_where_no_kernel_is_launched(
    recipe: Recipe, device: torch.device, begun: list[Any]
) -> None:
    Ahead([recipe], SIZES, device).wait()
    assert begun == []


def test_what_cannot_be_compiled_is_left_to_the_launch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*launched: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(ahead, "_begin", fails)
    with caplog.at_level("DEBUG"):
        Ahead([_recipe()], SIZES, CUDA).wait()
    assert "compiled when they are launched" in caplog.text


def test_a_launch_without_memory_is_told_of_only_while_somebody_listens() -> None:
    told: list[Any] = []
    with launching.telling(lambda *launched: told.append(launched)):
        launching.launch("kernel", (1,), torch.empty(2, device="meta"), block=8)
    launching.launch("kernel", (1,), torch.empty(2, device="meta"), block=8)
    ((kernel, (argument,), options),) = told
    assert (kernel, argument.shape, options) == ("kernel", (2,), {"block": 8})
