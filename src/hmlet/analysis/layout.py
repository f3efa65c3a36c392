"""A map of the embeddings: every node's place in the plane, and its cluster.

The places are a t-SNE of some landmarks, started from the principal components; every other node lies among the
landmarks that its factor is most like. Only directions count, as in a cosine. Random numbers come from a fixed seed, so
a run always has the same map.

Legend: N nodes, F factor size, L landmarks, K clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from hmlet.system.progress import Advance, silent

LANDMARKS = 1200
CLUSTERS = 8
PERPLEXITY = 30.0  # of a landmark: about how many neighbours it keeps close
STEPS = 350
EARLY = 100  # steps in which neighbours attract each other more strongly, so that groups form
NEAREST = 6  # landmarks that place another node
FITTED_ON = 8192  # nodes that the clusters are fitted on
BLOCK = 8192  # nodes that are compared with the landmarks at a time


@dataclass(frozen=True, eq=False)
class Layout:
    """Places in the square from -1 to 1 and clusters, the largest cluster being 0."""

    place_N2: npt.NDArray[np.float32]
    cluster_N: npt.NDArray[np.int8]


@torch.no_grad()
def layout(factors_NF: Tensor, advance: Advance = silent) -> Layout:
    """The map of nodes by their factors. `advance(done, total)` hears of the steps done so far."""
    random = torch.Generator().manual_seed(0)
    unit_NF = normalize(factors_NF.float().cpu(), dim=1)
    chosen_L = torch.randperm(len(unit_NF), generator=random)[:LANDMARKS].sort().values
    landmarks_LF = unit_NF[chosen_L]
    place_L2 = _tsne(landmarks_LF, advance)
    blocks = (unit_NF[start : start + BLOCK] for start in range(0, len(unit_NF), BLOCK))
    place_N2 = torch.cat([_among(block_BF, landmarks_LF, place_L2) for block_BF in blocks])
    place_N2[chosen_L] = place_L2
    place_N2 -= (place_N2.amax(dim=0) + place_N2.amin(dim=0)) / 2
    place_N2 /= place_N2.abs().max().clamp_min(1e-12)
    return Layout(place_N2.numpy(), _clusters(unit_NF, random).numpy().astype(np.int8))


def principal_components(x_NF: Tensor) -> Tensor:
    """The coordinates of each row along the two directions of largest variance, zero where there is none: N × 2."""
    centred_NF = x_NF - x_NF.mean(dim=0)
    _, vectors_FF = torch.linalg.eigh((centred_NF.T @ centred_NF).double())
    axes_F2 = vectors_FF[:, -2:].flip(1).float()
    axes_F2 *= torch.sign(axes_F2.gather(0, axes_F2.abs().argmax(dim=0, keepdim=True)))  # an axis has two directions
    found_N2 = centred_NF @ axes_F2
    return torch.nn.functional.pad(found_N2, (0, 2 - found_N2.shape[1]))


def _tsne(x_LF: Tensor, advance: Advance) -> Tensor:
    """van der Maaten and Hinton's t-SNE, by gradient descent with momentum and gains: L × 2."""
    count = len(x_LF)
    p_LL = _affinities(x_LF)
    place_L2 = principal_components(x_LF)
    place_L2 *= 1e-2 / place_L2.std().clamp_min(1e-12)
    moved_L2, gain_L2 = torch.zeros_like(place_L2), torch.ones_like(place_L2)
    for step in range(STEPS):
        near_LL = 1 / (1 + torch.cdist(place_L2, place_L2).square_())
        near_LL.fill_diagonal_(0)
        pull_LL = (p_LL * (12.0 if step < EARLY else 1.0) - near_LL / near_LL.sum().clamp_min(1e-12)) * near_LL
        slope_L2 = 4 * (pull_LL.sum(dim=1, keepdim=True) * place_L2 - pull_LL @ place_L2)
        gain_L2 = torch.where(slope_L2 * moved_L2 < 0, gain_L2 + 0.2, gain_L2 * 0.8).clamp_min_(0.01)
        moved_L2 = (0.5 if step < EARLY else 0.8) * moved_L2 - max(count / 12, 50) * gain_L2 * slope_L2
        place_L2 = place_L2 + moved_L2
        place_L2 -= place_L2.mean(dim=0)
        advance(step + 1, STEPS)
    return place_L2


def _affinities(x_LF: Tensor) -> Tensor:
    """How much each pair attracts each other: Gaussian, as wide around each row as the perplexity asks for: L × L."""
    far_LL = torch.cdist(x_LF, x_LF).square_()
    wanted = np.log(max(1.0, min(PERPLEXITY, (len(x_LF) - 1) / 3)))
    low_L1, high_L1 = torch.full((len(x_LF), 1), -12.0), torch.full((len(x_LF), 1), 12.0)  # of log beta
    for _ in range(40):
        beta_L1 = ((low_L1 + high_L1) / 2).exp()
        p_LL = (-beta_L1 * far_LL).fill_diagonal_(-torch.inf).softmax(dim=1).nan_to_num_(0.0)
        entropy_L1 = -torch.xlogy(p_LL, p_LL).sum(dim=1, keepdim=True)
        wide_L1 = entropy_L1 > wanted
        low_L1 = torch.where(wide_L1, beta_L1.log(), low_L1)
        high_L1 = torch.where(wide_L1, high_L1, beta_L1.log())
    joint_LL = p_LL + p_LL.T
    return joint_LL / joint_LL.sum().clamp_min(1e-12)


def _among(x_BF: Tensor, landmarks_LF: Tensor, place_L2: Tensor) -> Tensor:
    """The mean place of the nearest landmarks, closer ones weighing more: B × 2."""
    cosine_BC, near_BC = (x_BF @ landmarks_LF.T).topk(min(NEAREST, len(landmarks_LF)), dim=1)
    far_BC = (1 - cosine_BC).clamp_min(1e-6)
    weight_BC = far_BC.pow(-2)
    weight_BC /= weight_BC.sum(dim=1, keepdim=True)
    return (weight_BC[:, :, None] * place_L2[near_BC]).sum(dim=1)


def _clusters(unit_NF: Tensor, random: torch.Generator) -> Tensor:
    """Spherical k-means: the cluster of each row, the largest first: N."""
    some_SF = unit_NF[torch.randperm(len(unit_NF), generator=random)[:FITTED_ON]]
    centres_KF = some_SF[:1]
    for _ in range(min(CLUSTERS, len(some_SF)) - 1):  # the next centre is the row that is furthest from all others
        centres_KF = torch.cat([centres_KF, some_SF[(some_SF @ centres_KF.T).amax(dim=1).argmin()][None]])
    for _ in range(30):
        own_S = (some_SF @ centres_KF.T).argmax(dim=1)
        sums_KF = torch.zeros_like(centres_KF).index_add_(0, own_S, some_SF)
        centres_KF = torch.where(sums_KF.norm(dim=1, keepdim=True) > 0, normalize(sums_KF, dim=1), centres_KF)
    own_N = (unit_NF @ centres_KF.T).argmax(dim=1)
    order_K = own_N.bincount(minlength=len(centres_KF)).argsort(descending=True, stable=True)
    return order_K.argsort()[own_N]
