"""Kernels compiled ahead of a training: those of its step, each once, and none where there are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton_here import triton_product

from hmlet.config import Recipe, resolve
from hmlet.graph.kernels import launching
from hmlet.training import ahead
from hmlet.training.ahead import Ahead
from hmlet.training.planning import Sizes, memory_plan

CUDA, SIZES = torch.device("cuda", 0), Sizes(300, 200, 5000)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """What was compiled. There is no device here to compile for."""
    done: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(ahead, "_warm_up", lambda *launched: done.append(launched))
    return done


def _recipe(*changes: str, model: str = "hmlet-end") -> Recipe:
    return resolve(model, "gpu", overrides=["model.embedding_size=16", *changes])


def test_every_kernel_of_a_step_is_compiled_once(compiled: list[Any]) -> None:
    recipe = _recipe()
    told: list[Any] = []
    with launching.telling(lambda *launched: told.append(launched)):
        memory_plan(recipe, SIZES, "cuda")
    Ahead([recipe], SIZES, CUDA).wait()
    assert {kernel for kernel, _, _ in compiled} == {kernel for kernel, _, _ in told}
    assert len(compiled) < len(told)
    types = {
        (arguments[0].dtype, arguments[2].dtype, options["has_addend"])
        for kernel, arguments, options in compiled
        if kernel is triton_product._segments_kernel
    }
    assert (torch.bfloat16, torch.bfloat16, True) in types  # a product of the step, backward
    assert len(types) == sum(kernel is triton_product._segments_kernel for kernel, _, _ in compiled)


def test_a_spectral_start_has_kernels_of_its_own(compiled: list[Any]) -> None:
    Ahead([_recipe("model.start=spectral")], SIZES, CUDA).wait()
    in_float32 = [
        arguments
        for kernel, arguments, _ in compiled
        if kernel is triton_product._segments_kernel and arguments[0].dtype == torch.float32
    ]
    assert in_float32


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
    recipe: Recipe, device: torch.device, compiled: list[Any]
) -> None:
    Ahead([recipe], SIZES, device).wait()
    assert compiled == []


def test_what_cannot_be_compiled_is_left_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def warmup(self, *arguments: object, **options: object) -> None:
            raise RuntimeError("no compiler")

    ahead._warm_up(Broken(), (), {})
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    def fails(*arguments: object) -> None:
        raise RuntimeError("no plan")

    monkeypatch.setattr(ahead, "memory_plan", fails)
    Ahead([_recipe()], SIZES, CUDA).wait()
