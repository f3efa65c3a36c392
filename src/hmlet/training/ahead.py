"""The kernels of a training, compiled side by side while its data and its model are prepared.

Triton compiles a kernel when it is first launched, one after the other, and waits most of that time for a compiler that
is a process of its own. The memory plan of a recipe runs its step without memory, so it launches
the same kernels with arguments of the same types, and they can be compiled before there is anything to launch them on.
Triton keeps what it compiled on disk; the next process only reads it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from hmlet.config import Recipe
from hmlet.graph import Sizes
from hmlet.graph.kernels import launching
from hmlet.system.threads import possible_threads
from hmlet.training.planning import memory_plan

log = logging.getLogger(__name__)


class Ahead:
    """What compiles the kernels of some recipes; it does nothing where no kernels are needed."""

    def __init__(self, recipes: Sequence[Recipe], sizes: Sizes, device: torch.device) -> None:
        # A deterministic training has kernels of PyTorch's, and its plan changes settings of the whole process.
        compiled = [each for each in recipes if not (each.model.solved or each.train.deterministic)]
        self._thread: threading.Thread | None = None
        if compiled and device.type == "cuda" and launching.TRITON_INSTALLED:
            self._thread = threading.Thread(target=_compile, args=(compiled, sizes, device), daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until all are compiled."""
        if self._thread is not None:
            self._thread.join()


def _compile(recipes: Sequence[Recipe], sizes: Sizes, device: torch.device) -> None:
    import triton

    torch.cuda.set_device(device)
    try:
        with (
            ThreadPoolExecutor(possible_threads()) as pool,
            triton.AsyncCompileMode(pool, ignore_errors=True),
            launching.telling(_begin),
        ):
            for recipe in recipes:
                memory_plan(recipe, sizes, "cuda")
    except Exception:  # the training itself will say what is wrong
        log.debug("kernels are compiled when they are launched", exc_info=True)


def _begin(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Have the pool compile a kernel, unless it was begun for the same types."""
    kernel.warmup(*arguments, grid=(1,), **options)
