"""log Σ exp of a batch's scores over many items, with its gradients: the batch × items matrix never exists whole.

    L = Σ_b w_b log Z_b,    Z_b = Σ_j c_j exp(u_b · v_j)

The weights are known before the sum, so a block of rows is turned into gradients as soon as it has been computed. With
E_bj = exp(u_b · v_j - shift) in the block's memory,

    ∂L/∂u_b = w_b / Z_b Σ_j E_bj c_j v_j,    ∂L/∂v_j = c_j Σ_b w_b / Z_b E_bj u_b
    ∂L/∂w_b = log Z_b,                       ∂L/∂c_j = Σ_b w_b / Z_b E_bj

which are three matrix products a block, and the backward pass only scales what they left. How often an item counts,
c_j, multiplies the items before the blocks and their gradient after them, and costs a block nothing but its sum. On
CUDA a block may be bfloat16: its products run on tensor cores and are summed in float32, as is everything over rows.
The host never waits for a number of the device, so a CUDA graph can hold all of it.

Legend: B rows, M of them in a block, J items, F factor size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmlet.graph.kernels import launching
from hmlet.graph.kernels.parts import part

# Of a block's scores: near a CPU's cache, and small beside a GPU's memory.
BLOCK_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}
ALIGNED = {"cpu": 1, "cuda": 64}  # items are padded to a multiple of this, as tensor cores want rows to begin
GROUPS = 32  # for each of the k best scores: so many groups of items, of whose best ones the k-th is taken


class Own(NamedTuple):
    """What completes Z_b where the items are a sample: the row's own item, which then counts once and no more."""

    score_B: Tensor
    item_B: Tensor
    items_J: Tensor  # which items the sampled ones are


def log_sums(
    users_BF: Tensor,
    items_JF: Tensor,
    weights_B: Tensor,
    *,
    dtype: torch.dtype,
    bounded: bool = False,
    own: Own | None = None,
    counts_J: Tensor | None = None,
) -> Tensor:
    """Σ_b w_b log Z_b, differentiable in users, items, weights, the own scores and the counts.

    Each item counts once, or c_j times. With `own`, Z_b = exp(own_b) + Σ_j c_j exp(u_b · v_j) over the items j but the
    row's own.
    `dtype` is that of a block. `bounded` promises that no two scores of a row are more than 80 apart, as with cosines
    over a temperature of at least 0.025: the largest score need not be looked for then.
    """
    score_B = torch.full_like(weights_B, -torch.inf) if own is None else own.score_B
    with part("readout and loss"):
        total: Tensor = _LogSums.apply(users_BF, items_JF, weights_B, score_B, counts_J, own, dtype, bounded)  # type: ignore[no-untyped-call]
    return total


class _LogSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        users_BF: Tensor,
        items_JF: Tensor,
        weights_B: Tensor,
        score_B: Tensor,
        counts_J: Tensor | None,
        own: Own | None,
        dtype: torch.dtype,
        bounded: bool,
    ) -> Tensor:
        blocks = _Blocks(users_BF, items_JF, dtype)
        counted_JF, padded_J = blocks.counted(counts_J)
        bound = blocks.bound() if bounded and len(users_BF) else None  # a rank may have no row of a batch
        grad_users_BF, grad_items_JF = torch.empty_like(users_BF), users_BF.new_zeros(blocks.items_JF.shape)
        log_B, grad_own_B = torch.empty_like(weights_B), torch.empty_like(score_B)
        grad_counts_J = None if counts_J is None or not ctx.needs_input_grad[4] else torch.zeros_like(counts_J)
        for rows, scores_MJ in blocks.each(bound):
            if own is not None:
                sampled = scores_MJ[:, : len(items_JF)]
                sampled.masked_fill_(own.items_J == own.item_B[rows, None], -torch.inf)
            shift_M = _shift(scores_MJ, score_B[rows]) if bound is None else bound.expand(len(scores_MJ))
            powers_MJ, sum_M = _exponentials(scores_MJ, padded_J, weights_B.dtype)
            own_M = (score_B[rows] - shift_M).exp()
            sum_M = sum_M + own_M
            log_B[rows] = sum_M.log() + shift_M
            grad_own_B[rows] = weights_B[rows] * own_M / sum_M
            share_M1 = (weights_B[rows] / sum_M)[:, None]
            torch.mul(powers_MJ @ counted_JF, share_M1, out=grad_users_BF[rows])
            grad_items_JF += powers_MJ.T @ (users_BF[rows] * share_M1).to(dtype)
            if grad_counts_J is not None:
                grad_counts_J += (powers_MJ.T @ share_M1.to(dtype))[: len(items_JF), 0]
        grad_items_JF = grad_items_JF[: len(items_JF)]
        if counts_J is not None:
            grad_items_JF *= counts_J[:, None]
        ctx.save_for_backward(grad_users_BF, grad_items_JF, log_B, grad_own_B, grad_counts_J)
        return torch.dot(weights_B, log_B)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with part("readout and loss"):
            grads = [None if saved is None else saved * grad for saved in ctx.saved_tensors]
        return *grads, None, None, None


