"""Triplets on CUDA, in Triton: one kernel, and nothing that grows with the graph beside the items themselves.

Every draw is a hash of the triplet's number and of a key that lies in device memory, so that a captured CUDA graph
draws anew at each replay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hmlet.graph.kernels.edge_hash import FIRST, GOLDEN, SECOND
from hmlet.graph.kernels.language import tl, triton
from hmlet.graph.kernels.launching import launch
from hmlet.graph.kernels.triton_product import mixed, salt

BLOCK = 128  # triplets that a program draws


@triton.jit
def _below(count, number, seed, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    """A uniform integer 0 ≤ x < count, from 53 bits of two hashes."""
    high = mixed((2 * number).to(tl.uint32) ^ seed, first, second)
    low = mixed((2 * number + 1).to(tl.uint32) ^ seed, first, second)
    uniform = (high.to(tl.float64) + (low >> 11).to(tl.float64) * (2.0**-21)) * (2.0**-32)
    return tl.minimum((uniform * count.to(tl.float64)).to(tl.int64), count - 1)


@triton.jit
def _triplets_kernel(  # type: ignore[no-untyped-def]
    eligible_ptr, bounds_ptr, indptr_ptr, item_ptr, key_ptr, out_ptr, n_eligible, n_items, user_halvings, halvings,
    size, by_interaction: tl.constexpr, block: tl.constexpr, golden: tl.constexpr, first: tl.constexpr,
    second: tl.constexpr,
):  # fmt: skip
    triplet = tl.program_id(0) * block + tl.arange(0, block)
    inside = triplet < size
    seed = salt(key_ptr, golden, first, second)
    users = tl.zeros([block], dtype=tl.int64) + n_eligible
    if by_interaction:  # the last of the users whose interactions begin at the drawn one or before it
        total = tl.zeros([block], dtype=tl.int64) + tl.load(bounds_ptr + n_eligible)
        drawn = _below(total, 3 * triplet, seed, first, second)
        at = tl.zeros([block], dtype=tl.int64)
        beyond = users
        for _ in range(user_halvings):
            middle = (at + beyond) // 2
            before = tl.load(bounds_ptr + middle, mask=inside, other=0) <= drawn
            at = tl.where(before, middle, at)
            beyond = tl.where(before, beyond, middle)
        user = tl.load(eligible_ptr + at, mask=inside, other=0)
    else:
        user = tl.load(eligible_ptr + _below(users, 3 * triplet, seed, first, second), mask=inside, other=0)
    start = tl.load(indptr_ptr + user, mask=inside, other=0)
    count = tl.load(indptr_ptr + user + 1, mask=inside, other=1) - start
    if by_interaction:
        place = start + drawn - tl.load(bounds_ptr + at, mask=inside, other=0)
    else:
        place = start + _below(count, 3 * triplet + 1, seed, first, second)
    positive = tl.load(item_ptr + place, mask=inside, other=0).to(tl.int64)
    missing = _below(n_items - count, 3 * triplet + 2, seed, first, second)
    low = tl.zeros([block], dtype=tl.int64)  # how many of the user's items lie below the one that is sought
    high = count
    for _ in range(halvings):
        middle = (low + high) // 2
        open_ = low < high
        item = tl.load(item_ptr + start + middle, mask=inside & open_, other=0).to(tl.int64)
        below = item - middle <= missing
        low = tl.where(open_ & below, middle + 1, low)
        high = tl.where(open_ & (item - middle > missing), middle, high)
    tl.store(out_ptr + triplet, user, mask=inside)
    tl.store(out_ptr + size + triplet, positive, mask=inside)
    tl.store(out_ptr + 2 * size + triplet, missing + low, mask=inside)


def triplets(
    eligible: Tensor,
    bounds: Tensor | None,
    indptr: Tensor,
    items: Tensor,
    n_items: int,
    largest: int,
    size: int,
    key: Tensor,
) -> Tensor:
    """Users, positives and negatives: 3 × size. `largest` is the length of the longest row.

    With `bounds`, where each eligible user's interactions begin among those of all of them, interactions are uniform.
    """
    drawn_3B = torch.empty(3, size, dtype=torch.int64, device=items.device)
    launch(
        _triplets_kernel, (triton.cdiv(size, BLOCK),),
        eligible, bounds, indptr, items, key, drawn_3B, len(eligible), n_items, len(eligible).bit_length(),
        largest.bit_length(), size, by_interaction=bounds is not None, block=BLOCK, golden=GOLDEN, first=FIRST,
        second=SECOND,
    )  # fmt: skip
    return drawn_3B
