"""Triton's language for the modules that define kernels: `triton` and `tl`.

Where Triton is not installed, stand-ins let these modules be imported, so that a plan can run their functions on
tensors without memory. The kernels themselves are then never called.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from hmlet.graph.kernels.launching import TRITON_INSTALLED

triton: Any
tl: Any
if TRITON_INSTALLED:
    triton, tl = import_module("triton"), import_module("triton.language")
else:
    triton = SimpleNamespace(
        jit=lambda kernel: kernel,
        cdiv=lambda a, b: -(-a // b),
        next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
    )
    tl = None
