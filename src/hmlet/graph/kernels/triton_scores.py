"""The scores of pairs of nodes by Triton, on CUDA."""

from __future__ import annotations

from torch import Tensor

from hmlet.graph.kernels.language import tl, triton
from hmlet.graph.kernels.launching import launch

PAIRS = 8  # of one program


@triton.jit
def _scores_kernel(  # type: ignore[no-untyped-def]
    x_ptr, first_ptr, second_ptr, score_ptr, n_pairs, columns, pairs: tl.constexpr, block_columns: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0) * pairs + tl.arange(0, pairs)
    real = pair < n_pairs
    first = tl.load(first_ptr + pair, mask=real, other=0).to(tl.int64)
    second = tl.load(second_ptr + pair, mask=real, other=0).to(tl.int64)
    total = tl.zeros([pairs], dtype=tl.float32)
    for start in range(0, columns, block_columns):
        column = start + tl.arange(0, block_columns)
        inside = real[:, None] & (column < columns)[None, :]
        one = tl.load(x_ptr + first[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        other = tl.load(x_ptr + second[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(one * other, axis=1)
    tl.store(score_ptr + pair, total, mask=real)


def fill_scores(score_E: Tensor, x_NF: Tensor, first_E: Tensor, second_E: Tensor) -> None:
    """Write x[first] · x[second] of every pair; sums are float32."""
    columns = x_NF.shape[1]
    block = min(triton.next_power_of_2(columns), 128)
    grid = (triton.cdiv(len(first_E), PAIRS),)
    launch(
        _scores_kernel, grid, x_NF, first_E, second_E, score_E, len(first_E), columns, pairs=PAIRS, block_columns=block
    )
