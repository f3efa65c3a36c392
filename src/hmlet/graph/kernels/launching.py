"""Whether Triton works on a tensor, and the launch of its kernels.

A function that launches kernels also runs on tensors without memory (device "meta"): it allocates as always, and
`launch` leaves out the launch. So a memory plan counts what the function itself allocates, with or without a GPU, and
the kernels that a training will launch are known before it begins.

Importing Triton takes a third of a second. Modules named triton_* are therefore imported where they are first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any, TypeVar

from torch import Tensor

TRITON_INSTALLED = find_spec("triton") is not None

Launched = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""What is told of a launch: the kernel, its arguments and its options."""

Value = TypeVar("Value")
_stands_for: ContextVar[str] = ContextVar("stands_for", default="cpu")
_told: ContextVar[Launched | None] = ContextVar("told", default=None)


def standing_for(device: str) -> AbstractContextManager[None]:
    """In here, tensors without memory take the place of tensors on this kind of device, "cpu" or "cuda"."""
    return _holding(_stands_for, device)


def telling(told: Launched) -> AbstractContextManager[None]:
    """In here, launches on tensors without memory are told of."""
    return _holding(_told, told)


@contextmanager
def _holding(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """In here, the variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def device_kind(x: Tensor) -> str:
    """The kind of device that a tensor is on or, without memory, stands for: "cpu" or "cuda"."""
    return _stands_for.get() if x.is_meta else x.device.type


def triton_runs(x: Tensor) -> bool:
    """Whether Triton works on a tensor: on CUDA where it is installed. A plan for CUDA assumes that it is."""
    return _stands_for.get() == "cuda" if x.is_meta else x.is_cuda and TRITON_INSTALLED


def launch(kernel: Any, grid: tuple[int, ...], /, *arguments: Any, **options: Any) -> None:
    """Launch a Triton kernel, unless its tensors have no memory."""
    if not any(isinstance(argument, Tensor) and argument.is_meta for argument in arguments):
        kernel[grid](*arguments, **options)
    elif (told := _told.get()) is not None:
        told(kernel, arguments, options)
