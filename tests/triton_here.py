"""Triton's kernels wherever the tests run: compiled for a GPU where there is one, else interpreted on CPU tensors.

Import this before anything that imports Triton: its kernels decide when they are defined.
"""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from hmlet.graph.kernels import triton_gate, triton_mlp, triton_product, triton_readout  # noqa: E402

__all__ = ["DEVICE", "triton_gate", "triton_mlp", "triton_product", "triton_readout"]
