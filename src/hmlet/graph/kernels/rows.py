"""Which rows of a gradient may differ from zero: a small batch leaves most of them at zero, and kernels skip those.

The gradient itself stays an ordinary N × D tensor, so whoever does not ask computes the same. Autograd hands a gradient
with a single user on as the object that it is; one that it has added to is another tensor, or a later version.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class _Mark(NamedTuple):
    touched_N: Tensor
    version: int


def mark(grad_ND: Tensor, touched_N: Tensor) -> Tensor:
    """The gradient, with a note that its rows are zero where `touched_N` is."""
    grad_ND._hmlet_rows = _Mark(touched_N, grad_ND._version)  # type: ignore[attr-defined]
    return grad_ND


def touched(grad_ND: Tensor | None) -> Tensor | None:
    """What `mark` noted, unless the gradient was written to since; None: any row may differ from zero."""
    noted: _Mark | None = getattr(grad_ND, "_hmlet_rows", None)
    return noted.touched_N if noted is not None and grad_ND is not None and noted.version == grad_ND._version else None
