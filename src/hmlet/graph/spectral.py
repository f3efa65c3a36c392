"""The leading singular vectors of the normalised interactions R̃ = D_u^-½ R D_i^-½: where a training may begin.

Â is [[0, R̃], [R̃ᵀ, 0]], so a product with Â turns an items' block [0; Q] into the users' [R̃ Q; 0], and that one back.
Random columns are multiplied and made orthonormal in turn (randomised subspace iteration; Halko, Martinsson and Tropp,
2011). Everything but small k × k problems is a product or acts on rows alone, so ranks need no more than the exchanges
that dense layers need, and none of them holds a whole block.

Legend: N nodes, U users, D embedding size, k columns of a block, C own columns of it, M own rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hmlet.system.ranks import ALONE, Ranks

ROUNDS = 8  # of a product with R̃ᵀ and one with R̃: the leading directions have settled, later ones nearly
EXTRA = 16  # columns beyond those asked for, because the last ones of a block settle late
AT_ONCE = 2**20  # rows that are held in float64
POWER = 0.5  # of the singular values that scales the vectors
NEGLIGIBLE = 1e-4  # of the largest singular value: a smaller one is rounding


def spectral_embedding(
    product: Callable[[Tensor], Tensor],
    n_users: int,
    random_ND: Tensor,
    generator: torch.Generator,
    ranks: Ranks = ALONE,
) -> Tensor:
    """U Σ^½ above V Σ^½, scaled to the deviation of `random_ND`, from which columns without a vector are taken: N × C.

    Both are the rank's own columns of e⁰. `product` is Â without self-loops. The generator is the CPU's and the same on
    every rank.
    """
    n_nodes, columns = random_ND.shape
    users_Mk, items_Mk, sigma_D, turn_kD = _subspace(
        product, n_users, n_nodes, columns * ranks.size, random_ND.device, generator, ranks
    )
    known_D = sigma_D > NEGLIGIBLE * sigma_D[0]
    safe_D = torch.where(known_D, sigma_D, 1.0)
    # Columns are orthogonal with squared norm 2 σ^(2 POWER), one half from each side.
    squares = 2.0 * (safe_D ** (2 * POWER) * known_D).sum()
    random_MD = ranks.rows(random_ND)
    scale = _deviation(random_MD, ranks, n_nodes) * (n_nodes * known_D.sum() / squares.clamp_min(1e-30)).sqrt()
    left_kD, right_kD = (turn_kD * safe_D**power * scale for power in (POWER, POWER - 1.0))
    found_MD = users_Mk @ left_kD.to(users_Mk.dtype)
    found_MD.addmm_(items_Mk, right_kD.to(items_Mk.dtype))
    return ranks.columns(torch.where(known_D, found_MD, random_MD), n_nodes).contiguous()


def right_singular_vectors(
    product: Callable[[Tensor], Tensor],
    n_users: int,
    n_nodes: int,
    size: int,
    device: torch.device,
    generator: torch.Generator,
) -> Tensor:
    """The leading right singular vectors of R̃, at most `size` and no more than its rank: I × D."""
    _, items_Nk, sigma_D, turn_kD = _subspace(product, n_users, n_nodes, size, device, generator, ALONE)
    known_D = sigma_D > NEGLIGIBLE * sigma_D[0]
    return items_Nk[n_users:] @ (turn_kD / sigma_D)[:, known_D].to(items_Nk.dtype)


def _subspace(
    product: Callable[[Tensor], Tensor],
    n_users: int,
    n_nodes: int,
    size: int,
    device: torch.device,
    generator: torch.Generator,
    ranks: Ranks,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P and R̃ᵀP of the users' leading subspace, the rank's own rows; the singular values and the turn W to vectors.

    P has orthonormal columns and R̃ᵀP = V Σ Wᵀ, so the left vectors are P W, and the right ones R̃ᵀP W Σ^-1.
    """
    block = -(-(size + EXTRA) // ranks.size) * ranks.size
    drawn_Nk = torch.empty(n_nodes, block, device="meta" if device.type == "meta" else "cpu")
    if not drawn_Nk.is_meta:  # a plan draws nothing
        drawn_Nk.normal_(generator=generator)
    items_NC = ranks.own_columns(drawn_Nk).to(device)
    items_NC[:n_users] = 0.0
    for _ in range(ROUNDS):
        users_NC = _orthonormal(product(items_NC), ranks)
        items_NC = _orthonormal(product(users_NC), ranks)
    users_NC = _orthonormal(product(items_NC), ranks)
    users_Mk, items_Mk = ranks.rows(users_NC), ranks.rows(product(users_NC))
    values_k, turn_kk = (each.flip(-1) for each in _spectrum(items_Mk, ranks))
    return users_Mk, items_Mk, values_k[:size].clamp_min(0.0).sqrt(), turn_kk[:, :size]


def _orthonormal(x_NC: Tensor, ranks: Ranks) -> Tensor:
    """Orthonormal columns that span what x's do; where x has dependent columns, some are 0."""
    x_Mk = ranks.rows(x_NC)
    values_k, vectors_kk = _spectrum(x_Mk, ranks)
    kept_k = values_k > NEGLIGIBLE**2 * values_k[-1]
    weights_kk = vectors_kk * torch.where(kept_k, torch.where(kept_k, values_k, 1.0).rsqrt(), 0.0)
    return ranks.columns(x_Mk @ weights_kk.to(x_Mk.dtype), len(x_NC))


def _spectrum(x_Mk: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues and eigenvectors of xᵀx over all ranks' rows, summed in float64, some rows at a time."""
    gram_kk = torch.zeros(x_Mk.shape[1], x_Mk.shape[1], dtype=torch.float64, device=x_Mk.device)
    for start in range(0, len(x_Mk), AT_ONCE):
        exact = x_Mk[start : start + AT_ONCE].double()
        gram_kk += exact.T @ exact
    (gram_kk,) = ranks.total(gram_kk)
    values_k, vectors_kk = torch.linalg.eigh(gram_kk)
    return values_k, vectors_kk


def _deviation(x_MD: Tensor, ranks: Ranks, n_nodes: int) -> Tensor:
    """The standard deviation over all ranks' rows of numbers whose mean is about 0."""
    (squares,) = ranks.total(torch.linalg.vector_norm(x_MD, dtype=torch.float64).square())
    return (squares / (n_nodes * x_MD.shape[1])).sqrt()
