"""A graph's entries on their way from the host's memory to the device, block by block.

Two buffers take turns: while the device works on one block, a stream of its own copies the next into the other buffer.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmlet.errors import ConfigError
from hmlet.system.spelling import override

BLOCK = 2**23  # entries, 32 MB of neighbours: a copy long enough for the link's full rate, and little of a device
SHARED = 2**25  # bytes: a larger array has memory pages of its own from the C library


class Buffers:
    """The memory on a device that entries of the host pass through: two blocks as they come, one as it is multiplied.

    The first copy of a product waits for the work before it, and the product for the copy; between those two, copies
    and work go on side by side.
    """

    def __init__(self, n_entries: int, n_segments: int, device: torch.device) -> None:
        size = min(n_entries, BLOCK)
        self.incoming = torch.empty(2, 2, size, dtype=torch.int32, device=device)  # neighbours and edge numbers, twice
        self.neighbours = torch.empty(size, dtype=torch.int32, device=device)
        self.weights = torch.empty(size, device=device)
        self.end = torch.empty(n_segments, dtype=torch.int32, device=device)  # of what is left of each segment
        self.copies: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.incoming, self.neighbours, self.weights, self.end]

    def blocks(self, arrays: Sequence[Tensor], parts: Sequence[slice]) -> Iterator[list[Tensor]]:
        """Each part of the arrays in turn, on the device; it stays there until the next is asked for."""
        if not parts:
            return
        coming = self._fetch(0, arrays, parts[0])
        for number in range(1, len(parts) + 1):
            here = coming
            if self.copies is not None:
                torch.cuda.current_stream(self.copies.device).wait_stream(self.copies)
            if number < len(parts):
                coming = self._fetch(number % 2, arrays, parts[number])
            yield here

    def _fetch(self, which: int, arrays: Sequence[Tensor], part: slice) -> list[Tensor]:
        """One of the buffers, on its way to hold a part of the arrays."""
        buffers = [self.incoming[which, row, : part.stop - part.start] for row in range(len(arrays))]
        if self.copies is not None:  # what was asked of the device so far is the last work on this buffer
            self.copies.wait_stream(torch.cuda.current_stream(self.copies.device))
        with torch.cuda.stream(self.copies):
            for buffer, array in zip(buffers, arrays, strict=True):
                buffer.copy_(array[part], non_blocking=True)
        return buffers


def pinned(array: npt.NDArray[np.int32]) -> Tensor:
    """The array as a tensor that CUDA can copy from while the host and the device work on.

    A large array is locked where it lies, until it is gone: PyTorch's pin_memory would copy it, and take up to twice
    its size. A small one may share pages with others, and is copied.
    """
    tensor = torch.from_numpy(array)
    if tensor.nbytes <= SHARED:
        return tensor.pin_memory()
    if not tensor.is_pinned():
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        status = int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        if status != 0:
            raise ConfigError(
                f"CUDA cannot pin {tensor.nbytes:,} bytes of the host's memory for the graph (its error {status})",
                f"allow this process more locked memory (ulimit -l), or use {override('train.graph_memory=device')}",
            )
        weakref.finalize(array, runtime.cudaHostUnregister, tensor.data_ptr()).atexit = False
    return tensor