def _shift(scores_MJ: Tensor, own_M: Tensor) -> Tensor:
    """Subtract each row's largest score, its own included; returns what was subtracted."""
    largest_M = torch.maximum(scores_MJ.amax(dim=1), own_M.to(scores_MJ.dtype))
    scores_MJ.sub_(largest_M[:, None])
    return largest_M.to(own_M.dtype)


def _exponentials(scores_MJ: Tensor, counts_J: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """exp of the scores, in their memory, and the sum of each row, in which each item counts c_j times."""
    if launching.triton_runs(scores_MJ) and dtype == torch.float32:
        from hmlet.graph.kernels.triton_readout import exponentials

        return scores_MJ, exponentials(scores_MJ, counts_J)
    powers_MJ = scores_MJ.exp_()
    if counts_J is None:
        return powers_MJ, powers_MJ.sum(dim=1, dtype=dtype)
    if powers_MJ.dtype == torch.bfloat16:  # a float32 copy of the block would take longer than its products
        return powers_MJ, (powers_MJ * counts_J.to(powers_MJ.dtype)).sum(dim=1, dtype=dtype)
    return powers_MJ, powers_MJ.to(dtype) @ counts_J.to(dtype)


class _Blocks:
    """Blocks of the scores u_b · v_j, each in the memory of the one before it."""

    def __init__(self, users_BF: Tensor, items_JF: Tensor, dtype: torch.dtype) -> None:
        kind, count = launching.device_kind(items_JF), len(items_JF)
        self.users_BF, self.dtype = users_BF, dtype
        self.padding = -count % ALIGNED[kind]
        if self.padding:
            self.items_JF = items_JF.new_zeros(count + self.padding, items_JF.shape[1], dtype=dtype)
            self.items_JF[:count] = items_JF
        else:
            self.items_JF = items_JF.to(dtype)
        fitting = max(1, BLOCK_BYTES[kind] // max(1, len(self.items_JF) * self.items_JF.element_size()))
        blocks = max(1, -(-len(users_BF) // fitting))
        self.size = max(1, -(-len(users_BF) // blocks))  # about the same of each

    def counted(self, counts_J: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The items, each as often as it counts, and how often; padded ones do not."""
        if counts_J is None:
            return self.items_JF, None
        padded_J = counts_J.new_zeros(len(self.items_JF))
        padded_J[: len(counts_J)] = counts_J
        return (self.items_JF * padded_J[:, None]).to(self.dtype), padded_J

    def bound(self) -> Tensor:
        """What no score exceeds, after Cauchy and Schwarz."""
        users, items = (torch.linalg.vector_norm(x, dim=1).amax() for x in (self.users_BF, self.items_JF))
        bound: Tensor = users * items
        return bound.to(self.dtype).to(self.users_BF.dtype)  # a number that a block can subtract without rounding

    def each(self, minus: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Which rows they are, and their scores less a number that all of them share; of padded items, -∞: M × J."""
        offset_J = self.items_JF.new_zeros(len(self.items_JF))
        if minus is not None:
            offset_J -= minus.to(self.dtype)
        if self.padding:
            offset_J[-self.padding :] = -torch.inf
        room_MJ = self.items_JF.new_empty(self.size, len(self.items_JF))
        for start in range(0, len(self.users_BF), self.size):
            rows = slice(start, min(start + self.size, len(self.users_BF)))
            own_MF = self.users_BF[rows].to(self.dtype)
            yield rows, torch.addmm(offset_J, own_MF, self.items_JF.T, out=room_MJ[: len(own_MF)])
            if room_MJ.is_meta:  # a plan needs to see only one: all have the same memory
                return


@torch.no_grad()
def kth_best(users_BF: Tensor, items_JF: Tensor, k: int, dtype: torch.dtype, offset_J: Tensor | None = None) -> Tensor:
    """About the k-th best score of each row, u_b · v_j and the item's offset: B.

    Items are dealt into GROUPS · k groups, and the k-th best of the groups' best scores is taken. It is the k-th best
    score itself where the k best are in groups of their own, and else one of the next; with few items it always is.
    """
    blocks, k = _Blocks(users_BF, items_JF, dtype), min(k, len(items_JF))
    groups = GROUPS * k
    best_B = users_BF.new_empty(len(users_BF))
    with part("readout and loss"):
        for rows, scores_MJ in blocks.each():
            if offset_J is not None:
                scores_MJ[:, : len(items_JF)] += offset_J.to(dtype)
            whole = scores_MJ.shape[1] // groups * groups
            if whole:
                best_MG = scores_MJ[:, :whole].view(len(scores_MJ), -1, groups).amax(dim=1)
                left_ML = scores_MJ[:, whole:]
                torch.maximum(best_MG[:, : left_ML.shape[1]], left_ML, out=best_MG[:, : left_ML.shape[1]])
                scores_MJ = best_MG
            best_B[rows] = torch.topk(scores_MJ, k, dim=1).values[:, -1].to(best_B.dtype)
    return best_B
